// Batch normalisation of images in steps, between which ranks may add their sums. See
// ../host/batch_norm.hpp, whose steps, shapes and doubles these are. What it says of sums over
// ranks holds here, too: counts, sums and squares travel between these kernels.
#pragma once

#include "trainer/layers/cuda/block.hpp"
#include "trainer/layers/cuda/divisor.hpp"
#include "trainer/layers/host/batch_norm.hpp"

namespace rondo::trainer::cuda {

/// A block's part of a channel: one of `slices` parts of the samples.
struct ChannelSlice {
  static constexpr uint32_t kThreads = 256;
  static constexpr size_t kSamplesOfSlice = 16;

  size_t samples, channels, pixels;
  Divisor by_pixels{pixels};

  size_t slices() const { return ceil_div(samples, kSamplesOfSlice); }
  Grid grid() const {
    return {.x = static_cast<uint32_t>(channels), .y = static_cast<uint32_t>(slices())};
  }
  static size_t shared_bytes() { return kThreads / kWarp * sizeof(double); }

  /// f(i) for the thread's elements i of the channel.
  template <class Block, class F>
  RONDO_DEVICE void for_each(Block& block, const F& f) const {
    const size_t channel = block.index().x, first = block.index().y * kSamplesOfSlice;
    const size_t end = first + kSamplesOfSlice < samples ? first + kSamplesOfSlice : samples;
    for (uint32_t i = block.thread(); i < (end - first) * pixels; i += kThreads) {
      const auto [sample, pixel] = by_pixels.divide(i);
      f(((first + sample) * channels + channel) * pixels + pixel);
    }
  }
  /// partial[slice x channels] = the slice's sum of term(i), i an element of the channel.
  template <class Block, class Term>
  RONDO_DEVICE void sum(Block& block, const Term& term, double* partial) const {
    double sum = 0;
    for_each(block, [&](size_t i) { sum += term(i); });
    sum = block_fold(
        block, kThreads, sum, [](double a, double b) { return a + b; },
        block.template shared<double>());
    if (block.thread() == 0) partial[block.index().y * channels + block.index().x] = sum;
  }
};

/// partial[slices x channels]: sums of x[samples x channels x pixels] by slices of samples, or of
/// the squared deviations from mean[channels] where there is one. For AddChannelsKernel.
template <class T>
struct ChannelSumsKernel {
  ChannelSlice slice;
  const T* x;
  const double* mean;  // or null
  double* partial;

  static constexpr uint32_t kThreads = ChannelSlice::kThreads;
  Grid grid() const { return slice.grid(); }
  size_t shared_bytes() const { return ChannelSlice::shared_bytes(); }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    const double centre = mean != nullptr ? mean[block.index().x] : 0;
    slice.sum(
        block,
        [&](size_t i) {
          const double value = static_cast<double>(widen(x[i])) - centre;
          return mean != nullptr ? value * value : value;
        },
        partial);
  }
};

/// Two times partial[slices x channels]: the sums of dy, then those of dy (x - mean)
/// inverse_deviation.
template <class T>
struct BatchNormGradientSumsKernel {
  ChannelSlice slice;
  const T* dy;
  const T* x;
  const double* mean;
  const double* inverse_deviation;
  double* partial;

  static constexpr uint32_t kThreads = ChannelSlice::kThreads;
  Grid grid() const { return slice.grid(); }
  size_t shared_bytes() const { return ChannelSlice::shared_bytes(); }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    const double centre = mean[block.index().x], factor = inverse_deviation[block.index().x];
    slice.sum(
        block, [&](size_t i) { return static_cast<double>(widen(dy[i])); }, partial);
    slice.sum(
        block,
        [&](size_t i) {
          return static_cast<double>(widen(dy[i])) *
                 ((static_cast<double>(widen(x[i])) - centre) * factor);
        },
        partial + ceil_div(slice.samples, ChannelSlice::kSamplesOfSlice) * slice.channels);
  }
};

/// sums[channels] = the sum of partial[slices x channels]; and the same added to, or written to, a
/// parameter's gradient where there is one.
template <class T>
struct AddChannelsKernel {
  size_t slices, channels;
  const double* partial;
  double* sums;
  bool accumulate;
  T* gradient;  // or null

  static constexpr uint32_t kThreads = 64;
  Grid grid() const { return {.x = static_cast<uint32_t>(ceil_div(channels, kThreads))}; }
  size_t shared_bytes() const { return 0; }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    const size_t c = size_t{block.index().x} * kThreads + block.thread();
    if (c >= channels) return;
    double sum = 0;
    for (size_t s = 0; s < slices; ++s) sum += partial[s * channels + c];
    sums[c] = sum;
    if (gradient == nullptr) return;
    const double before = accumulate ? static_cast<double>(widen(gradient[c])) : 0;
    gradient[c] = narrow<T>(static_cast<Wide<T>>(before + sum));
  }
};

/// values[channels] = sums / max(count, 1): the means. With `variance` instead
/// 1 / sqrt(sums / max(count, 1) + epsilon). `count` is on the device because ranks add it.
struct BatchNormFinishKernel {
  size_t channels;
  const double* count;
  const double* sums;
  bool variance;
  double epsilon;
  double* values;

