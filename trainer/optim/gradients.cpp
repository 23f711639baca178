// See gradients.hpp.
#include "trainer/optim/gradients.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "trainer/optim/clip.hpp"

namespace rondo::trainer {
namespace {

static_assert(kDdpShardUnit % kNormBlock == 0, "a norm's block would lie on two ranks");

/// The sum of each block of each parameter in their order; 0 for those that others own.
template <class T>
std::vector<double> own_block_sums(DistributedDataParallel& ddp) {
  const T* gradients = static_cast<const T*>(ddp.gradients());
  auto range = ddp.own_ranges().begin();
  const auto end = ddp.own_ranges().end();
  std::vector<double> sums;
  for (size_t t = 0; t < ddp.tensors().size() && ddp.tensors()[t].adds_to < 0; ++t) {
    const size_t count = ddp.tensors()[t].count();
    for (size_t begin = 0; begin < count; begin += kNormBlock) {
      const size_t first = ddp.offset(t) + begin;
      while (range != end && range->end <= first) ++range;
      const bool own = range != end && range->begin <= first;
      sums.push_back(own ? block_sum(gradients + first, std::min(kNormBlock, count - begin)) : 0);
    }
  }
  return sums;
}

template <class T>
bool own_are_finite(DistributedDataParallel& ddp) {
  const T* gradients = static_cast<const T*>(ddp.gradients());
  for (const DdpRange& range : ddp.own_ranges()) {
    if (!simd::flat_kernels<T>().all_finite(gradients + range.begin, range.count())) return false;
  }
  return true;
}

}  // namespace

template <class T>
Result<GradientFacts> examine_gradients(Communicator& communicator, DistributedDataParallel& ddp,
                                        const GradientQuestions& ask) {
  // Word 0: how many ranks have found something else than numbers.
  std::vector<double> words = {ask.finite && !own_are_finite<T>(ddp) ? 1.0 : 0.0};
  if (ask.unscale != 1) {
    for (const DdpRange& range : ddp.own_ranges()) {
      simd::flat_kernels<T>().multiply(static_cast<T*>(ddp.gradients()) + range.begin,
                                       range.count(), static_cast<T>(ask.unscale));
    }
  }
  if (ask.norm) {
    const std::vector<double> sums = own_block_sums<T>(ddp);
    words.insert(words.end(), sums.begin(), sums.end());
  }
  if (ddp.is_sharded() && (ask.finite || ask.norm)) {
    // Each block's sum is added to zeros only: exact, in whatever order.
    RONDO_TRY(
        communicator.all_reduce(words.data(), words.data(), words.size(), DataType::kFloat64));
  }
  double squares = 0;
  for (size_t i = 1; i < words.size(); ++i) squares += words[i];
  return GradientFacts{.finite = words[0] == 0, .norm = std::sqrt(squares)};
}

template Result<GradientFacts> examine_gradients<float>(Communicator&, DistributedDataParallel&,
                                                        const GradientQuestions&);
template Result<GradientFacts> examine_gradients<double>(Communicator&, DistributedDataParallel&,
                                                         const GradientQuestions&);

}  // namespace rondo::trainer
