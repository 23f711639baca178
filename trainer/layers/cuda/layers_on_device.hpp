// The layers of a model on a device: what ../host/layers_on_host.hpp is in the host's memory, with
// the same functions. Each enqueues kernels and products on the device's stream and returns; none
// waits. Losses and the like are added up in the device's memory.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <type_traits>
#include <utility>

#include "rondo/types.hpp"
#include "trainer/layers/cuda/attention.hpp"
#include "trainer/layers/cuda/attention_tensor_backward.hpp"
#include "trainer/layers/cuda/batch_norm.hpp"
#include "trainer/layers/cuda/convolution.hpp"
#include "trainer/layers/cuda/cross_entropy.hpp"
#include "trainer/layers/cuda/embedding.hpp"
#include "trainer/layers/cuda/gelu.hpp"
#include "trainer/layers/cuda/input_queue.hpp"
#include "trainer/layers/cuda/launch.hpp"
#include "trainer/layers/cuda/layer_norm.hpp"
#include "trainer/layers/cuda/pooling.hpp"
#include "trainer/layers/cuda/products.hpp"
#include "trainer/layers/cuda/rows.hpp"
#include "trainer/layers/host/layer_norm.hpp"
#include "trainer/layers/host/matmul.hpp"

namespace rondo::trainer::cuda {

/// What batch normalisation keeps of a pass, per channel; over all ranks. As BatchStatistics.
struct DeviceStatistics {
  DeviceArray<double> counted_sums;  // elements of a channel, then the channels' sums
  DeviceArray<double> mean, squares, inverse_deviation;
  DeviceArray<double> gradient_sums;  // [2 x channels]
};

/// T is float, BFloat16Bits or Float16Bits. One thread; borrows the device, whose status() is that of every call
/// here. Operands must live until the stream has passed what uses them.
template <class T>
class LayersOnDevice {
 public:
  using Element = T;
  using Wide = cuda::Wide<T>;
  template <class Number>
  using Memory = DeviceArray<Number>;
  using Statistics = DeviceStatistics;

  LayersOnDevice(Device& device, std::unique_ptr<DeviceProducts> products)
      : device_(&device), products_(std::move(products)) {}

  // Memory, all of it before the first pass.

  template <class Number>
  void allocate(Memory<Number>& memory, size_t count) {
    memory = Memory<Number>(*device_, count);
    bytes_ += memory.bytes();
  }
  Statistics statistics(size_t channels) {
    Statistics made;
    allocate(made.counted_sums, 1 + channels);
    for (auto* each : {&made.mean, &made.squares, &made.inverse_deviation}) {
      allocate(*each, channels);
    }
    allocate(made.gradient_sums, 2 * channels);
    return made;
  }
  /// Such that every row begins where a cache line does: kernels read packs, and cuBLASLt has its
  /// fast kernels.
  size_t row_stride(size_t width) const {
    constexpr size_t kLine = 128 / sizeof(T);
    return ceil_div(width, kLine) * kLine;
  }
  void expect(const InputSizes& sizes) {
    inputs_ = std::make_unique<InputQueue<T>>(*device_, sizes);
    bytes_ += inputs_->device_bytes();
    allocate(of_rows_, sizes.samples * sizes.targets);
    grow(partial_, embedding_partial(sizes.samples * sizes.tokens, sizes.embedded));
  }
  /// For sums over rows of `width` columns, and for layer norms of half as many columns.
  void expect_sums(size_t rows, size_t width) {
    grow(partial_, std::max(slices_of(rows), LayerNormBackwardKernel<T, 1>::slices(rows)) * width);
  }
  size_t bytes() const { return bytes_; }
  Status status() const { return device_->status(); }

  Inputs<T> take(const Batch& batch, bool training, uint64_t key) {
    return inputs_->take(batch, training, key);
  }

  // Rows.

  void clear(size_t count, T* values) { device_->clear(values, count * sizeof(T)); }
  void copy(size_t count, const T* from, T* to) { device_->copy(to, from, count * sizeof(T)); }
  void add_bias(size_t rows, size_t width, const T* bias, T* y, bool relu = false) {
    by_packs(width, {bias, y}, [&](auto n) {
      start("bias", AddBiasKernel<T, n>{rows, width, bias, relu, y});
    });
  }
  void relu_backward(size_t count, const T* y, T* dy) {
    by_packs(count, {y, dy}, [&](auto n) {
      start("ReLU backward", ReluBackwardKernel<T, n>{count, y, dy});
    });
  }
  void drop(const Dropout& dropout, size_t samples, size_t size, T* values) {
    if (dropout.probability == 0) return;
    by_packs(size, {values}, [&](auto n) {
      start("dropout", DropKernel<T, n>{DropoutFactors::of(dropout), samples, size, values});
    });
  }

