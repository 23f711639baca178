// Batches ahead of time: the same whoever assembles them, resumable at every step, and no thread is
// left behind. The fake data say what was read; nothing here waits for a clock.
#include "trainer/data/loader.hpp"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "tests/harness/catch.hpp"
#include "tests/harness/contains.hpp"
#include "tests/harness/rank_group.hpp"
#include "tests/trainer/synthetic_data.hpp"
#include "trainer/base/random.hpp"

using namespace rondo;
using namespace rondo::trainer;
using rondo::testing::contains;
using Tail = DistributedSampler::Tail;

namespace {

constexpr uint64_t kNone = ~uint64_t{0};

/// Sample i is three tokens, two targets and four pixels that are functions of i. May fail at one
/// sample, and counts what was read.
class Numbers : public Dataset {
 public:
  explicit Numbers(uint64_t samples, uint64_t error_at = kNone, uint64_t throw_at = kNone)
      : Dataset({.path = "numbers",
                 .bytes = samples,
                 .files = 1,
                 .samples = samples,
                 .hash = samples,
                 .shape = {.context = 3,
                           .targets = 2,
                           .channels = 1,
                           .height = 2,
                           .width = 2,
                           .classes = 1000}}),
        error_at_(error_at),
        throw_at_(throw_at) {}

  static int32_t token(uint64_t index, uint64_t t) {
    return static_cast<int32_t>(mix(index + 1000 * t) % 1000);
  }
  static float pixel(uint64_t index, uint64_t p) {
    return static_cast<float>(mix(index + 2000 * p) % 256) / 255;
  }

  Status read(uint64_t index, const Slot& slot) const override {
    {
      const std::lock_guard lock(mutex_);
      ++reads_;
    }
    changed_.notify_all();
    if (index == error_at_) return Status(Code::kDataError, "sample " + std::to_string(index));
    if (index == throw_at_) throw std::runtime_error("thrown");
    for (uint64_t t = 0; t < 3; ++t) slot.tokens[t] = token(index, t);
    for (uint64_t t = 0; t < 2; ++t) slot.targets[t] = token(index, 3 + t);
    for (uint64_t p = 0; p < 4; ++p) slot.images[p] = pixel(index, p);
    return {};
  }

  uint64_t reads() const {
    const std::lock_guard lock(mutex_);
    return reads_;
  }
  /// Blocks until that many samples were read; the test runner's time limit ends it otherwise.
  void await_reads(uint64_t count) const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return reads_ >= count; });
  }

 private:
  const uint64_t error_at_, throw_at_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable uint64_t reads_ = 0;
};

/// Reading blocks while it is closed.
class Gated : public Dataset {
 public:
  Gated()
      : Dataset({.path = "gated", .bytes = 9, .files = 1, .samples = 9, .hash = 9, .shape = {}}) {}

  Status read(uint64_t /*index*/, const Slot& /*slot*/) const override {
    std::unique_lock lock(mutex_);
    if (!open_) reader_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
    return {};
  }
  void close() const {
    const std::lock_guard lock(mutex_);
    open_ = reader_ = false;
  }
  void open() const {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  bool is_open() const {
    const std::lock_guard lock(mutex_);
    return open_;
  }
  void await_reader() const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return reader_; });
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable bool open_ = true, reader_ = false;
};

struct Ranks {
  uint64_t count = 1;
  uint64_t rank = 0;
  Tail tail = Tail::kKeep;
};

DistributedSampler sampler_of(const Dataset& data, const Ranks& ranks = {}) {
  return DistributedSampler({.samples = data.samples(),
                             .ranks = ranks.count,
                             .rank = ranks.rank,
                             .seed = 5,
                             .tail = ranks.tail});
}

std::unique_ptr<Loader> make(const Dataset& data, const Loader::Settings& options,
                             const Ranks& ranks = {}) {
  Result<std::unique_ptr<Loader>> loader = Loader::create(data, sampler_of(data, ranks), options);
  REQUIRE(loader.ok());
  return std::move(loader).value();
}
/// One that has begun an epoch, there.
std::unique_ptr<Loader> start(const Dataset& data, const Loader::Settings& options,
                              const Ranks& ranks = {}, const DataPosition& position = {}) {
  std::unique_ptr<Loader> loader = make(data, options, ranks);
  loader->start_epoch(position);
  return loader;
}

