// The layers' kernels as machine code. See block.hpp, launch.hpp.
#include "trainer/layers/cuda/kernel_list.hpp"
#include "trainer/layers/cuda/launch.cuh"

namespace rondo::trainer::cuda {

std::vector<const void* (*)()> layer_entries() {
  std::vector<const void* (*)()> entries;
  for_layer_kernels(Link{entries});
  return entries;
}

}  // namespace rondo::trainer::cuda
