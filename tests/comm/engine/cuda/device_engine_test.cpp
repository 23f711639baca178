// The device engine's kernel on a GPU: ranks as streams of one device, every collective by every
// algorithm. The host's walk (device_walk_test) shows that programs, counters and layout are right;
// left for this one are the compiler, the memory model, and that kernels of several ranks run
// together. Nothing here waits without a limit.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/engine/cuda_engine.hpp"
#include "tests/comm/engine/device_calls.hpp"
#include "tests/harness/catch.hpp"
#include "transport/cuda_ipc/cuda_calls.hpp"

namespace rondo::engine {
namespace {

using namespace test;
using transport::cuda_ipc::CudaCalls;
using transport::cuda_ipc::Stream;

constexpr uint64_t kLimitNs = 10'000'000'000;

void must(const Status& status) {
  if (!status.ok()) FAIL(status.to_string());
}
template <class T>
T must(Result<T> result) {
  must(result.status());
  return std::move(*result);
}

CudaCalls& cuda() {
  static const std::unique_ptr<CudaCalls> kCalls = [] {
    // Streams share so many queues, in which one rank's kernel would wait behind another's.
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    auto calls = must(transport::cuda_ipc::open_cuda());
    must(calls->set_device(0));
    must(calls->load(walk_kernel()));
    return calls;
  }();
  return *kCalls;
}

/// Device memory, handed out piece by piece and freed as a whole.
class Pool {
 public:
  explicit Pool(size_t bytes) : base_(must(cuda().allocate(bytes))), bytes_(bytes) {
    must(cuda().clear(base_, bytes, nullptr));
  }
  ~Pool() { (void)cuda().release(base_); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  std::byte* take(size_t bytes) {
    std::byte* const piece = base_ + used_;
    used_ += (bytes + 255) / 256 * 256;
    if (used_ > bytes_) FAIL("the test's pool of device memory is too small");
    return piece;
  }
  template <class T>
  T* upload(const std::vector<T>& values) {
    std::byte* const piece = take(values.size() * sizeof(T));
    if (!values.empty()) {
      must(cuda().copy(piece, reinterpret_cast<const std::byte*>(values.data()),
                       values.size() * sizeof(T), nullptr));
    }
    return reinterpret_cast<T*>(piece);
  }

 private:
  std::byte* base_;
  size_t bytes_, used_ = 0;
};

/// What the host and all kernels see at the same address.
struct Mapped {
  uint64_t aborts[kMaxDeviceRanks];
  DeviceReport reports[kMaxDeviceRanks][32];  // [rank][channel]
};

class GpuWorld {
 public:
  explicit GpuWorld(const transport::cuda_ipc::Shape& shape, size_t pool_bytes = 256 << 20)
      : shape_(shape),
        pool_(pool_bytes),
        mapped_(reinterpret_cast<Mapped*>(must(cuda().allocate_mapped(sizeof(Mapped))))) {
    std::memset(static_cast<void*>(mapped_), 0, sizeof(Mapped));
    std::vector<std::byte*> segments;
    const size_t bytes = transport::cuda_ipc::Layout(shape).bytes();
    for (uint32_t r = 0; r < shape.ranks; ++r) {
      segments.push_back(pool_.take(bytes));
      streams_.push_back(must(cuda().create_stream()));
    }
    segments_ = pool_.upload(segments);
  }
  ~GpuWorld() {
    for (const Stream stream : streams_) (void)cuda().destroy_stream(stream);
    (void)cuda().release_mapped(reinterpret_cast<std::byte*>(mapped_));
  }
  GpuWorld(const GpuWorld&) = delete;
  GpuWorld& operator=(const GpuWorld&) = delete;

  const DeviceReport& report(uint32_t rank, uint32_t channel) const {
    return mapped_->reports[rank][channel];
  }

  /// All calls in a row on the streams of `ranks`; results are in the calls' memory afterwards.
  void walk(std::vector<Call>& calls, const std::vector<uint32_t>& ranks,
            uint64_t limit_ns = kLimitNs) {
    std::vector<std::vector<std::byte*>> memory(calls.size());  // [call][rank]
    std::vector<std::vector<DeviceOperation>> operations(calls.size());
    for (size_t i = 0; i < calls.size(); ++i) {
      for (uint32_t rank = 0; rank < shape_.ranks; ++rank) {
        memory[i].push_back(reinterpret_cast<std::byte*>(pool_.upload(calls[i].memory[rank])));
        operations[i].push_back(operation(calls[i], rank, memory[i].back(), limit_ns));
      }
    }
    must(cuda().synchronize(nullptr));
    // Operation by operation: a stream takes about a thousand launches, and then the host waits.
    for (size_t i = 0; i < calls.size(); ++i) {
      for (const uint32_t rank : ranks) launch(rank, operations[i][rank]);
    }
    wait_for(ranks);
    for (size_t i = 0; i < calls.size(); ++i) {
      for (uint32_t rank = 0; rank < shape_.ranks; ++rank) {
        std::vector<uint64_t>& host = calls[i].memory[rank];
        must(cuda().copy(reinterpret_cast<std::byte*>(host.data()), memory[i][rank],
                         host.size() * sizeof(uint64_t), nullptr));
      }
    }
    must(cuda().synchronize(nullptr));
  }

