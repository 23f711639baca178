// See buckets.hpp.
#include "trainer/step/buckets.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <string>
#include <utility>

#include "trainer/checkpoint/checkpointing.hpp"
#include "trainer/optim/sharding.hpp"

namespace rondo::trainer {
namespace {

template <class T>
void plan(Run<T>& run) {
  run.plans = plan_buckets(run.on_device != nullptr ? *run.on_device : run.communicator, run.ddp(),
                           run.options.wire_type());
}

/// Plans, and where weights are a device's mirror, its buckets: checkpoints have them.
template <class T>
Status follow(Run<T>& run) {
  plan(run);
  if (run.device_ddp == nullptr) return {};
  DistributedDataParallel& mirror = run.weights.ddp();
  RONDO_TRY(mirror.set_bucket_ends(ends_in(mirror, run.ddp().layout())));
  run.weights.use_layout();
  return {};
}

/// "32 KiB", "4.0 MiB".
std::string size_in_words(size_t bytes) {
  const auto size = static_cast<double>(bytes);
  return bytes < 1048576 ? fmt::format("{:.0f} KiB", size / 1024)
                         : fmt::format("{:.1f} MiB", size / 1048576);
}

/// "32 KiB to 8.2 MiB".
std::string sizes_of(const RunFacts& facts) {
  const auto [least, most] =
      std::minmax_element(facts.ddp.layout().begin(), facts.ddp.layout().end(),
                          [](const DdpBucket& a, const DdpBucket& b) { return a.count < b.count; });
  const std::string smallest = size_in_words(facts.bytes_of(least->count));
  const std::string largest = size_in_words(facts.bytes_of(most->count));
  return smallest == largest ? smallest : smallest + " to " + largest;
}

std::vector<size_t> counts_of(const std::vector<DdpBucket>& layout) {
  std::vector<size_t> counts;
  for (const DdpBucket& bucket : layout) counts.push_back(bucket.count);
  return counts;
}

}  // namespace

std::vector<size_t> ends_in(const DistributedDataParallel& ddp,
                            const std::vector<DdpBucket>& buckets) {
  std::vector<size_t> ends;
  for (const DdpBucket& bucket : buckets) {
    const DdpBucket::Piece& last = bucket.pieces.back();
    const size_t next = last.tensor + 1;
    if (last.end != ddp.tensors()[last.tensor].count()) {
      ends.push_back(ddp.offset(last.tensor) + last.end);
    } else {
      ends.push_back(next < ddp.tensors().size() ? ddp.offset(next) : ddp.gradient_elements());
    }
  }
  return ends;
}

template <class T>
Status begin_buckets(Run<T>& run) {
  DistributedDataParallel& ddp = run.ddp();
  if (ddp.relayout().pending && !run.weights.ddp().relayout().pending) {
    RONDO_TRY(ddp.set_bucket_ends(ends_in(ddp, run.weights.ddp().layout())));
  }
  plan(run);
  if (run.origin) {
    warn_of_other_losses(run.options, run.ranks(), buckets_of(ddp, run.plans), *run.origin);
    run.origin.reset();
  }
  return {};
}

template <class T>
Status settle_buckets(Run<T>& run) {
  if (!run.ddp().relayout().pending) return {};
  RONDO_TRY(run.ddp().settle_buckets());
  return follow(run);
}

template <class T>
BucketWatch<T>::BucketWatch(Run<T>& run) : run_(run), before_(counts_of(run.ddp().layout())) {}

template <class T>
Status BucketWatch<T>::look(uint64_t step) {
  const DdpRelayout& now = run_.ddp().relayout();
  if (now.after_steps == 0 || std::exchange(relaid_, true)) return {};
  RONDO_TRY(follow(run_));
  if (!run_.reports()) return {};
  run_.report->count_from(step);
  const std::string sizes = sizes_of(run_.facts());
  if (counts_of(run_.ddp().layout()) == before_) {
    spdlog::info(
        "buckets after step {}: {} of {}, as before: no other layout is predicted to expose less "
        "than these, {:.2f} ms per step",
        step - 1, now.buckets, sizes, now.exposed_ms);
    return {};
  }
  spdlog::info(
      "buckets after step {}: {} of {} instead of {}, predicted to expose {:.2f} ms per step "
      "instead of {:.2f}",
      step - 1, now.buckets, sizes, now.buckets_before, now.exposed_ms, now.exposed_before_ms);
  return {};
}

template Status begin_buckets(Run<float>&);
template Status begin_buckets(Run<double>&);
template Status settle_buckets(Run<float>&);
template Status settle_buckets(Run<double>&);
template class BucketWatch<float>;
template class BucketWatch<double>;

}  // namespace rondo::trainer
