// Those of the layers' kernels that compute with halves: beside layers.cu, which takes as long to
// compile.
#include "trainer/layers/cuda/kernel_list.hpp"
#include "trainer/layers/cuda/launch.cuh"

namespace rondo::trainer::cuda {

std::vector<const void* (*)()> half_layer_entries() {
  std::vector<const void* (*)()> entries;
  for_layer_kernels_of_bits<Float16Bits>(Link{entries});
  return entries;
}

}  // namespace rondo::trainer::cuda
