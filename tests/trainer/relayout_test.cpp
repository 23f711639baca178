// Buckets laid out anew by made-up times: what a rank notes of its steps, where buckets may end, and
// what all ranks make of the times of all.
#include "trainer/ddp/relayout.hpp"

#include <algorithm>
#include <mutex>

#include "tests/trainer/ddp_rig.hpp"
#include "tests/trainer/link_profile.hpp"

using namespace rondo;
using namespace rondo::ddp;
using namespace rondo::testing;

namespace {

constexpr size_t kCount = 1 << 16;  // elements of each tensor
constexpr int64_t kMs = 1000000;
using Ends = std::vector<size_t>;

Tensors floats(size_t tensors, size_t count = kCount) {
  Tensors all;
  for (size_t t = 0; t < tensors; ++t) {
    all.push_back({.name = std::to_string(t), .shape = {count}, .type = DataType::kFloat32});
  }
  return all;
}

BucketLayout one_bucket(const Tensors& tensors) {
  return make_layout(tensors, 4, {.bytes = size_t{1} << 40, .small_bytes = size_t{1} << 40});
}
BucketLayout one_per_tensor(const Tensors& tensors) {
  return make_layout(tensors, 4, {.bytes = 0});
}

/// Milliseconds of one step on one rank.
struct MadeUp {
  std::vector<int64_t> ready;  // of each tensor, ascending; backward ends with the last
  std::vector<int64_t> transfers;
  int64_t update = 0;
};

void note(ReadinessLog& log, const MadeUp& step, size_t count = kCount) {
  const int64_t begin = 5 * kMs;
  log.step_begins();
  log.ready(0, 1, begin);  // other times count from here
  for (size_t t = 0; t < step.ready.size(); ++t) {
    log.ready(t, count, begin + step.ready[t] * kMs);
  }
  log.backward_ends(begin + step.ready.back() * kMs);
  std::vector<DdpBucketTimes> buckets;
  int64_t turn = begin;
  for (const int64_t transfer : step.transfers) {
    const int64_t end = turn + transfer * kMs;
    buckets.push_back(
        {.ready_ns = begin, .work = {.issued_ns = begin, .started_ns = begin, .ended_ns = end}});
    turn = end;
  }
  log.step_ends(buckets, step.update * kMs);
}

/// What three ranks with these steps choose, in tensors: the same on all. The links' costs grow with
/// the bytes, and are a ten-thousandth of what is measured.
Ends choose(const Tensors& tensors, const BucketLayout& layout, const std::vector<MadeUp>& by_rank,
            const DdpOptions& options = {}) {
  const TempDirectory folder;
  Config config;
  config.links = write_links(folder.path() + "/links.json", {{"slot_us_per_byte", 1e-6},
                                                             {"memory_cached_us_per_byte", 1e-6},
                                                             {"memory_us_per_byte", 1e-6}});
  std::mutex mutex;
  std::vector<Ends> chosen;
  with_ranks(3, config, [&](Communicator& communicator) {
    ReadinessLog log;
    note(log, by_rank[std::min(static_cast<size_t>(communicator.rank()), by_rank.size() - 1)]);
    const auto result = choose_layout(
        communicator,
        {.tensors = tensors, .layout = layout, .options = options, .log = log, .direct = false});
    ok(result.status());
    expect(result->exposed_ns <= result->exposed_before_ns, "more is exposed than before");
    const std::lock_guard lock(mutex);
    chosen.push_back(result->ends);
  });
  for (const Ends& ends : chosen) CHECK(ends == chosen[0]);
  Ends in_tensors;
  for (const size_t end : chosen[0]) in_tensors.push_back(end / kCount);
  return in_tensors;
}

}  // namespace

TEST_CASE("relayout: a rank notes when parts were final, and what transfers took by themselves") {
  const Tensors tensors = floats(2, 64);
  const BucketLayout layout = one_per_tensor(tensors);
  ReadinessLog log;
  log.step_begins();
  log.ready(0, 32, 1000);
  log.ready(0, 64, 1400);
  log.backward_ends(2500);
  // The second was issued while the first was on its way.
  log.step_ends({{.ready_ns = 0, .work = {.issued_ns = 10, .started_ns = 12, .ended_ns = 20}},
                 {.ready_ns = 0, .work = {.issued_ns = 11, .started_ns = 13, .ended_ns = 50}}},
                7);
  CHECK(log.reported_parts(0) == Ends{32, 64});
  CHECK(log.ready_ns(tensors, layout, 0, 16) == 0);
  CHECK(log.ready_ns(tensors, layout, 0, 32) == 0);
  CHECK(log.ready_ns(tensors, layout, 32, 64) == 400);
  CHECK(log.ready_ns(tensors, layout, 64, 128) == 1500);  // never reported: with backward's end
  CHECK(log.ready_ns(tensors, layout, 0, 128) == 1500);
  CHECK(log.backward_ns() == 1500);
  CHECK(log.update_ns() == 7);
  CHECK(log.transfers_ns() == std::vector<int64_t>{8, 30});
}