  // Linear layers.

  void multiply_forward(const LinearShape& shape, const T* x, const T* w, T* y) {
    linear_forward(shape, x, w, nullptr, false, y);
  }
  void multiply_input_gradient(const LinearShape& shape, const T* dy, const T* w, T* dx) {
    products_->multiply(kType, {.m = shape.rows,
                                .n = shape.in,
                                .k = shape.out,
                                .a = {.data = dy, .stride = shape.y_stride()},
                                .b = {.data = w, .stride = shape.in},
                                .c = dx,
                                .c_stride = shape.in});
  }
  void multiply_weight_gradient(const LinearShape& shape, const WeightPanel& panel, const T* dy,
                                const T* x, T* dw, bool accumulate) {
    products_->multiply(
        kType, {.m = panel.count,
                .n = shape.in,
                .k = shape.rows,
                .a = {.data = dy + panel.first, .stride = shape.y_stride(), .transposed = true},
                .b = {.data = x, .stride = shape.in},
                .c = dw + panel.first * shape.in,
                .c_stride = shape.in,
                .accumulate = accumulate});
  }
  /// With `relu` rows of y have no gaps. The ReLU is not cuBLASLt's epilogue, of which nobody says
  /// that it leaves a NaN: zeros in its place would hide that the run has failed.
  void linear_forward(const LinearShape& shape, const T* x, const T* w, const T* bias, bool relu,
                      T* y) {
    products_->multiply(kType, {.m = shape.rows,
                                .n = shape.out,
                                .k = shape.in,
                                .a = {.data = x, .stride = shape.in},
                                .b = {.data = w, .stride = shape.in, .transposed = true},
                                .c = y,
                                .c_stride = shape.y_stride(),
                                .bias = bias});
    if (relu) add_bias(shape.rows, shape.out, nullptr, y, true);
  }
  void linear_backward_bias(const LinearShape& shape, const T* dy, bool accumulate, T* dbias) {
    by_packs(shape.y_stride(), {dy}, [&](auto n) {
      start("sums of columns", SumColumnsKernel<T, n>{shape.rows, shape.out, shape.y_stride(), dy,
                                                      partial(slices_of(shape.rows), shape.out)});
    });
    add_slices(slices_of(shape.rows), shape.out, partial_.data(), accumulate, dbias);
  }

  // Embeddings.

  void embedding_forward(const EmbeddingForward<T>& pass) {
    by_packs(pass.size, {pass.table, pass.positions, pass.y}, [&](auto n) {
      start("embedding",
            EmbeddingForwardKernel<T, n>{pass.symbols, pass.size, pass.context, pass.x, pass.table,
                                         pass.positions, DropoutFactors::of(pass.dropout), pass.y});
    });
  }
  void embedding_backward(size_t symbols, size_t size, const Inputs<T>& inputs, const T* dy,
                          T* dtable) {
    RONDO_CHECK(embedding_partial(symbols, size) <= partial_.count());
    by_packs(size, {dy, dtable}, [&](auto n) {
      start("embedding backward",
            EmbeddingBackwardKernel<T, n>{symbols, size, inputs.tokens, inputs.order, dy,
                                          partial_.data(), dtable});
    });
    start("embedding backward, frequent tokens",
          AddEmbeddingPartsKernel<T>{symbols, size, inputs.tokens, inputs.order, partial_.data(),
                                     dtable});
  }

  // Norms, GELU, attention.

