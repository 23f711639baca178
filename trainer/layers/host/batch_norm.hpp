// Batch normalisation (Ioffe, Szegedy 2015) of images, forward and backward by hand, over the
// samples of this rank or of all ranks. Refuses to know how ranks talk: it is given one function.
//
// Statistics are taken in two passes, first the mean and then the squared deviations from it, in
// double: sound where the mean is large beside the deviation. Over ranks that is two exchanges in
// forward, [count, sums] and [squares], and one in backward. (One would do in forward if each
// rank's mean and squares were gathered and merged; here a sum of doubles is all that is needed.)
// Counts travel, so unequal and empty shares are right, and every training pass makes the same
// exchanges, also with no samples.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "rondo/status.hpp"

namespace rondo::trainer {

/// Adds up values[count] over all ranks, in place and blocking, to the same bits on each. Empty:
/// this rank is alone.
using SumOverRanks = std::function<Status(double* values, size_t count)>;

/// x, y: [samples x channels x pixels]. Samples are this rank's, 0 allowed.
struct BatchNormShape {
  size_t samples, channels, pixels;
  double epsilon = 1e-5;
};

/// What a layer keeps of a pass, per channel; over all ranks.
struct BatchStatistics {
  explicit BatchStatistics(size_t channels = 0)
      : mean(channels),
        squares(channels),
        inverse_deviation(channels),
        gradient_sums(2 * channels),
        counted_sums(1 + channels) {}

  size_t bytes() const { return (6 * mean.size() + 1) * sizeof(double); }

  double count = 0;  // elements of a channel
  std::vector<double> mean;
  std::vector<double> squares;            // of the deviations from the mean, summed
  std::vector<double> inverse_deviation;  // 1 / sqrt(squares / count + epsilon)
  std::vector<double> gradient_sums;      // of dy, then of dy * normalised x: [2 x channels]
  std::vector<double> counted_sums;       // what the first exchange carries
};

/// Where the running statistics live: a layer's buffers, borrowed.
template <class T>
struct RunningStatistics {
  T *mean, *variance;  // [channels]
  T* batches;          // [1]
};

/// Measures this batch. Statistics of nothing are zero. Errors: those of `sum`.
template <class T>
Status batch_norm_measure(const BatchNormShape& shape, const T* x, const SumOverRanks& sum,
                          BatchStatistics& statistics);

/// running = (1 - momentum) * running + momentum * measured, the variance unbiased (that of a
/// single element stays biased, 0, where PyTorch refuses). A batch of nothing changes nothing.
template <class T>
void batch_norm_remember(const BatchStatistics& measured, double momentum,
                         const RunningStatistics<T>& running);

/// For evaluation: the running statistics in place of measured ones.
template <class T>
void batch_norm_recall(const BatchNormShape& shape, const RunningStatistics<T>& running,
                       BatchStatistics& statistics);

/// A layer's parameters, or their gradients: [channels] each.
template <class T>
struct BatchNormParameters {
  T *weight, *bias;
};

/// y = weight * (x - mean) * inverse_deviation + bias, then max(0, y) when `relu`.
template <class T>
void batch_norm_forward(const BatchNormShape& shape, const BatchStatistics& statistics,
                        const BatchNormParameters<T>& parameters, const T* x, bool relu, T* y);

/// This rank's share of the gradients of weight and bias; like every other gradient they are a sum
/// over ranks. Leaves the same sums in `statistics`.
template <class T>
void batch_norm_backward_parameters(const BatchNormShape& shape, BatchStatistics& statistics,
                                    const T* dy, const T* x, bool accumulate,
                                    const BatchNormParameters<T>& gradients);

/// The exchange that the input's gradient needs, after batch_norm_backward_parameters(). Apart,
/// because it blocks and so should not stand in line behind buckets that those gradients complete.
Status batch_norm_backward_exchange(const SumOverRanks& sum, BatchStatistics& statistics);

/// In place: dy becomes dx, through the statistics of the batch too.
template <class T>
void batch_norm_backward_input(const BatchNormShape& shape, const BatchStatistics& statistics,
                               const T* weight, const T* x, T* dy);

}  // namespace rondo::trainer