TEST_CASE("relayout: medians of the last steps, at most four") {
  const Tensors tensors = floats(2, 64);
  const BucketLayout layout = one_per_tensor(tensors);
  ReadinessLog log;
  const auto ready = [&] { return log.ready_ns(tensors, layout, 64, 128) / kMs; };
  for (const int64_t ms : {900, 800, 20, 700, 10}) {
    note(log, {.ready = {0, ms}, .transfers = {ms}, .update = ms}, 64);
  }
  CHECK(log.steps() == ReadinessLog::kKept);
  CHECK(ready() == 20);  // of 10, 20, 700, 800 the lesser of the two in the middle
  CHECK(log.backward_ns() == 20 * kMs);
  CHECK(log.update_ns() == 20 * kMs);
  log.keep_last(3);
  CHECK(ready() == 20);
  log.keep_last(1);
  CHECK(ready() == 10);
  CHECK(log.transfers_ns() == std::vector<int64_t>{10 * kMs});
}

TEST_CASE("relayout: buckets may end with tensors, with reported parts, and inside what is large") {
  Tensors tensors = floats(1);
  tensors[0].shape = {20, 24};
  tensors.push_back({.name = "large", .shape = {5 << 20}, .type = DataType::kFloat32});  // 20 MiB
  const BucketLayout layout = one_bucket(tensors);
  ReadinessLog log;
  log.step_begins();
  log.ready(0, 250, 0);  // whole rows, at 64 bytes: 240
  log.ready(0, 480, 0);
  log.ready(1, 5 << 20, 0);
  log.step_ends({}, 0);
  const DdpOptions options;
  CHECK(possible_ends({tensors, layout, options, log, false}) ==
        Ends{240, 480, 480 + (2 << 20), 480 + (4 << 20), 480 + (5 << 20)});

  const Tensors many = floats(1000, 16);
  const BucketLayout together = one_bucket(many);
  const Ends ends = possible_ends({many, together, options, log, false});
  CHECK(ends.size() <= kMostUnits);
  CHECK(ends.back() == 16000);
}

TEST_CASE("relayout: by the latest rank and each transfer alone, with time to spare") {
  const Tensors three = floats(3);
  const BucketLayout one = one_bucket(three), each = one_per_tensor(three);
  // A tensor's transfer takes 12 ms, and is planned to take 18.
  const MadeUp early{.ready = {0, 10, 100}, .transfers = {36}};
  CHECK(choose(three, one, {early}) == Ends{2, 3});
  // Buckets that are as good stay, if there are fewer or not.
  CHECK(choose(three, each, {{.ready = {0, 10, 100}, .transfers = {12, 12, 12}}}) == Ends{1, 2, 3});
  // One rank comes later with the second tensor: it must not keep the first.
  CHECK(choose(three, one, {early, early, {.ready = {0, 80, 100}, .transfers = {36}}}) ==
        Ends{1, 2, 3});
  // Ranks that wait for a later one measure longer transfers.
  CHECK(choose(three, one,
               {{.ready = {0, 10, 100}, .transfers = {180}},
                {.ready = {0, 10, 100}, .transfers = {90}},
                early}) == Ends{2, 3});
  // Two tensors from 70 on would just end with backward, at 94.
  CHECK(choose(three, one, {{.ready = {0, 70, 100}, .transfers = {36}}}) == Ends{1, 2, 3});
  // Without overlap nothing leaves before backward ends.
  CHECK(choose(three, one, {early}, {.overlap = false}) == Ends{3});
}

TEST_CASE("relayout: updates fill the wait for later buckets, unless they wait themselves") {
  Tensors tensors = floats(3);
  const MadeUp at_once{.ready = {100, 100, 100}, .transfers = {36}, .update = 90};
  CHECK(choose(tensors, one_bucket(tensors), {at_once}) == Ends{1, 2, 3});
  tensors[2].may_skip = true;  // all updates come at the end
  CHECK(choose(tensors, one_bucket(tensors), {at_once}) == Ends{3});
  // What is added to the first tensor holds its update back, and travels alone at its own cost.
  tensors[2].may_skip = false;
  tensors.push_back(floats(1).front());
  tensors.back().adds_to = 0;
  MadeUp tied{.ready = {100, 100, 100, 100}, .transfers = {36, 2}, .update = 90};
  CHECK(choose(tensors, one_bucket(tensors), {tied}) == Ends{2, 3, 4});
  tied.transfers = {36, 100};  // whatever the others do, all wait for it
  CHECK(choose(tensors, one_bucket(tensors), {tied}) == Ends{3, 4});
}