  void layer_norm_forward(const LayerNormForward<T, Wide>& p) {
    by_packs(p.width, {p.delta, p.bias, p.gamma, p.beta, p.x, p.normal, p.y}, [&](auto n) {
      start("layer norm", LayerNormForwardKernel<T, n>{p.rows, p.width, p.delta, p.bias, p.gamma,
                                                       p.beta, p.x, p.normal, p.reciprocal, p.y});
    });
  }
  void layer_norm_backward(const LayerNormBackward<T, Wide>& p, bool accumulate) {
    size_t slices = slices_of(p.rows);
    bool is_whole = false;
    by_packs(p.width, {p.normal, p.gamma, p.dy, p.dx}, [&](auto n) {
      if constexpr (sizeof(T) == 2 && n == kPack<T>)
        is_whole = layer_norm_backward_whole(p, slices);
      if (is_whole) return;
      start("layer norm backward",
            LayerNormBackwardInputKernel<T, n>{p.rows, p.width, p.normal, p.reciprocal, p.gamma,
                                               p.dy, p.dx});
      start("layer norm backward, parameters",
            LayerNormBackwardParametersKernel<T, n>{p.rows, p.width, p.normal, p.dy,
                                                    partial(slices, 2 * p.width)});
    });
    add_slices(slices, p.width, partial_.data(), accumulate, p.dgamma, p.dbeta);
  }
  void gelu_forward(size_t rows, size_t width, const T* bias, T* x, T* y) {
    by_packs(width, {bias, x, y}, [&](auto n) {
      start("GELU", GeluForwardKernel<T, n>{rows, width, bias, x, y});
    });
  }
  void gelu_backward(const LinearShape& shape, const T* derivative, T* dy, bool accumulate,
                     T* dbias) {
    by_packs(shape.out, {derivative, dy}, [&](auto n) {
      start("GELU backward", GeluBackwardKernel<T, n>{shape.rows, shape.out, derivative, dy,
                                                      partial(slices_of(shape.rows), shape.out)});
    });
    add_slices(slices_of(shape.rows), shape.out, partial_.data(), accumulate, dbias);
  }
  /// A number for each query and head; in two bytes a second one, which is backward's own.
  size_t attention_kept(const AttentionShape& shape) const {
    return shape.samples * shape.heads * shape.context * (sizeof(T) == 2 ? 2 : 1);
  }
  size_t attention_scratch(const AttentionShape& shape) const {
    RONDO_CHECK(shape.head_size() <= kLargestHead);
    return 0;
  }
  void attention_forward(const Attention<T, Wide>& pass) {
    if constexpr (sizeof(T) == 2) {
      if (tensor_attention(pass.shape, {pass.qkv, pass.y})) {
        return by_tensor_head_size(pass.shape, [&](auto size) {
          start("attention",
                TensorAttentionForwardKernel<size, T>{pass.shape, DropoutFactors::of(pass.dropout),
                                                      pass.qkv, pass.kept, pass.y});
        });
      }
    }
    by_head_size(pass.shape, [&](auto size) {
      start("attention",
            AttentionForwardKernel<T, size>{pass.shape, DropoutFactors::of(pass.dropout), pass.qkv,
                                            pass.kept, pass.y});
    });
  }
  void attention_backward(const Attention<T, Wide>& pass, const T* dy, T* dqkv) {
    if constexpr (sizeof(T) == 2) {
      if (tensor_attention(pass.shape, {pass.qkv, pass.y, dy, dqkv})) {
        return by_tensor_head_size(pass.shape, [&](auto size) {
          pass.dropout.probability == 0 ? tensor_attention_backward<size, false>(pass, dy, dqkv)
                                        : tensor_attention_backward<size, true>(pass, dy, dqkv);
        });
      }
    }
    by_head_size(pass.shape, [&](auto size) {
      start("attention backward",
            AttentionBackwardKernel<T, size>{pass.shape, DropoutFactors::of(pass.dropout), pass.qkv,
                                             pass.y, dy, pass.kept, dqkv});
    });
  }

  // The loss.

  /// A training pass leaves the gradient at once, so that backward seldom passes over the logits.
  void softmax_cross_entropy_forward(const LogitsShape& shape, const int32_t* targets,
                                     bool training, T* logits, double* loss,
                                     const LossFactors& factors = {}) {
    RONDO_CHECK(shape.stride % kPack<T> == 0);
    start("cross-entropy",
          SoftmaxCrossEntropyKernel<T>{shape, targets, training, logits, of_rows_.data(), factors});
    start("loss", AddRowsKernel{shape.rows, of_rows_.data(), loss});
  }
  void softmax_cross_entropy_backward(const LogitsShape& shape, const int32_t* /*targets*/,
                                      double scale, T* logits) {
    RONDO_CHECK(shape.stride % kPack<T> == 0);
    if (scale == 1) return;
    start("cross-entropy backward",
          ScaleKernel<T>{shape.rows * shape.stride, static_cast<Wide>(scale), logits});
  }
  void count_correct(const LogitsShape& shape, const int32_t* targets, const T* probabilities,
                     double* correct) {
    start("correct answers", CountCorrectKernel<T>{shape, targets, probabilities, of_rows_.data()});
    start("sum of correct answers", AddRowsKernel{shape.rows, of_rows_.data(), correct});
  }