  static constexpr uint32_t kThreads = 64;
  Grid grid() const { return {.x = static_cast<uint32_t>(ceil_div(channels, kThreads))}; }
  size_t shared_bytes() const { return 0; }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    using std::sqrt;
    const size_t c = size_t{block.index().x} * kThreads + block.thread();
    if (c >= channels) return;
    const double average = sums[c] / (*count > 1 ? *count : 1);
    values[c] = variance ? 1 / sqrt(average + epsilon) : average;
  }
};

/// *count = value: elements of a channel, which ranks then add.
struct BatchNormCountKernel {
  double value;
  double* count;

  static constexpr uint32_t kThreads = kWarp;
  Grid grid() const { return {}; }
  size_t shared_bytes() const { return 0; }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    if (block.thread() == 0) *count = value;
  }
};

/// running = (1 - momentum) * running + momentum * measured, the variance unbiased; one batch more.
/// A batch of nothing changes nothing.
template <class T>
struct BatchNormRememberKernel {
  size_t channels;
  const double* count;
  const double* mean;
  const double* squares;
  double momentum;
  RunningStatistics<T> running;

  static constexpr uint32_t kThreads = 64;
  Grid grid() const { return {.x = static_cast<uint32_t>(ceil_div(channels, kThreads))}; }
  size_t shared_bytes() const { return 0; }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    const size_t c = size_t{block.index().x} * kThreads + block.thread();
    if (c >= channels || *count == 0) return;
    const double unbiased = *count - 1 > 1 ? *count - 1 : 1;
    follow(running.mean[c], mean[c]);
    follow(running.variance[c], squares[c] / unbiased);
    if (c == 0) *running.batches = narrow<T>(widen(*running.batches) + 1);
  }

 private:
  RONDO_DEVICE void follow(T& value, double now) const {
    const auto before = static_cast<double>(widen(value));
    value = narrow<T>(static_cast<Wide<T>>((1 - momentum) * before + momentum * now));
  }
};

/// For evaluation: the running statistics in place of measured ones.
template <class T>
struct BatchNormRecallKernel {
  size_t channels;
  RunningStatistics<T> running;
  double epsilon;
  double* mean;
  double* inverse_deviation;

  static constexpr uint32_t kThreads = 64;
  Grid grid() const { return {.x = static_cast<uint32_t>(ceil_div(channels, kThreads))}; }
  size_t shared_bytes() const { return 0; }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    using std::sqrt;
    const size_t c = size_t{block.index().x} * kThreads + block.thread();
    if (c >= channels) return;
    mean[c] = static_cast<double>(widen(running.mean[c]));
    inverse_deviation[c] = 1 / sqrt(static_cast<double>(widen(running.variance[c])) + epsilon);
  }
};

/// y = weight * (x - mean) * inverse_deviation + bias, then max(0, y) when `relu`; NaN stays one.
template <class T>
struct BatchNormForwardKernel {
  BatchNormShape shape;
  const double* mean;
  const double* inverse_deviation;
  BatchNormParameters<const T> parameters;
  const T* x;
  bool relu;
  T* y;
  ChannelSlice slice{shape.samples, shape.channels, shape.pixels};

  static constexpr uint32_t kThreads = ChannelSlice::kThreads;
  Grid grid() const { return slice.grid(); }
  size_t shared_bytes() const { return 0; }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    using W = Wide<T>;
    const uint32_t c = block.index().x;
    const W factor = widen(parameters.weight[c]) * static_cast<W>(inverse_deviation[c]);
    const W centre = static_cast<W>(mean[c]), shift = widen(parameters.bias[c]);
    slice.for_each(block, [&](size_t i) {
      const W value = multiply_add(widen(x[i]) - centre, factor, shift);
      y[i] = narrow<T>(relu && value < 0 ? W{0} : value);
    });
  }
};

/// In place: dy becomes dx, through the statistics of the batch too. gradient_sums[2 x channels]:
/// of all ranks, those of dy, then those of dy times the normalised x.
template <class T>
struct BatchNormBackwardInputKernel {
  BatchNormShape shape;
  const double* count;
  const double* mean;
  const double* inverse_deviation;
  const double* gradient_sums;
  const T* weight;
  const T* x;
  T* dy;
  ChannelSlice slice{shape.samples, shape.channels, shape.pixels};

  static constexpr uint32_t kThreads = ChannelSlice::kThreads;
  Grid grid() const { return slice.grid(); }
  size_t shared_bytes() const { return 0; }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    using W = Wide<T>;
    const uint32_t c = block.index().x;
    const double divisor = *count > 1 ? *count : 1;
    const W centre = static_cast<W>(mean[c]), inverse = static_cast<W>(inverse_deviation[c]);
    const W dy_mean = static_cast<W>(gradient_sums[c] / divisor);
    const W slope = static_cast<W>(gradient_sums[shape.channels + c] / divisor) * inverse;
    const W factor = widen(weight[c]) * inverse;
    slice.for_each(block, [&](size_t i) {
      const W distance = widen(x[i]) - centre;
      dy[i] = narrow<T>(factor * (widen(dy[i]) - dy_mean - distance * slope));
    });
  }
};

}  // namespace rondo::trainer::cuda
