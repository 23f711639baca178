// rondo-perf --device cuda without a GPU: its backend over a stand-in for CUDA, whose kernels are
// walked by threads. What is left for a GPU is CUDA itself, and the times.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "bench/backends/rondo.hpp"
#include "bench/harness/measure.hpp"
#include "bench/harness/run.hpp"
#include "comm/algorithms/algorithm.hpp"
#include "tests/comm/device/world.hpp"

namespace rondo::bench {
namespace {

using device::test::FakeGpu;

std::shared_ptr<FakeGpu> gpu;
bool spoils = false;                  // the last element of whatever is compared
std::atomic<size_t> comparisons = 0;  // on the device

struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<std::byte, Free>;
Memory allocated(size_t bytes) {
  return Memory(static_cast<std::byte*>(std::aligned_alloc(256, (bytes + 255) / 256 * 256)));
}

class FakeMemory final : public CudaMemory {
 public:
  FakeMemory() : stream_(*gpu->FakeGpu::create_stream()) {}
  ~FakeMemory() override { (void)gpu->destroy_stream(stream_); }

  int device() const override { return 0; }
  void* stream() const override { return stream_; }
  void* allocate(size_t bytes) override {
    Memory memory = allocated(bytes);
    std::byte* const at = memory.get();
    pieces_.emplace(at, Piece{std::move(memory), allocated(bytes), bytes});
    return at;
  }
  void release(void* memory) override { pieces_.erase(static_cast<std::byte*>(memory)); }
  std::byte* twin(const void* memory) const override {
    auto* const at = static_cast<std::byte*>(const_cast<void*>(memory));
    for (const auto& [begin, piece] : pieces_) {
      if (at >= begin && at < begin + piece.bytes) return piece.twin.get() + (at - begin);
    }
    return nullptr;
  }
  Status give(std::byte* to, const void* memory, size_t bytes) override {
    gpu->drain(stream_);
    std::memcpy(to, memory, bytes);
    return {};
  }
  Status take(void* memory, const std::byte* from, size_t bytes) override {
    gpu->drain(stream_);
    std::memcpy(memory, from, bytes);
    return {};
  }
  Status synchronize() override {
    gpu->drain(stream_);
    return {};
  }
  Result<Mismatch> compare(const std::byte* found, const std::byte* expected, size_t count,
                           size_t element_bytes) override {
    gpu->drain(stream_);
    ++comparisons;
    if (spoils) {
      const_cast<std::byte*>(found)[(count - 1) * element_bytes] ^= std::byte{1};
    }
    return mismatch_of(found, expected, count, element_bytes);
  }
  Result<double> time(const std::function<Status()>& enqueue) override {
    RONDO_TRY(enqueue());
    gpu->drain(stream_);
    return 1000.0;
  }
  Status capture(const std::function<Status()>& enqueue) override {
    gpu->drain(stream_);
    gpu->begin_capture(stream_);
    Status status = enqueue();
    graph_ = gpu->end_capture(stream_);
    return status;
  }
  Status replay() override {
    gpu->replay(graph_, stream_);
    return {};
  }

 private:
  struct Piece {
    Memory memory, twin;
    size_t bytes;
  };
  void* stream_;
  std::map<std::byte*, Piece> pieces_;
  FakeGpu::Graph graph_;
};

void measure_all(const std::string& directory, int rank, int ranks, size_t graph) {
  Config config = testing::world_config(directory, rank, ranks);
  config.channels = 2;
  auto made = make_rondo_backend({.config = config,
                                  .cuda = true,
                                  .local_rank = rank,
                                  .graph = graph,
                                  .ranks_in_process = ranks});
  testing::expect_ok(made.status(), "the backend");
  Backend& backend = **made;
  for (const Collective collective :
       {Collective::kAllReduce, Collective::kBroadcast, Collective::kAllToAll}) {
    for (const size_t count : {size_t{2}, size_t{5000}}) {
      const CallShape shape{.collective = collective,
                            .type = DataType::kFloat32,
                            .op = ReduceOp::kSum,
                            .root = 0,
                            .count = count};
      const size_t bytes = count * static_cast<size_t>(ranks) * sizeof(float);
      const Buffers buffers{.in = backend.allocate(bytes), .out = backend.allocate(bytes)};
      auto measured = measure(backend, shape, buffers, {.iterations = 11, .warmup = 1});
      testing::expect_ok(measured.status(), "measuring");
      for (const auto& half : {measured->out_of_place, measured->in_place}) {
        testing::expect(half && half->wrong == 0 && half->time_us > 0, "both halves are right");
      }
      backend.release(buffers.in);
      backend.release(buffers.out);
    }
  }
}

}  // namespace

Result<std::unique_ptr<CudaMemory>> open_cuda_memory(int) {
  return std::unique_ptr<CudaMemory>(std::make_unique<FakeMemory>());
}

TEST_CASE("Measurements on a device have its results, launched or replayed") {
  for (const size_t graph : {0, 5}) {
    for (const int ranks : testing::sizes({1, 2, 3})) {
      gpu = std::make_shared<FakeGpu>();
      {
        const device::test::Installed installed(gpu);
        const testing::TempDirectory directory;
        testing::require_all_ok(testing::run_ranks(
            testing::How::kThreads, ranks,
            [&](int rank) { measure_all(directory.path(), rank, ranks, graph); },
            std::chrono::seconds{100}));
      }
      CHECK(gpu->launches > 0);
      CHECK(gpu->alive() == 0);
      gpu.reset();
    }
  }
}

// One fast size and few operations: its tables are printed among the test's own lines.
TEST_CASE("bench knows which algorithms are safe in place as their traits do") {
  for (int c = 0; c < kCollectives; ++c) {
    for (const algorithms::AlgorithmTraits* traits : algorithms::all()) {
      const auto collective = static_cast<Collective>(c);
      if (!can_be_in_place(collective) || !algorithms::find(collective, traits->algorithm))
        continue;
      CAPTURE(name(collective), name(traits->algorithm));
      CHECK(is_safe_in_place(collective, traits->algorithm) ==
            algorithms::is_in_place_safe(collective, traits->algorithm));
    }
  }
}

TEST_CASE("rondo-perf compares on the device, and fails when an element is wrong there") {
  for (const bool wrong : {false, true}) {
    spoils = wrong;
    comparisons = 0;
    gpu = std::make_shared<FakeGpu>();
    {
      const device::test::Installed installed(gpu);
      const testing::TempDirectory directory;
      testing::require_all_ok(testing::run_ranks(
          testing::How::kThreads, 2,
          [&](int rank) {
            auto made =
                make_rondo_backend({.config = testing::world_config(directory.path(), rank, 2),
                                    .cuda = true,
                                    .local_rank = rank,
                                    .ranks_in_process = 2});
            testing::expect_ok(made.status(), "the backend");
            PerfOptions options;
            options.sweep = {.min = 4096, .max = 4096, .factor = 1, .step = 1};
            options.iterations = 1;
            options.cuda = true;
            options.unalign = 1;
            const int code = run_rank({.name = "test", .description = ""}, options, **made, "", {});
            testing::expect_eq(code, wrong ? 1 : 0, "the exit code");
          },
          std::chrono::seconds{100}));
    }
    CHECK(comparisons == 2 * 3);  // output and input, and in place the output
    gpu.reset();
  }
  spoils = false;
}

}  // namespace rondo::bench