  // Images.

  /// Room for the weight gradient's parts; callers need no scratch of their own.
  size_t convolution_scratch(const ConvolutionShape& shape) {
    RONDO_CHECK(shape.kernel <= kLargestKernel);
    expect_channels(shape.samples, shape.out_channels);
    by_planes(shape.out_channels, [&](auto planes) {
      using Kernel = ConvolutionWeightKernel<T, planes>;
      grow(partial_, Kernel::most_parts(shape) * shape.out_channels * shape.patch());
    });
    return 0;
  }
  /// bias: or null, without ReLU.
  void convolution_forward(const ConvolutionShape& shape, const T* x, const T* w, const T* bias,
                           bool relu, T* /*scratch*/, T* y) {
    by_planes(shape.out_channels, [&](auto planes) {
      start("convolution", convolution_kernel<T, planes>(shape, x, w, bias, relu, y));
    });
  }
  void convolution_backward_weight(const ConvolutionShape& shape, const T* dy, const T* x,
                                   T* /*scratch*/, bool accumulate, T* dw) {
    const size_t weights = shape.out_channels * shape.patch();
    by_planes(shape.out_channels, [&](auto planes) {
      ConvolutionWeightKernel<T, planes> kernel{shape, x, dy, partial_.data()};
      RONDO_CHECK(kernel.parts() * weights <= partial_.count());
      start("convolution backward, weight", kernel);
      add_slices(kernel.parts(), weights, partial_.data(), accumulate, dw);
    });
  }
  void convolution_backward_input(const ConvolutionShape& shape, const T* dy, const T* w,
                                  T* /*scratch*/, T* dx) {
    by_planes(shape.in_channels, [&](auto planes) {
      for (size_t y = 0; y < std::min(shape.stride, shape.height); ++y) {
        for (size_t x = 0; x < std::min(shape.stride, shape.width); ++x) {
          start("convolution backward, input",
                convolution_input_kernel<T, planes>(shape, {y, x}, dy, w, dx));
        }
      }
    });
  }
  void convolution_bias_backward(const ConvolutionShape& shape, const T* dy, bool accumulate,
                                 T* dbias) {
    sum_channels({shape.samples, shape.out_channels, shape.out_pixels()}, dy, nullptr,
                 channel_sums_.data(), accumulate, dbias);
  }