/// A copy of what next() lends.
struct Copy {
  std::vector<int32_t> tokens, targets;
  std::vector<float> images;
  std::vector<uint64_t> ids;
  bool end = false;
  bool operator==(const Copy&) const = default;
};

Copy next_of(Loader& loader) {
  const Result<Batch> loaded = loader.next();
  REQUIRE(loaded.status().to_string() == "ok");
  const Batch& batch = loaded.value();
  return {.tokens = {batch.tokens, batch.tokens + 3 * batch.size},
          .targets = {batch.targets, batch.targets + 2 * batch.size},
          .images = {batch.images, batch.images + 4 * batch.size},
          .ids = {batch.ids, batch.ids + batch.size},
          .end = loader.batches_left() == 0};
}

std::vector<Copy> rest_of(Loader& loader) {
  std::vector<Copy> batches;
  const uint64_t expected = loader.batches_left();
  while (batches.empty() || !batches.back().end) batches.push_back(next_of(loader));
  CHECK(batches.size() == std::max<uint64_t>(expected, 1));
  CHECK(loader.batches_left() == 0);
  return batches;
}

void append(std::vector<uint64_t>& all, const std::vector<uint64_t>& ids) {
  all.insert(all.end(), ids.begin(), ids.end());
}

/// So many different samples.
void check_each_once(std::vector<uint64_t> ids, uint64_t count) {
  CHECK(ids.size() == count);
  std::sort(ids.begin(), ids.end());
  CHECK(std::adjacent_find(ids.begin(), ids.end()) == ids.end());
}

}  // namespace

TEST_CASE("loader: a batch is the sampler's next samples, and what the dataset says of them") {
  const Numbers data(23);
  const DistributedSampler sampler = sampler_of(data, {.count = 2, .rank = 1});
  for (const size_t workers : {0u, 1u, 3u}) {
    const auto loader = start(data, {.batch = 4, .workers = workers}, {.count = 2, .rank = 1});
    const std::vector<Copy> batches = rest_of(*loader);
    REQUIRE(batches.size() == 3);
    CHECK(batches.back().ids.size() == 3);  // 11 of 23
    uint64_t i = 0;
    for (const Copy& batch : batches) {
      for (size_t b = 0; b < batch.ids.size(); ++b, ++i) {
        const uint64_t id = batch.ids[b];
        REQUIRE(id == sampler.index(i));
        for (uint64_t t = 0; t < 3; ++t) REQUIRE(batch.tokens[3 * b + t] == Numbers::token(id, t));
        for (uint64_t t = 0; t < 2; ++t) {
          REQUIRE(batch.targets[2 * b + t] == Numbers::token(id, 3 + t));
        }
        for (uint64_t p = 0; p < 4; ++p) REQUIRE(batch.images[4 * b + p] == Numbers::pixel(id, p));
      }
    }
    CHECK(i == sampler.size());
  }
}

TEST_CASE("loader: any number of workers delivers the same, epoch after epoch") {
  const Numbers data(101);
  const auto plain = make(data, {.batch = 3});
  for (const size_t workers : {1u, 2u, 3u, 7u}) {
    const auto loader = make(data, {.batch = 3, .workers = workers});
    std::vector<Copy> before;
    for (uint64_t epoch = 0; epoch < 4; ++epoch) {
      plain->start_epoch({.epoch = epoch});
      loader->start_epoch({.epoch = epoch});
      const std::vector<Copy> batches = rest_of(*loader);
      CHECK(batches == rest_of(*plain));
      CHECK(batches.size() == 34);
      CHECK(batches != before);
      before = batches;
    }
  }
}

TEST_CASE("loader: what a model does not use is null") {
  const rondo::testing::TempDirectory folder;
  trainer::testing::write_file(folder.path() + "/text", trainer::testing::synthetic_text(100, 1));
  const auto data =
      open_dataset(DataKind::kByteWindows, folder.path() + "/text", {.context = 8, .classes = 256});
  REQUIRE(data.ok());
  const auto loader = start(*data.value(), {.batch = 5, .workers = 1});
  const Result<Batch> loaded = loader->next();
  REQUIRE(loaded.ok());
  const Batch& batch = loaded.value();
  CHECK(batch.images == nullptr);
  CHECK(batch.size == 5);
  CHECK(std::equal(batch.tokens + 1, batch.tokens + 8, batch.targets));
}

