// See batch_norm.hpp. Every loop over pixels is one that vectorises; what it needs of a channel is
// computed in double before.
#include "trainer/layers/host/batch_norm.hpp"

#include <algorithm>
#include <cmath>

#include "trainer/layers/host/lane_sum.hpp"

namespace rondo::trainer {
namespace {

/// Calls visit(offset of the plane) for every sample's plane of a channel.
template <class Visit>
void for_each_plane(const BatchNormShape& shape, size_t channel, Visit visit) {
  for (size_t s = 0; s < shape.samples; ++s) visit((s * shape.channels + channel) * shape.pixels);
}

Status exchange(const SumOverRanks& sum, std::vector<double>& values) {
  return sum ? sum(values.data(), values.size()) : Status{};
}

}  // namespace

template <class T>
Status batch_norm_measure(const BatchNormShape& shape, const T* x, const SumOverRanks& sum,
                          BatchStatistics& statistics) {
  double* sums = statistics.counted_sums.data() + 1;
  statistics.counted_sums[0] = static_cast<double>(shape.samples * shape.pixels);
  for (size_t c = 0; c < shape.channels; ++c) {
    sums[c] = 0;
    for_each_plane(shape, c, [&](size_t plane) {
      sums[c] += lane_sum(shape.pixels, [p = x + plane](size_t i) -> double { return p[i]; });
    });
  }
  RONDO_TRY(exchange(sum, statistics.counted_sums));
  statistics.count = statistics.counted_sums[0];
  const double divisor = std::max(statistics.count, 1.0);

  for (size_t c = 0; c < shape.channels; ++c) {
    const double mean = statistics.mean[c] = sums[c] / divisor;
    statistics.squares[c] = 0;
    for_each_plane(shape, c, [&](size_t plane) {
      statistics.squares[c] += lane_sum(shape.pixels, [p = x + plane, mean](size_t i) {
        const double deviation = p[i] - mean;
        return deviation * deviation;
      });
    });
  }
  RONDO_TRY(exchange(sum, statistics.squares));
  for (size_t c = 0; c < shape.channels; ++c) {
    statistics.inverse_deviation[c] =
        1 / std::sqrt(statistics.squares[c] / divisor + shape.epsilon);
  }
  return {};
}

template <class T>
void batch_norm_remember(const BatchStatistics& measured, double momentum,
                         const RunningStatistics<T>& running) {
  if (measured.count == 0) return;
  const double unbiased = std::max(measured.count - 1, 1.0);
  const auto follow = [momentum](T& value, double now) {
    value = static_cast<T>((1 - momentum) * value + momentum * now);
  };
  for (size_t c = 0; c < measured.mean.size(); ++c) {
    follow(running.mean[c], measured.mean[c]);
    follow(running.variance[c], measured.squares[c] / unbiased);
  }
  *running.batches += T{1};
}

template <class T>
void batch_norm_recall(const BatchNormShape& shape, const RunningStatistics<T>& running,
                       BatchStatistics& statistics) {
  for (size_t c = 0; c < shape.channels; ++c) {
    statistics.mean[c] = running.mean[c];
    statistics.inverse_deviation[c] = 1 / std::sqrt(running.variance[c] + shape.epsilon);
  }
}

template <class T>
void batch_norm_forward(const BatchNormShape& shape, const BatchStatistics& statistics,
                        const BatchNormParameters<T>& parameters, const T* x, bool relu, T* y) {
  for (size_t c = 0; c < shape.channels; ++c) {
    const auto mean = static_cast<T>(statistics.mean[c]);
    const auto factor = static_cast<T>(parameters.weight[c] * statistics.inverse_deviation[c]);
    const T bias = parameters.bias[c];
    for_each_plane(shape, c, [&](size_t plane) {
      const T* from = x + plane;
      T* to = y + plane;
      if (!relu) {
        for (size_t i = 0; i < shape.pixels; ++i) to[i] = (from[i] - mean) * factor + bias;
        return;
      }
      for (size_t i = 0; i < shape.pixels; ++i) {
        const T value = (from[i] - mean) * factor + bias;
        to[i] = value < T{0} ? T{0} : value;  // NaN stays
      }
    });
  }
}

template <class T>
void batch_norm_backward_parameters(const BatchNormShape& shape, BatchStatistics& statistics,
                                    const T* dy, const T* x, bool accumulate,
                                    const BatchNormParameters<T>& gradients) {
  for (size_t c = 0; c < shape.channels; ++c) {
    const double mean = statistics.mean[c];
    double sum = 0, product_sum = 0;
    for_each_plane(shape, c, [&](size_t plane) {
      const T *d = dy + plane, *p = x + plane;
      sum += lane_sum(shape.pixels, [d](size_t i) -> double { return d[i]; });
      product_sum +=
          lane_sum(shape.pixels, [d, p, mean](size_t i) -> double { return d[i] * (p[i] - mean); });
    });
    product_sum *= statistics.inverse_deviation[c];
    statistics.gradient_sums[c] = sum;
    statistics.gradient_sums[shape.channels + c] = product_sum;
    gradients.weight[c] = static_cast<T>(product_sum) + (accumulate ? gradients.weight[c] : T{0});
    gradients.bias[c] = static_cast<T>(sum) + (accumulate ? gradients.bias[c] : T{0});
  }
}

Status batch_norm_backward_exchange(const SumOverRanks& sum, BatchStatistics& statistics) {
  return exchange(sum, statistics.gradient_sums);
}

template <class T>
void batch_norm_backward_input(const BatchNormShape& shape, const BatchStatistics& statistics,
                               const T* weight, const T* x, T* dy) {
  const double divisor = std::max(statistics.count, 1.0);
  for (size_t c = 0; c < shape.channels; ++c) {
    const double inverse = statistics.inverse_deviation[c];
    const auto mean = static_cast<T>(statistics.mean[c]);
    const auto factor = static_cast<T>(weight[c] * inverse);
    const auto dy_mean = static_cast<T>(statistics.gradient_sums[c] / divisor);
    const auto slope =
        static_cast<T>(statistics.gradient_sums[shape.channels + c] / divisor * inverse);
    for_each_plane(shape, c, [&](size_t plane) {
      const T* from = x + plane;
      T* gradient = dy + plane;
      for (size_t i = 0; i < shape.pixels; ++i) {
        gradient[i] = factor * (gradient[i] - dy_mean - (from[i] - mean) * slope);
      }
    });
  }
}

template Status batch_norm_measure(const BatchNormShape&, const float*, const SumOverRanks&,
                                   BatchStatistics&);
template Status batch_norm_measure(const BatchNormShape&, const double*, const SumOverRanks&,
                                   BatchStatistics&);
template void batch_norm_remember(const BatchStatistics&, double, const RunningStatistics<float>&);
template void batch_norm_remember(const BatchStatistics&, double, const RunningStatistics<double>&);
template void batch_norm_recall(const BatchNormShape&, const RunningStatistics<float>&,
                                BatchStatistics&);
template void batch_norm_recall(const BatchNormShape&, const RunningStatistics<double>&,
                                BatchStatistics&);
template void batch_norm_forward(const BatchNormShape&, const BatchStatistics&,
                                 const BatchNormParameters<float>&, const float*, bool, float*);
template void batch_norm_forward(const BatchNormShape&, const BatchStatistics&,
                                 const BatchNormParameters<double>&, const double*, bool, double*);
template void batch_norm_backward_parameters(const BatchNormShape&, BatchStatistics&, const float*,
                                             const float*, bool, const BatchNormParameters<float>&);
template void batch_norm_backward_parameters(const BatchNormShape&, BatchStatistics&, const double*,
                                             const double*, bool,
                                             const BatchNormParameters<double>&);
template void batch_norm_backward_input(const BatchNormShape&, const BatchStatistics&, const float*,
                                        const float*, float*);
template void batch_norm_backward_input(const BatchNormShape&, const BatchStatistics&,
                                        const double*, const double*, double*);

}  // namespace rondo::trainer