  Status batch_norm_measure(const BatchNormShape& shape, const T* x, const SumOverRanks& sum,
                            Statistics& statistics) {
    double* const count = statistics.counted_sums.data();
    const ChannelSlice slice{shape.samples, shape.channels, shape.pixels};
    start("batch norm, count",
          BatchNormCountKernel{static_cast<double>(shape.samples * shape.pixels), count});
    sum_channels(slice, x, nullptr, count + 1, false, nullptr);
    RONDO_TRY(exchange(sum, statistics.counted_sums));
    start("batch norm, means", BatchNormFinishKernel{shape.channels, count, count + 1, false,
                                                     shape.epsilon, statistics.mean.data()});
    sum_channels(slice, x, statistics.mean.data(), statistics.squares.data(), false, nullptr);
    RONDO_TRY(exchange(sum, statistics.squares));
    start("batch norm, deviations",
          BatchNormFinishKernel{shape.channels, count, statistics.squares.data(), true,
                                shape.epsilon, statistics.inverse_deviation.data()});
    return {};
  }
  void batch_norm_remember(const Statistics& measured, double momentum,
                           const RunningStatistics<Wide>& running) {
    start("batch norm, running statistics",
          BatchNormRememberKernel<Wide>{measured.mean.count(), measured.counted_sums.data(),
                                        measured.mean.data(), measured.squares.data(), momentum,
                                        running});
  }
  void batch_norm_recall(const BatchNormShape& shape, const RunningStatistics<Wide>& running,
                         Statistics& statistics) {
    start("batch norm, recalled statistics",
          BatchNormRecallKernel<Wide>{shape.channels, running, shape.epsilon,
                                      statistics.mean.data(), statistics.inverse_deviation.data()});
  }
  void batch_norm_forward(const BatchNormShape& shape, const Statistics& statistics,
                          const BatchNormParameters<T>& parameters, const T* x, bool relu, T* y) {
    start("batch norm",
          BatchNormForwardKernel<T>{shape,
                                    statistics.mean.data(),
                                    statistics.inverse_deviation.data(),
                                    {.weight = parameters.weight, .bias = parameters.bias},
                                    x,
                                    relu,
                                    y});
  }
  void batch_norm_backward_parameters(const BatchNormShape& shape, Statistics& statistics,
                                      const T* dy, const T* x, bool accumulate,
                                      const BatchNormParameters<T>& gradients) {
    const ChannelSlice slice{shape.samples, shape.channels, shape.pixels};
    double* const partial = channel_parts_.data();
    double* const sums = statistics.gradient_sums.data();
    start("batch norm backward, parameters",
          BatchNormGradientSumsKernel<T>{slice, dy, x, statistics.mean.data(),
                                         statistics.inverse_deviation.data(), partial});
    add_channels(slice, partial, sums, accumulate, gradients.bias);
    add_channels(slice, partial + slice.slices() * shape.channels, sums + shape.channels,
                 accumulate, gradients.weight);
  }
  Status batch_norm_backward_exchange(const SumOverRanks& sum, Statistics& statistics) {
    return exchange(sum, statistics.gradient_sums);
  }
  void batch_norm_backward_input(const BatchNormShape& shape, const Statistics& statistics,
                                 const T* weight, const T* x, T* dy) {
    start("batch norm backward",
          BatchNormBackwardInputKernel<T>{
              shape, statistics.counted_sums.data(), statistics.mean.data(),
              statistics.inverse_deviation.data(), statistics.gradient_sums.data(), weight, x, dy});
  }

  void max_pool_forward(const PoolShape& shape, const T* x, T* y, uint8_t* which) {
    start("max pooling", MaxPoolForwardKernel<T>{shape, x, y, which});
  }
  void max_pool_backward(const PoolShape& shape, const T* dy, const uint8_t* which, T* dx) {
    start("max pooling backward", MaxPoolBackwardKernel<T>{shape, dy, which, dx});
  }
  void average_pool_forward(size_t planes, size_t pixels, const T* x, T* y) {
    start("average pooling", AveragePoolForwardKernel<T>{planes, pixels, x, y});
  }
  void average_pool_backward(size_t planes, size_t pixels, const T* dy, T* dx) {
    start("average pooling backward", AveragePoolBackwardKernel<T>{planes, pixels, dy, dx});
  }

 private:
  static constexpr DataType kType = kTypeOf<T>;
  static constexpr size_t kLargestHead = 128;  // gpt.hpp's kLargestHeadOnDevice

  template <class Kernel>
  void start(const char* what, const Kernel& kernel) {
    if constexpr (requires { kernel.elements; }) {  // which it counts in 31 bits
      if (kernel.elements > Divisor::kMost) {
        return device_->note(
            {Code::kInvalidArgument,
             fmt::format("{}: {} elements on a rank, at most {} are possible: take a "
                         "smaller --batch, and more of --accum",
                         what, kernel.elements, Divisor::kMost)});
      }
    }
    launch(*device_, what, kernel);
  }

  /// Calls run(number of elements of a pack): as many as there can be where rows of that width begin
  /// at multiples of a pack, which all of these pointers are, too; else 1.
  template <class Run>
  static void by_packs(size_t width, std::initializer_list<const T*> pointers, const Run& run) {
    const bool aligned = std::all_of(pointers.begin(), pointers.end(), [](const T* pointer) {
      return reinterpret_cast<uintptr_t>(pointer) % sizeof(Pack<T, kPack<T>>) == 0;
    });
    if (aligned && width % kPack<T> == 0) {
      run(std::integral_constant<int, kPack<T>>());
    } else {
      run(std::integral_constant<int, 1>());
    }
  }

  /// Calls run(rows of a convolution's tile): as few as hold all planes of the result, or 64.
  template <class Run>
  static void by_planes(size_t planes, const Run& run) {
    if (planes <= 16) return run(std::integral_constant<uint32_t, 16>());
    if (planes <= 32) return run(std::integral_constant<uint32_t, 32>());
    run(std::integral_constant<uint32_t, 64>());
  }