TEST_CASE("loader: the last batch, whole, short, empty, or left out") {
  for (const uint64_t samples : {11u, 12u, 13u, 15u, 16u, 3u, 2u}) {
    const Numbers data(samples);
    for (const bool drop_last : {false, true}) {
      std::vector<uint64_t> all;
      for (uint64_t rank = 0; rank < 3; ++rank) {
        const auto loader = start(data, {.batch = 2, .workers = 1, .drop_last = drop_last},
                                  {.count = 3, .rank = rank});
        // As many steps on every rank, though the samples differ.
        const uint64_t steps = drop_last ? samples / 3 / 2 : ((samples + 2) / 3 + 1) / 2;
        CHECK(loader->batches_left() == steps);
        for (const Copy& batch : rest_of(*loader)) {
          append(all, batch.ids);
          if (drop_last && steps > 0) CHECK(batch.ids.size() == 2);
        }
        const Copy behind = next_of(*loader);
        CHECK(behind.end);
        CHECK(behind.ids.empty());
      }
      check_each_once(all, drop_last ? samples / 6 * 6 : samples);
    }
  }
}

TEST_CASE("loader: a last batch that padding fills is not left out") {
  // 71 samples, 3 ranks: 24 for each with padding, 23 without.
  const Numbers data(71);
  for (const Tail tail : {Tail::kPad, Tail::kDrop, Tail::kKeep}) {
    for (uint64_t rank = 0; rank < 3; ++rank) {
      const auto loader =
          start(data, {.batch = 4, .drop_last = true}, {.count = 3, .rank = rank, .tail = tail});
      CHECK(loader->batches_left() == (tail == Tail::kPad ? 6 : 5));
      for (const Copy& batch : rest_of(*loader)) CHECK(batch.ids.size() == 4);
    }
  }
}

TEST_CASE("loader: reads ahead, but only so far") {
  const Numbers data(1000);
  for (const size_t workers : {1u, 3u}) {
    const uint64_t before = data.reads(), ahead = 2 * workers;
    const auto loader = start(data, {.batch = 5, .workers = workers});
    data.await_reads(before + ahead * 5);  // without being asked
    for (uint64_t step = 1; step <= 20; ++step) {
      next_of(*loader);
      data.await_reads(before + (step + ahead) * 5);
      REQUIRE(data.reads() - before <= (step + ahead) * 5);
    }
  }
}

TEST_CASE("loader: the position counts what is done, not what was delivered or read ahead") {
  const Numbers data(100);
  const auto loader = make(data, {.batch = 4, .workers = 3}, {.count = 2, .rank = 1});
  CHECK(next_of(*loader).end);  // nothing before the first epoch
  CHECK(loader->batches_left() == 0);
  CHECK(data.reads() == 0);
  loader->start_epoch({.epoch = 7});
  CHECK(loader->position().epoch == 7);
  CHECK(loader->position().consumed == 0);
  next_of(*loader);
  next_of(*loader);
  CHECK(loader->position().consumed == 0);
  loader->mark_done();
  next_of(*loader);
  CHECK(loader->position().consumed == 16);
  rest_of(*loader);
  loader->mark_done();
  CHECK(loader->position().consumed == 100);
  loader->start_epoch({.epoch = 8, .consumed = 30});
  CHECK(loader->position().consumed == 30);
  next_of(*loader);
  loader->mark_done();
  CHECK(loader->position().consumed == 38);
}

TEST_CASE("loader: resumed at every step, with other workers, it delivers the rest") {
  const Numbers data(50);
  const Ranks ranks{.count = 3, .rank = 2, .tail = Tail::kPad};
  const std::vector<Copy> batches =
      rest_of(*start(data, {.batch = 4, .workers = 1}, ranks, {.epoch = 1}));
  for (size_t step = 0; step <= batches.size(); ++step) {
    const auto first = start(data, {.batch = 4, .workers = 2}, ranks, {.epoch = 1});
    for (size_t s = 0; s < step; ++s) next_of(*first);
    first->mark_done();
    if (step < batches.size()) next_of(*first);  // delivered, not done
    for (const size_t workers : {0u, 3u}) {
      const auto second = start(data, {.batch = 4, .workers = workers}, ranks, first->position());
      REQUIRE(second->batches_left() == batches.size() - step);
      if (step == batches.size()) continue;
      const std::vector<Copy> rest(batches.begin() + static_cast<long>(step), batches.end());
      REQUIRE(rest_of(*second) == rest);
    }
  }
}

