// Measuring a library whose buffers are elsewhere, as on a GPU: it reads what it was given, its
// results are compared there or seen when they were taken, and times are its own.
#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "bench/harness/measure.hpp"
#include "tests/bench/thread_backend.hpp"
#include "tests/harness/catch.hpp"

using namespace rondo;
using namespace rondo::bench;

namespace {

constexpr size_t kBytes = 1 << 14;
constexpr double kOperationUs = 7;

/// Who compares, and so whether there is room for what is expected.
enum class Compares { kHost, kDevice };

/// Every piece of its memory has a twin, and operations are on the twins.
class FarBackend final : public Backend {
 public:
  FarBackend(ThreadWorld& world, int rank) : inner_(world, rank) {}

  std::string name() const override { return "far"; }
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  Status supports(const CallShape&) const override { return {}; }
  Status barrier() override { return inner_.barrier(); }
  Status run(const BackendCall& operation) override {
    if (!operation.measured) return inner_.run(operation);
    BackendCall far = operation;
    far.in = twin(operation.in);
    far.out = twin(operation.out);
    return inner_.run(far);
  }

  bool is_on_host() const override { return false; }
  Status give(const void* memory, size_t bytes) override {
    std::memcpy(twin(memory), memory, bytes);
    return {};
  }
  Status take(void* memory, size_t bytes) override {
    std::memcpy(memory, twin(memory), bytes);
    most_taken_ = std::max(most_taken_, bytes);
    return {};
  }
  Result<Mismatch> compare(const void* found, const void* expected, size_t count,
                           DataType type) override {
    ++comparisons_;
    return mismatch_of(twin(found), twin(expected), count, size_of(type));
  }
  Result<double> time(const BackendCall& operation, size_t iterations) override {
    for (size_t i = 0; i < iterations; ++i) RONDO_TRY(run(operation));
    return kOperationUs;
  }

  Buffers buffers(Compares who) {
    return {.in = near_[0].data(),
            .out = near_[1].data(),
            .expected = who == Compares::kDevice ? near_[2].data() : nullptr};
  }
  size_t most_taken() const { return most_taken_; }
  size_t comparisons() const { return comparisons_; }

 private:
  std::byte* twin(const void* memory) {
    const auto* at = static_cast<const std::byte*>(memory);
    for (size_t i = 0; i < kBuffers; ++i) {
      if (at >= near_[i].data() && at < near_[i].data() + kBytes) {
        return far_[i].data() + (at - near_[i].data());
      }
    }
    FAIL("memory that is not the backend's");
    return nullptr;
  }

  ThreadBackend inner_;
  static constexpr size_t kBuffers = 3;
  std::vector<std::vector<std::byte>> near_{kBuffers, std::vector<std::byte>(kBytes)};
  std::vector<std::vector<std::byte>> far_ = near_;
  size_t most_taken_ = 0, comparisons_ = 0;
};

std::vector<Measured> measured_far(Fault fault, Collective collective, Compares who) {
  ThreadWorld world(3);
  world.fault = fault;
  const CallShape shape{.collective = collective,
                        .type = DataType::kFloat32,
                        .op = ReduceOp::kSum,
                        .root = 1,
                        .count = 300};
  std::vector<std::unique_ptr<FarBackend>> backends;
  std::vector<Result<Measured>> results(3, Status(Code::kSystem, "not measured"));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank)
    backends.push_back(std::make_unique<FarBackend>(world, rank));
  for (size_t rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      results[rank] = measure(*backends[rank], shape, backends[rank]->buffers(who),
                              {.iterations = 22, .limit_from_bytes = 0});
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<Measured> measured;
  for (size_t rank = 0; rank < 3; ++rank) {
    REQUIRE(results[rank].ok());
    measured.push_back(*results[rank]);
    // Where the device compares, no more than one wrong element of each buffer comes back.
    const bool there = who == Compares::kDevice;
    CHECK((backends[rank]->comparisons() > 0) == there);
    CHECK((backends[rank]->most_taken() <= 4) == there);
  }
  return measured;
}

}  // namespace

TEST_CASE("buffers elsewhere are given, taken and timed by their backend") {
  for (const Collective collective : {Collective::kAllReduce, Collective::kReduceScatter,
                                      Collective::kAllGather, Collective::kBroadcast}) {
    for (const Compares who : {Compares::kHost, Compares::kDevice}) {
      INFO(name(collective) << (who == Compares::kHost ? " host" : " device"));
      for (const Measured& measured : measured_far(Fault::kNone, collective, who)) {
        CHECK(!measured.limit_us);  // the processor's memory says nothing about it
        for (const std::optional<HalfRow>& half : {measured.out_of_place, measured.in_place}) {
          REQUIRE(half);
          CHECK(half->wrong == 0u);
          CHECK(half->time_us == kOperationUs);
          CHECK(half->spread->max == kOperationUs);
        }
      }
    }
  }
}

TEST_CASE("wrong results and spoilt inputs are found in buffers elsewhere") {
  const std::pair<Fault, uint64_t> faults[] = {
      {Fault::kFlipped, 1}, {Fault::kMissing, 3 * 300}, {Fault::kSpoilsInput, 1}};
  for (const auto& [fault, wrong] : faults) {
    for (const Compares who : {Compares::kHost, Compares::kDevice}) {
      for (const Measured& measured : measured_far(fault, Collective::kAllReduce, who)) {
        CHECK(measured.out_of_place->wrong == wrong);
      }
    }
  }
}
