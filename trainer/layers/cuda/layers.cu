// The layers' kernels as machine code: float and bfloat16, rows whose width is a multiple of a pack
// and others. See block.hpp, launch.hpp.
#include "trainer/layers/cuda/attention.hpp"
#include "trainer/layers/cuda/batch_norm.hpp"
#include "trainer/layers/cuda/convolution.hpp"
#include "trainer/layers/cuda/cross_entropy.hpp"
#include "trainer/layers/cuda/dropout.hpp"
#include "trainer/layers/cuda/embedding.hpp"
#include "trainer/layers/cuda/gelu.hpp"
#include "trainer/layers/cuda/launch.cuh"
#include "trainer/layers/cuda/layer_norm.hpp"
#include "trainer/layers/cuda/pooling.hpp"
#include "trainer/layers/cuda/rows.hpp"

namespace rondo::trainer::cuda {
namespace {

template <class T, int N>
void link_rows(std::vector<const void*>& launches) {
  link<AddBiasKernel<T, N>, SumColumnsKernel<T, N>, GeluForwardKernel<T, N>,
       GeluBackwardKernel<T, N>, LayerNormForwardKernel<T, N>, LayerNormBackwardInputKernel<T, N>,
       LayerNormBackwardParametersKernel<T, N>, SoftmaxCrossEntropyKernel<T, N>,
       EmbeddingForwardKernel<T, N>, EmbeddingBackwardKernel<T, N>>(launches);
}

template <class T>
void link_type(std::vector<const void*>& launches) {
  link_rows<T, 1>(launches);
  link_rows<T, kPack<T>>(launches);
  link<ReluBackwardKernel<T>, AddSlicesKernel<T>, SoftmaxCrossEntropyBackwardKernel<T>,
       DropKernel<T>, AttentionForwardKernel<T, 32>, AttentionForwardKernel<T, 64>,
       AttentionBackwardKernel<T, 32>, AttentionBackwardKernel<T, 64>>(launches);
  link<ChannelSumsKernel<T>, BatchNormGradientSumsKernel<T>, AddChannelsKernel<T>,
       BatchNormForwardKernel<T>, BatchNormBackwardInputKernel<T>, MaxPoolForwardKernel<T>,
       MaxPoolBackwardKernel<T>, AveragePoolForwardKernel<T>, AveragePoolBackwardKernel<T>,
       UnfoldKernel<T>, FoldKernel<T>, ConvolutionBiasKernel<T>>(launches);
}

}  // namespace

std::vector<const void*> layer_launches() {
  std::vector<const void*> launches;
  link_type<float>(launches);
  link_type<BFloat16Bits>(launches);
  link<BatchNormFinishKernel>(launches);
  return launches;
}

}  // namespace rondo::trainer::cuda