TEST_CASE("loader: resumed on another number of ranks, every sample still comes once") {
  const Numbers data(97);
  std::vector<uint64_t> done;
  DataPosition position;
  for (uint64_t rank = 0; rank < 3; ++rank) {
    const auto loader =
        start(data, {.batch = 4, .workers = 3}, {.count = 3, .rank = rank}, {.epoch = 4});
    for (int step = 0; step < 3; ++step) append(done, next_of(*loader).ids);
    loader->mark_done();
    position = loader->position();
    CHECK(position.consumed == 36);
  }
  for (const uint64_t ranks : {1u, 2u, 5u}) {
    std::vector<uint64_t> all = done;
    for (uint64_t rank = 0; rank < ranks; ++rank) {
      const auto loader =
          start(data, {.batch = 7, .workers = 1}, {.count = ranks, .rank = rank}, position);
      for (const Copy& batch : rest_of(*loader)) append(all, batch.ids);
    }
    check_each_once(all, 97);
  }
}

TEST_CASE("loader: an epoch can be left in the middle") {
  const Numbers data(200);
  const auto plain = make(data, {.batch = 3});
  for (const size_t workers : {1u, 3u}) {
    const auto loader = make(data, {.batch = 3, .workers = workers});
    for (uint64_t round = 0; round < 50; ++round) {
      const DataPosition position{.epoch = round % 5, .consumed = round};
      loader->start_epoch(position);
      plain->start_epoch(position);
      for (uint64_t step = 0; step < round % 7; ++step)
        REQUIRE(next_of(*loader) == next_of(*plain));
    }
  }
}

TEST_CASE("loader: another epoch begins, and the loader ends, only when its readers are through") {
  for (int round = 0; round < 40; ++round) {
    const Gated data;
    auto loader = make(data, {.batch = 2, .workers = 2});
    data.close();
    loader->start_epoch({});
    data.await_reader();
    std::thread opener([&] { data.open(); });
    if (round % 2 == 0) {
      loader->start_epoch({.epoch = 1});
    } else {
      loader.reset();
    }
    CHECK(data.is_open());
    opener.join();
  }
}

TEST_CASE("loader: destroyed at any moment") {
  const Numbers data(1000);
  for (const size_t workers : {0u, 1u, 3u}) {
    for (int delivered = -1; delivered < 10; ++delivered) {
      const auto loader = make(data, {.batch = 3, .workers = workers});
      if (delivered >= 0) loader->start_epoch({});
      for (int step = 0; step < delivered; ++step) next_of(*loader);
    }
  }
}

TEST_CASE("loader: an error comes with its batch, and stays until another epoch") {
  const uint64_t bad = sampler_of(Numbers(60)).index(4 * 5 + 2);  // in batch 5
  const Numbers returns(60, bad), throws(60, kNone, bad);
  for (const size_t workers : {0u, 1u, 3u}) {
    for (const Numbers* data : {&returns, &throws}) {
      const auto loader = start(*data, {.batch = 4, .workers = workers});
      for (int step = 0; step < 5; ++step) next_of(*loader);
      loader->mark_done();
      for (int again = 0; again < 3; ++again) {
        const Status status = loader->next().status();
        CHECK(status.code() == (data == &returns ? Code::kDataError : Code::kSystem));
        CHECK_THAT(status.message(), contains(data == &returns ? "sample" : "'numbers'"));
      }
      CHECK(loader->position().consumed == 20);
      loader->start_epoch({.epoch = 0, .consumed = 24});  // behind it
      CHECK(rest_of(*loader).size() == 9);
    }
  }
}

TEST_CASE("loader: a file that is cut off while it is read") {
  const rondo::testing::TempDirectory folder;
  const std::string path = folder.path() + "/tokens.bin";
  trainer::testing::write_file(
      path, trainer::testing::token_file(std::vector<uint16_t>(10001, uint16_t{3})));
  const auto data = open_dataset(DataKind::kTokenWindows, path, {.context = 10, .classes = 8});
  REQUIRE(data.ok());
  REQUIRE(data.value()->samples() == 1000);
  const auto loader = start(*data.value(), {.batch = 10, .workers = 2});
  REQUIRE(loader->next().ok());
  std::filesystem::resize_file(path, 1024);
  Status status;
  while (status.ok() && loader->batches_left() > 0) status = loader->next().status();
  CHECK(status.code() == Code::kDataError);
  CHECK_THAT(status.message(), contains(path));
}
