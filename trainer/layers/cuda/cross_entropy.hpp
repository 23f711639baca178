// Softmax and cross-entropy: the logits are read once for their sums and, where shared memory has room
// for a row, kept there until they are replaced. See ../host/layers.hpp.
#pragma once

#include "trainer/layers/cuda/block.hpp"
#include "trainer/layers/operands.hpp"

namespace rondo::trainer::cuda {

/// losses[row] = -log softmax(logits[row])[target]. The logits become the probabilities, or with
/// `gradient` their gradient, factors * (probability - [class is target]), which two bytes need not be
/// able to hold without the factors; the padding becomes zero, whatever it was. A NaN, or
/// an infinity above zero, makes the whole row NaN. classes > 0; a pack divides the stride.
///
/// Two blocks of a multiprocessor of an H100 keep rows of 100 KB, such as GPT-2's in two bytes, so that one
/// reads while the other one writes. Many rows at once, read again from the cache, would not fit there.
template <class T>
struct SoftmaxCrossEntropyKernel {
  LogitsShape shape;
  const int32_t* targets;
  bool gradient;
  T* logits;
  double* losses;
  LossFactors factors{};  // of the gradient

  static constexpr uint32_t kN = kPack<T>, kThreads = 512;
  static constexpr size_t kScratchBytes = kThreads / kWarp * sizeof(Wide<T>);
  static constexpr size_t kMostShared = size_t{99} << 10;  // that all GPUs since 8.0 have
  Grid grid() const { return {.x = static_cast<uint32_t>(shape.rows)}; }
  size_t shared_bytes() const { return kScratchBytes + (keeps() ? in_packs() * sizeof(T) : 0); }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    using W = Wide<T>;
    using std::fmax;
    using std::log;
    const size_t row = block.index().x;
    T* const at = logits + row * shape.stride;
    W* const scratch = block.template shared<W>();
    T* const kept = block.template shared<T>() + kScratchBytes / sizeof(T);
    const uint32_t thread = block.thread(), target = static_cast<uint32_t>(targets[row]);
    const uint32_t whole = in_packs(), classes = static_cast<uint32_t>(shape.classes);
    const bool has_last = thread < classes - whole;  // an element beyond the packs

    RunningSum sum;
    const bool keep = keeps();
    const auto add = [&](uint32_t, const Pack<T, kN>& pack) { sum.add(widen_pack(pack)); };
    keep ? keep_packs(block, at, kept, add) : for_packs(thread, at, add);
    // Also what is read only now has time until the block meets, after which logits are replaced.
    const W own = widen(at[target]), last = has_last ? widen(at[whole + thread]) : W{0};
    const W scale = gradient ? gradient_scale() : W{1};
    if (has_last) sum.add(Pack<W, 1>{{last}});
    const W all = block_fold(
        block, kThreads, sum.largest, [](W x, W y) { return fmax(x, y); }, scratch);
    const W total = block_fold(
        block, kThreads, sum.sum * exponential_below(sum.largest - finite(all)),
        [](W x, W y) { return x + y; }, scratch);
    if (thread == 0) {
      losses[row] =
          log(static_cast<double>(total)) - (static_cast<double>(own) - static_cast<double>(all));
    }

    const W factor = scale / total;
    const auto replace = [&](uint32_t c, const Pack<T, kN>& pack) {
      const Pack<W, kN> values = widen_pack(pack);
      Pack<T, kN> result;
      for (uint32_t j = 0; j < kN; ++j) {
        result.at[j] = narrow<T>(exponential_below(values.at[j] - all) * factor);
      }
      store(result, at + c);
    };
    keep ? for_packs(thread, kept, replace) : for_packs(thread, at, replace);
    if (has_last) at[whole + thread] = narrow<T>(exponential_below(last - all) * factor);
    for (size_t c = classes + thread; c < shape.stride; c += kThreads) at[c] = narrow<T>(0);
    // The thread that has written the target's probability.
    if (gradient && thread == (target < whole ? target / kN % kThreads : target - whole)) {
      at[target] = narrow<T>(multiply_add(exponential_below(own - all), factor, -scale));
    }
  }

