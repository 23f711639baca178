// Softmax and cross-entropy: the logits are read once for their sums, and once more, from the
// cache, to be replaced. See ../host/layers.hpp.
#pragma once

#include "trainer/layers/cuda/block.hpp"
#include "trainer/layers/operands.hpp"

namespace rondo::trainer::cuda {

/// losses[row] = -log softmax(logits[row])[target]. The logits become the probabilities, or with
/// `gradient` their gradient, factors * (probability - [class is target]), which two bytes need not be
/// able to hold without the factors; the padding becomes zero, whatever it was. A NaN, or
/// an infinity above zero, makes the whole row NaN. classes > 0; a pack divides the stride.
template <class T>
struct SoftmaxCrossEntropyKernel {
  LogitsShape shape;
  const int32_t* targets;
  bool gradient;
  T* logits;
  double* losses;
  LossFactors factors{};  // of the gradient

  static constexpr uint32_t kN = kPack<T>, kThreads = 512;
  Grid grid() const { return {.x = static_cast<uint32_t>(shape.rows)}; }
  size_t shared_bytes() const { return kThreads / kWarp * sizeof(Wide<T>); }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    using W = Wide<T>;
    using std::fmax;
    using std::log;
    const size_t row = block.index().x;
    T* const at = logits + row * shape.stride;
    W* const scratch = block.template shared<W>();
    const size_t begin = size_t{block.thread()} * kN, step = size_t{kThreads} * kN;
    // The largest so far and the sum of exp(element - largest), pack by pack. It does not matter that
    // a maximum overlooks a NaN: the sum does not.
    W largest = -static_cast<W>(INFINITY), sum = 0;
    for (size_t c = begin; c < shape.classes; c += step) {
      const Pack<W, kN> pack = classes_from(at, c);
      W top = pack.at[0];
      for (uint32_t j = 1; j < kN; ++j) top = fmax(top, pack.at[j]);
      if (top > largest) {
        sum *= exponential(largest - top);
        largest = top;
      }
      for (uint32_t j = 0; j < kN; ++j) sum += exponential(pack.at[j] - finite(largest));
    }
    const W all = block_fold(
        block, kThreads, largest, [](W x, W y) { return fmax(x, y); }, scratch);
    sum *= exponential(largest - finite(all));
    sum = block_fold(
        block, kThreads, sum, [](W x, W y) { return x + y; }, scratch);
    const auto target = static_cast<size_t>(targets[row]);
    if (block.thread() == 0) {
      losses[row] = log(static_cast<double>(sum)) -
                    (static_cast<double>(widen(at[target])) - static_cast<double>(all));
    }
    block.sync();  // the target's logit is replaced below
    const W scale = gradient ? gradient_scale() : W{1}, factor = scale / sum;
    for (size_t c = begin; c < shape.stride; c += step) {
      const uint32_t inside = classes_in_pack(c);
      const auto own = static_cast<uint32_t>(gradient && target - c < kN ? target - c : kN);
      const Pack<T, kN> pack = load<kN>(at + c);
      Pack<T, kN> result;
      for (uint32_t j = 0; j < kN; ++j) {
        const W e = exponential(widen(pack.at[j]) - all);
        const W value = multiply_add(e, factor, j == own ? -scale : W{0});
        result.at[j] = narrow<T>(j < inside ? value : W{0});  // of a row of NaN, too
      }
      store(result, at + c);
    }
  }

 private:
  RONDO_DEVICE Wide<T> gradient_scale() const {
    Wide<T> scale = 1;
    if (factors.of_step != nullptr) scale *= *factors.of_step;
    if (factors.scale != nullptr) scale *= *factors.scale;
    return scale;
  }

  /// How many of the elements c, c + 1, ... of a pack are no padding.
  RONDO_DEVICE uint32_t classes_in_pack(size_t c) const {
    if (c >= shape.classes) return 0;
    return shape.classes - c < kN ? static_cast<uint32_t>(shape.classes - c) : kN;
  }

  /// A row's elements c, c + 1, ...: -infinity, whose probability is 0, for those that are padding.
  RONDO_DEVICE Pack<Wide<T>, kN> classes_from(const T* row, size_t c) const {
    const Pack<T, kN> pack = load<kN>(row + c);
    const uint32_t inside = classes_in_pack(c);
    Pack<Wide<T>, kN> values;
    for (uint32_t j = 0; j < kN; ++j) {
      values.at[j] = j < inside ? widen(pack.at[j]) : -static_cast<Wide<T>>(INFINITY);
    }
    return values;
  }

  /// What is subtracted: from a row that has begun with -infinity 0, so that exp() is 0 there.
  RONDO_DEVICE static Wide<T> finite(Wide<T> largest) {
    return largest == -static_cast<Wide<T>>(INFINITY) ? Wide<T>{0} : largest;
  }
};

/// hits[row] = 1 where the row's target is the first of its largest probabilities, and finite; else
/// 0. A warp takes a row.
template <class T>
struct CountCorrectKernel {
  LogitsShape shape;
  const int32_t* targets;
  const T* probabilities;
  double* hits;

  static constexpr uint32_t kThreads = 256, kRows = kThreads / kWarp;
  Grid grid() const { return {.x = static_cast<uint32_t>(ceil_div(shape.rows, kRows))}; }
  size_t shared_bytes() const { return 0; }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    const size_t row = size_t{block.index().x} * kRows + block.thread() / kWarp;
    if (row >= shape.rows) return;  // the whole warp
    const T* const at = probabilities + row * shape.stride;
    const auto target = static_cast<size_t>(targets[row]);
    const Wide<T> own = widen(at[target]);
    uint32_t better = 0;
    for (size_t c = block.thread() % kWarp; c < shape.classes; c += kWarp) {
      const Wide<T> other = widen(at[c]);
      better += !(c < target ? other < own : other <= own);  // a NaN is better than any
    }
    better = warp_sum(block, better);
    const bool finite = own - own == 0;
    if (block.thread() % kWarp == 0) hits[row] = better == 0 && finite ? 1 : 0;
  }
};

}  // namespace rondo::trainer::cuda
