// Products of many rows with wgmma. Compiled for 9.0a alone.

#include "backend/cuda/products.cuh"

namespace calla::cuda {

template <class C>
void launch_groups(Stream stream, const Products& p) {
  launch_products<C>(stream, p);
}
template void launch_groups<Groups1>(Stream, const Products&);
template void launch_groups<Groups2>(Stream, const Products&);
template void launch_groups<Groups4>(Stream, const Products&);

}  // namespace calla::cuda
