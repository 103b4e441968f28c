// Products of many rows with wgmma. Compiled for 9.0a alone.

#include "backend/cuda/products.cuh"

namespace calla::cuda {

void launch_product_groups(Stream stream, const Products& p) {
  launch_products<ProductGroups>(stream, p);
}
void launch_split_product_groups(Stream stream, const Products& p) {
  launch_products<SplitProductGroups>(stream, p);
}

}  // namespace calla::cuda