  /// Calls run(the size to which a head is padded).
  template <class Run>
  static void by_head_size(const AttentionShape& shape, const Run& run) {
    const size_t size = shape.head_size();
    if (size <= 16) return run(std::integral_constant<int, 16>());
    if (size <= 32) return run(std::integral_constant<int, 32>());
    if (size <= 64) return run(std::integral_constant<int, 64>());
    run(std::integral_constant<int, 128>());
  }

  template <int kSize, bool kDrops>
  void tensor_attention_backward(const Attention<T, Wide>& pass, const T* dy, T* dqkv) {
    const auto by = [&]<AttentionSide kSide>() {
      start("attention backward",
            TensorAttentionBackwardKernel<kSize, T, kSide, kDrops>{
                pass.shape, DropoutFactors::of(pass.dropout), pass.qkv, pass.y, dy, pass.kept,
                pass.kept + attention_kept(pass.shape) / 2, dqkv});
    };
    by.template operator()<AttentionSide::kQueries>();
    by.template operator()<AttentionSide::kKeys>();
  }

  /// Calls run(the size of a head), of those for which tensor_attention().
  template <class Run>
  static void by_tensor_head_size(const AttentionShape& shape, const Run& run) {
    const size_t size = shape.head_size();
    if (size == 32) return run(std::integral_constant<int, 32>());
    if (size == 64) return run(std::integral_constant<int, 64>());
    run(std::integral_constant<int, 128>());
  }

  /// In how many slices rows are summed.
  static size_t slices_of(size_t rows) { return ColumnTile<T, 1>{rows, 1}.slices(); }
  /// Room for partial sums of columns.
  Wide* partial(size_t slices, size_t width) {
    RONDO_CHECK(slices * width <= partial_.count());
    return partial_.data();
  }
  void add_slices(size_t slices, size_t width, const Wide* sums, bool accumulate, T* to,
                  T* second = nullptr) {
    start("sums of slices", AddSlicesKernel<T>{slices, width, sums, accumulate, to, second});
  }
  /// False: rows are too wide for registers. Else `slices` are those of its sums.
  bool layer_norm_backward_whole(const LayerNormBackward<T, Wide>& p, size_t& slices) {
    const auto by = [&]<int kPacks>() {
      using Kernel = LayerNormBackwardKernel<T, kPacks>;
      if (p.width > Kernel::kMostWidth) return false;
      slices = Kernel::slices(p.rows);
      start("layer norm backward", Kernel{p.rows, p.width, p.normal, p.reciprocal, p.gamma, p.dy,
                                          p.dx, partial(slices, 2 * p.width)});
      return true;
    };
    return by.template operator()<1>() || by.template operator()<2>() ||
           by.template operator()<3>() || by.template operator()<4>();
  }

  void expect_channels(size_t samples, size_t channels) {
    grow(channel_parts_, 2 * ChannelSlice{samples, channels, 1}.slices() * channels);
    grow(channel_sums_, channels);
  }
  template <class Number>
  void grow(Memory<Number>& memory, size_t count) {
    if (count <= memory.count()) return;
    bytes_ -= memory.bytes();
    allocate(memory, count);
  }
  void sum_channels(const ChannelSlice& slice, const T* x, const double* mean, double* sums,
                    bool accumulate, T* gradient) {
    start("sums of channels", ChannelSumsKernel<T>{slice, x, mean, channel_parts_.data()});
    add_channels(slice, channel_parts_.data(), sums, accumulate, gradient);
  }
  void add_channels(const ChannelSlice& slice, const double* parts, double* sums, bool accumulate,
                    T* gradient) {
    start("sums of channels' slices",
          AddChannelsKernel<T>{slice.slices(), slice.channels, parts, sums, accumulate, gradient});
  }
  static Status exchange(const SumOverRanks& sum, DeviceArray<double>& values) {
    return sum ? sum(values.data(), values.count()) : Status{};
  }

  Device* device_;
  std::unique_ptr<DeviceProducts> products_;
  std::unique_ptr<InputQueue<T>> inputs_;
  DeviceArray<Wide> partial_;    // sums by slices of rows, or by parts of embeddings or pixels
  DeviceArray<double> of_rows_;  // losses, or hits
  DeviceArray<double> channel_parts_, channel_sums_;
  size_t bytes_ = 0;
};

}  // namespace rondo::trainer::cuda
