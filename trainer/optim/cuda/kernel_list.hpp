// Which of the optimizers' kernels are linked. See ../../layers/cuda/kernel_list.hpp.
#pragma once

#include "trainer/layers/cuda/kernel_list.hpp"
#include "trainer/optim/cuda/compression.hpp"
#include "trainer/optim/cuda/flat.hpp"

namespace rondo::trainer::cuda {

template <class T, class Each>
void for_optimizer_kernels_of(const Each& each) {
  each(kKernel<SgdKernel<T>>, kKernel<AdamWKernel<T>>, kKernel<SumOfSquaresKernel<T>>);
}

template <class Each>
void for_optimizer_kernels(const Each& each) {
  for_optimizer_kernels_of<float>(each);
  for_optimizer_kernels_of<BFloat16Bits>(each);
  for_optimizer_kernels_of<Float16Bits>(each);
  each(kKernel<BeginUpdateKernel<float>>);
  each(kKernel<CompressKernel<DataType::kBFloat16>>, kKernel<CompressKernel<DataType::kFloat16>>,
       kKernel<DecompressKernel<DataType::kBFloat16>>,
       kKernel<DecompressKernel<DataType::kFloat16>>);
}

}  // namespace rondo::trainer::cuda
