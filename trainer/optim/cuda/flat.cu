// The optimizers' kernels as machine code. See flat.hpp.
#include "trainer/layers/cuda/launch.cuh"
#include "trainer/optim/cuda/flat.hpp"

namespace rondo::trainer::cuda {

std::vector<const void*> optimizer_launches() {
  std::vector<const void*> launches;
  link<SgdKernel<float>, AdamWKernel<float>, SumOfSquaresKernel<float>, SgdKernel<BFloat16Bits>,
       AdamWKernel<BFloat16Bits>, SumOfSquaresKernel<BFloat16Bits>, AddSumsKernel>(launches);
  return launches;
}

}  // namespace rondo::trainer::cuda