 private:
  /// The classes in packs that have no padding. The kernel's other classes are fewer than a pack.
  constexpr uint32_t in_packs() const {
    return static_cast<uint32_t>(shape.classes - shape.classes % kN);
  }
  constexpr bool keeps() const { return kScratchBytes + in_packs() * sizeof(T) <= kMostShared; }

  static constexpr uint32_t kStep = kThreads * kN;  // from a thread's pack to its next

  /// use(c, elements c, c + 1, ... of a row) for each of this thread's packs.
  template <class Use>
  RONDO_DEVICE void for_packs(uint32_t thread, const T* from, const Use& use) const {
    constexpr uint32_t kAtOnce = 4;
    const uint32_t end = in_packs();
    uint32_t c = thread * kN;
    for (; c + (kAtOnce - 1) * kStep < end; c += kAtOnce * kStep) {
      Pack<T, kN> got[kAtOnce];
      unrolled<kAtOnce>([&](uint32_t j) { got[j] = load<kN>(from + c + j * kStep); });
      after_reads();
      unrolled<kAtOnce>([&](uint32_t j) { use(c + j * kStep, got[j]); });
    }
    for (; c < end; c += kStep) use(c, load<kN>(from + c));
  }

  /// Likewise, and copies them: some are on their way while others are used.
  template <class Block, class Use>
  RONDO_DEVICE void keep_packs(Block& block, const T* from, T* kept, const Use& use) const {
    constexpr uint32_t kAtOnce = 4;
    const uint32_t end = in_packs();
    const auto for_some = [&](uint32_t c, const auto& f) {
      unrolled<kAtOnce>([&](uint32_t j) {
        if (c + j * kStep < end) f(c + j * kStep);
      });
    };
    const auto fetch = [&](uint32_t c) { block.copy_async(kept + c, from + c, true); };
    const uint32_t begin = block.thread() * kN;
    for_some(begin, fetch);
    for (uint32_t c = begin; c < end; c += kAtOnce * kStep) {
      block.wait_copies();
      for_some(c + kAtOnce * kStep, fetch);
      for_some(c, [&](uint32_t at) { use(at, load<kN>(kept + at)); });
    }
  }

  /// Of a thread's elements: the largest, and the sum of exp(element - largest). It does not matter
  /// that a maximum overlooks a NaN: the sum does not.
  struct RunningSum {
    Wide<T> largest = -static_cast<Wide<T>>(INFINITY), sum = 0;

    template <int N>
    RONDO_DEVICE void add(const Pack<Wide<T>, N>& pack) {
      using std::fmax;
      Wide<T> top = pack.at[0];
      for (int j = 1; j < N; ++j) top = fmax(top, pack.at[j]);
      if (top > largest) {
        sum *= exponential_below(largest - top);
        largest = top;
      }
      const Wide<T> base = finite(largest);
      for (int j = 0; j < N; ++j) sum += exponential_below(pack.at[j] - base);
    }
  };

  RONDO_DEVICE static Pack<Wide<T>, kN> widen_pack(const Pack<T, kN>& pack) {
    Pack<Wide<T>, kN> wide;
    for (uint32_t j = 0; j < kN; ++j) wide.at[j] = widen(pack.at[j]);
    return wide;
  }

  /// exp(x) for x of at most 0; on a GPU 0 where that is below 2^-126, which spares float three
  /// instructions.
  RONDO_DEVICE static Wide<T> exponential_below(Wide<T> x) {
#if defined(__CUDA_ARCH__)
    if constexpr (sizeof(Wide<T>) == sizeof(float)) {
      float power;
      asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * 1.4426950408889634f));
      return power;
    }
#endif
    return exponential(x);
  }

  RONDO_DEVICE Wide<T> gradient_scale() const {
    Wide<T> scale = 1;
    if (factors.of_step != nullptr) scale *= *factors.of_step;
    if (factors.scale != nullptr) scale *= *factors.scale;
    return scale;
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