 private:
  DeviceOperation operation(Call& call, uint32_t rank, std::byte* memory, uint64_t limit_ns) {
    const schedule::Program& program = call.operation.programs[rank];
    const Expectation e = call.expectation();
    return {.program = {.instructions = pool_.upload(program.instructions),
                        .operands = pool_.upload(program.operands),
                        .instruction_count = static_cast<uint32_t>(program.instructions.size())},
            .geometries = pool_.upload(program.channels),
            .in = memory + e.in_base(rank) * sizeof(uint64_t),
            .out = memory + e.out_base(rank) * sizeof(uint64_t),
            .type = DataType::kUint64,
            .op = ReduceOp::kAvg,
            .direct = call.direct,
            .divisor = kDivisor,
            .scaled = false,
            .factor = 1,
            .fingerprint = call.fingerprint,
            .limit_ns = limit_ns};
  }

  void launch(uint32_t rank, DeviceOperation operation) {
    DeviceLinks links = {.shape = shape_,
                         .rank = rank,
                         .segments = segments_,
                         .host_abort = &mapped_->aborts[rank],
                         .reports = mapped_->reports[rank]};
    void* arguments[] = {&links, &operation};
    must(cuda().launch({.kernel = walk_kernel(),
                        .blocks = static_cast<int>(shape_.channels),
                        .threads = kWalkThreads,
                        .shared_bytes = 0,
                        .arguments = arguments,
                        .stream = streams_[rank]}));
  }

  void wait_for(const std::vector<uint32_t>& ranks) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point give_up = Clock::now() + std::chrono::seconds(60);
    const Clock::time_point hangs = give_up + std::chrono::seconds(30);
    bool gave_up = false;
    for (const uint32_t rank : ranks) {
      while (!must(cuda().is_done(streams_[rank]))) {
        if (!gave_up && Clock::now() > give_up) {
          gave_up = true;
          for (uint64_t& abort : mapped_->aborts) *const_cast<volatile uint64_t*>(&abort) = 1;
        }
        // Freeing the memory of a kernel that runs would wait for it for ever.
        RONDO_CHECK(Clock::now() < hangs, "rank %u's kernel does not end", rank);
        std::this_thread::yield();
      }
    }
    if (gave_up) FAIL("kernels did not end within a minute, and were stopped");
  }

  transport::cuda_ipc::Shape shape_;
  Pool pool_;
  Mapped* mapped_;
  std::byte** segments_ = nullptr;
  std::vector<Stream> streams_;
};

std::vector<uint32_t> all_ranks(uint32_t ranks) {
  std::vector<uint32_t> all(ranks);
  for (uint32_t r = 0; r < ranks; ++r) all[r] = r;
  return all;
}

void check(GpuWorld& world, std::vector<Call>& calls, const std::vector<std::string>& names,
           const transport::cuda_ipc::Shape& shape) {
  for (uint32_t r = 0; r < shape.ranks; ++r) {
    for (uint32_t c = 0; c < shape.channels; ++c) {
      CHECK(world.report(r, c).ended == DeviceReport::kNot);
    }
    for (size_t i = 0; i < calls.size(); ++i) {
      if (calls[i].operation.collective == Collective::kBarrier) continue;
      INFO(names[i] << ", rank " << r);
      CHECK(calls[i].expectation().right(r, calls[i].out(r)));
      CHECK(calls[i].memory[r].back() == 0xbadbadbadbadbad);
    }
  }
}

TEST_CASE("On a device, ranks do every collective by every algorithm, one after the other") {
  for (const uint32_t ranks : {1u, 2u, 3u, 5u, 8u}) {
    DYNAMIC_SECTION(ranks << " ranks") {
      GpuWorld world(shape_of(ranks));
      std::vector<std::string> names;
      std::vector<Call> calls = everything(ranks, {0, 1, 7, 200}, &names);
      world.walk(calls, all_ranks(ranks));
      check(world, calls, names, shape_of(ranks));
    }
  }
}

TEST_CASE("On a device, large slots and many channels") {
  const schedule::Limits limits = {
      .element_bytes = 8, .slot_bytes = 256 << 10, .depth = 8, .channels = 8};
  const transport::cuda_ipc::Shape shape = shape_of(4, limits);
  for (const Algorithm algorithm :
       {Algorithm::kRing, Algorithm::kTwoShot, Algorithm::kOneShot, Algorithm::kTwoShotDirect}) {
    DYNAMIC_SECTION(name(algorithm)) {
      GpuWorld world(shape, size_t{1} << 30);
      std::vector<Call> calls;
      std::vector<std::string> names;
      for (const uint64_t count : {uint64_t{100'003}, uint64_t{1} << 20}) {
        const schedule::Shape all_reduce = {.collective = Collective::kAllReduce,
                                            .algorithm = algorithm,
                                            .ranks = 4,
                                            .count = count};
        calls.push_back(call_of(all_reduce, limits));
        names.push_back(schedule::test::describe(all_reduce, limits));
      }
      world.walk(calls, all_ranks(4));
      check(world, calls, names, shape);
    }
  }
}

TEST_CASE("On a device, a rank that never comes is named when the limit has passed") {
  GpuWorld world(shape_of(2));
  std::vector<Call> calls;
  calls.push_back(all_reduce(Algorithm::kRing, 2));
  world.walk(calls, {0}, 200'000'000);
  bool named = false;
  for (uint32_t c = 0; c < 2; ++c) {
    const DeviceReport& report = world.report(0, c);
    CHECK((report.ended == DeviceReport::kTimeout || report.ended == DeviceReport::kAborted));
    named = named || (report.ended == DeviceReport::kTimeout && report.peer == 1);
  }
  CHECK(named);
}

}  // namespace
}  // namespace rondo::engine
