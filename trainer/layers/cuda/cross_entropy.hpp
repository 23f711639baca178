// Softmax and cross-entropy: the logits are read once for their sums, and once more, from the
// cache, to be replaced. See ../host/layers.hpp.
#pragma once

#include "trainer/layers/cuda/block.hpp"

namespace rondo::trainer::cuda {

/// losses[row] = -log softmax(logits[row])[target]. logits[rows x classes] become the
/// probabilities, or with `gradient` scale * (probability - [class is target]). A NaN, or an
/// infinity above zero, makes the whole row NaN. N divides classes > 0.
template <class T, int N>
struct SoftmaxCrossEntropyKernel {
  size_t rows, classes;
  const int32_t* targets;
  bool gradient;
  Wide<T> scale;
  T* logits;
  double* losses;

  static constexpr uint32_t kThreads = 512;
  Grid grid() const { return {.x = static_cast<uint32_t>(rows)}; }
  size_t shared_bytes() const { return kThreads / kWarp * sizeof(Wide<T>); }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    using W = Wide<T>;
    using std::exp;
    using std::log;
    const size_t row = block.index().x;
    T* const at = logits + row * classes;
    W* const scratch = block.template shared<W>();
    const size_t begin = size_t{block.thread()} * N, step = size_t{kThreads} * N;
    // The largest so far and the sum of exp(element - largest), element by element. It does not
    // matter that a maximum overlooks a NaN: the sum does not.
    W largest = -static_cast<W>(INFINITY), sum = 0;
    for (size_t c = begin; c < classes; c += step) {
      const Pack<T, N> pack = load<N>(at + c);
      W top = widen(pack.at[0]);
      for (int j = 1; j < N; ++j) {
        const W value = widen(pack.at[j]);
        top = value > top ? value : top;
      }
      if (top > largest) {
        sum *= exp(largest - top);
        largest = top;
      }
      // A row may begin with -infinity, whose probability is 0 among finite ones.
      for (int j = 0; j < N; ++j) sum += share(widen(pack.at[j]), largest);
    }
    const W all = block_fold(
        block, kThreads, largest, [](W a, W b) { return a > b ? a : b; }, scratch);
    sum *= share(largest, all);
    sum = block_fold(
        block, kThreads, sum, [](W a, W b) { return a + b; }, scratch);
    const auto target = static_cast<size_t>(targets[row]);
    if (block.thread() == 0) {
      losses[row] = log(static_cast<double>(sum)) -
                    (static_cast<double>(widen(at[target])) - static_cast<double>(all));
    }
    block.sync();  // the target's logit is replaced below
    const W factor = 1 / sum;
    for (size_t c = begin; c < classes; c += step) {
      Pack<T, N> pack = load<N>(at + c);
      for (int j = 0; j < N; ++j) {
        W value = exp(widen(pack.at[j]) - all) * factor;
        if (gradient) value = scale * (c + j == target ? value - 1 : value);
        pack.at[j] = narrow<T>(value);
      }
      store(pack, at + c);
    }
  }

 private:
  /// exp(value - largest), and 0 for -infinity against itself.
  RONDO_DEVICE static Wide<T> share(Wide<T> value, Wide<T> largest) {
    using std::exp;
    return value == -static_cast<Wide<T>>(INFINITY) && largest == value ? Wide<T>{0}
                                                                        : exp(value - largest);
  }
};

/// In place on the probabilities: scale * (probability - [class is target]).
template <class T>
struct SoftmaxCrossEntropyBackwardKernel {
  size_t rows, classes;
  const int32_t* targets;
  Wide<T> scale;
  T* probabilities;

  static constexpr uint32_t kThreads = 256;
  Grid grid() const { return {.x = static_cast<uint32_t>(ceil_div(rows * classes, kThreads))}; }
  size_t shared_bytes() const { return 0; }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    const size_t i = size_t{block.index().x} * kThreads + block.thread();
    if (i >= rows * classes) return;
    const bool target = static_cast<size_t>(targets[i / classes]) == i % classes;
    const Wide<T> value = widen(probabilities[i]) - (target ? Wide<T>{1} : Wide<T>{0});
    probabilities[i] = narrow<T>(scale * value);
  }
};

}  // namespace rondo::trainer::cuda
