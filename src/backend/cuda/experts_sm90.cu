// Experts with many tokens, with wgmma. Compiled for 9.0a alone.

#include "backend/cuda/experts.cuh"

namespace calla::cuda {

void launch_inner_groups(Stream stream, const Experts& p, int tiles) {
  launch_experts<ExpertGroups, true>(stream, p, tiles);
}
void launch_outer_groups(Stream stream, const Experts& p, int tiles) {
  launch_experts<ExpertGroups, false>(stream, p, tiles);
}

}  // namespace calla::cuda
