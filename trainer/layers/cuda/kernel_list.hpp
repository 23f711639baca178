// Which of the layers' kernels are linked: float, bfloat16 and half, rows whose width is a multiple of a
// pack and others. What launches another one does not link.
#pragma once

#include "trainer/layers/cuda/attention.hpp"
#include "trainer/layers/cuda/attention_tensor_backward.hpp"
#include "trainer/layers/cuda/batch_norm.hpp"
#include "trainer/layers/cuda/convolution.hpp"
#include "trainer/layers/cuda/cross_entropy.hpp"
#include "trainer/layers/cuda/dropout.hpp"
#include "trainer/layers/cuda/embedding.hpp"
#include "trainer/layers/cuda/gelu.hpp"
#include "trainer/layers/cuda/layer_norm.hpp"
#include "trainer/layers/cuda/pooling.hpp"
#include "trainer/layers/cuda/rows.hpp"

namespace rondo::trainer::cuda {

/// A kernel's type as an argument.
template <class Kernel>
inline constexpr const Kernel* kKernel = nullptr;

template <class T, int N, class Each>
void for_row_kernels(const Each& each) {
  each(kKernel<AddBiasKernel<T, N>>, kKernel<SumColumnsKernel<T, N>>,
       kKernel<GeluForwardKernel<T, N>>, kKernel<GeluBackwardKernel<T, N>>,
       kKernel<LayerNormForwardKernel<T, N>>, kKernel<LayerNormBackwardInputKernel<T, N>>,
       kKernel<LayerNormBackwardParametersKernel<T, N>>, kKernel<EmbeddingForwardKernel<T, N>>,
       kKernel<EmbeddingBackwardKernel<T, N>>, kKernel<ReluBackwardKernel<T, N>>,
       kKernel<DropKernel<T, N>>);
}

template <class T, class Each>
void for_layer_kernels_of(const Each& each) {
  for_row_kernels<T, 1>(each);
  for_row_kernels<T, kPack<T>>(each);
  each(kKernel<ScaleKernel<T>>, kKernel<AddSlicesKernel<T>>, kKernel<AddEmbeddingPartsKernel<T>>,
       kKernel<SoftmaxCrossEntropyKernel<T>>, kKernel<CountCorrectKernel<T>>);
  each(kKernel<AttentionForwardKernel<T, 16>>, kKernel<AttentionForwardKernel<T, 32>>,
       kKernel<AttentionForwardKernel<T, 64>>, kKernel<AttentionForwardKernel<T, 128>>,
       kKernel<AttentionBackwardKernel<T, 16>>, kKernel<AttentionBackwardKernel<T, 32>>,
       kKernel<AttentionBackwardKernel<T, 64>>, kKernel<AttentionBackwardKernel<T, 128>>);
  each(kKernel<ChannelSumsKernel<T>>, kKernel<BatchNormGradientSumsKernel<T>>,
       kKernel<AddChannelsKernel<T>>, kKernel<BatchNormForwardKernel<T>>,
       kKernel<BatchNormBackwardInputKernel<T>>, kKernel<MaxPoolForwardKernel<T>>,
       kKernel<MaxPoolBackwardKernel<T>>, kKernel<AveragePoolForwardKernel<T>>,
       kKernel<AveragePoolBackwardKernel<T>>);
  each(kKernel<ConvolutionKernel<T, 16>>, kKernel<ConvolutionKernel<T, 32>>,
       kKernel<ConvolutionKernel<T, 64>>, kKernel<ConvolutionWeightKernel<T, 16>>,
       kKernel<ConvolutionWeightKernel<T, 32>>, kKernel<ConvolutionWeightKernel<T, 64>>);
}

template <int kSize, class Bits, class Each>
void for_tensor_attention_kernels(const Each& each) {
  constexpr auto kQueries = AttentionSide::kQueries, kKeys = AttentionSide::kKeys;
  each(kKernel<TensorAttentionForwardKernel<kSize, Bits>>,
       kKernel<TensorAttentionBackwardKernel<kSize, Bits, kQueries, false>>,
       kKernel<TensorAttentionBackwardKernel<kSize, Bits, kQueries, true>>,
       kKernel<TensorAttentionBackwardKernel<kSize, Bits, kKeys, false>>,
       kKernel<TensorAttentionBackwardKernel<kSize, Bits, kKeys, true>>);
}

template <class Bits, class Each>
void for_layer_kernels_of_bits(const Each& each) {
  for_layer_kernels_of<Bits>(each);
  each(kKernel<LayerNormBackwardKernel<Bits, 1>>, kKernel<LayerNormBackwardKernel<Bits, 2>>,
       kKernel<LayerNormBackwardKernel<Bits, 3>>, kKernel<LayerNormBackwardKernel<Bits, 4>>);
  for_tensor_attention_kernels<32, Bits>(each);
  for_tensor_attention_kernels<64, Bits>(each);
  for_tensor_attention_kernels<128, Bits>(each);
}

/// Calls each(kKernel<A>, kKernel<B>, ...), some times, with all but those of half, which are a file
/// of their own: for_layer_kernels_of_bits<Float16Bits>().
template <class Each>
void for_layer_kernels(const Each& each) {
  for_layer_kernels_of<float>(each);
  for_layer_kernels_of_bits<BFloat16Bits>(each);
  each(kKernel<BatchNormCountKernel>, kKernel<BatchNormFinishKernel>, kKernel<AddRowsKernel>,
       kKernel<BatchNormRememberKernel<float>>, kKernel<BatchNormRecallKernel<float>>);
}

}  // namespace rondo::trainer::cuda
