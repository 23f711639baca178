// The optimizers' kernels as machine code. See flat.hpp.
#include "trainer/layers/cuda/launch.cuh"
#include "trainer/optim/cuda/kernel_list.hpp"

namespace rondo::trainer::cuda {

std::vector<const void* (*)()> optimizer_entries() {
  std::vector<const void* (*)()> entries;
  for_optimizer_kernels(Link{entries});
  return entries;
}

}  // namespace rondo::trainer::cuda
