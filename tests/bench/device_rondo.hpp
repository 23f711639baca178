// rondo-perf's backend of --device cuda over a stand-in for CUDA, whose kernels are walked by
// threads. What is left for a GPU is CUDA itself, and the times.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "bench/backends/rondo.hpp"
#include "bench/harness/measure.hpp"
#include "tests/comm/device/world.hpp"

namespace rondo::bench::test {

using device::test::FakeGpu;

inline std::shared_ptr<FakeGpu> gpu;
inline bool spoils = false;                  // the last element of whatever is compared
inline std::atomic<size_t> comparisons = 0;  // on the device

struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};
struct FreeOnDevice {
  void operator()(std::byte* memory) const { (void)gpu->release(memory); }
};

class FakeMemory final : public CudaMemory {
 public:
  FakeMemory() : stream_(*gpu->FakeGpu::create_stream()) {}
  ~FakeMemory() override {
    forget_graph();
    (void)gpu->destroy_stream(stream_);
  }

  int device() const override { return 0; }
  void* stream() const override { return stream_; }
  static constexpr size_t kTooMuch = size_t{1} << 40;
  void* allocate(size_t bytes) override {
    if (bytes >= kTooMuch) return nullptr;
    Result<std::byte*> twin = gpu->allocate(bytes);
    if (!twin.ok()) return nullptr;
    auto* const at = static_cast<std::byte*>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
    pieces_.emplace(at, Piece{std::unique_ptr<std::byte, Free>(at),
                              std::unique_ptr<std::byte, FreeOnDevice>(*twin), bytes});
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
    forget_graph();
    RONDO_TRY(gpu->begin_capture(stream_, device::CudaCalls::kThreadLocal));
    const Status enqueued = enqueue();
    const auto graph = gpu->end_capture(stream_);  // in any case, or nothing could be freed
    if (graph.ok()) graph_ = *graph;
    return enqueued.ok() ? graph.status() : enqueued;
  }
  Status replay() override {
    gpu->replay(graph_, stream_);
    return {};
  }

 private:
  void forget_graph() {
    if (graph_ != nullptr) (void)gpu->destroy_graph(std::exchange(graph_, nullptr));
  }

  struct Piece {
    std::unique_ptr<std::byte, Free> memory;
    std::unique_ptr<std::byte, FreeOnDevice> twin;
    size_t bytes;
  };
  void* stream_;
  std::map<std::byte*, Piece> pieces_;
  FakeGpu::Graph graph_ = nullptr;
};

/// In library memory by `direct`.
inline void measure_all(const testing::TempDirectory& directory, int rank, int ranks, size_t graph,
                        bool library = false, Algorithm direct = Algorithm::kTwoShotDirect) {
  Config config = device::test::config_of(directory, rank, ranks, {});
  config.channels = 2;
  auto made = make_rondo_backend({.config = config,
                                  .algorithm = library ? direct : Algorithm::kAuto,
                                  .library_memory = library,
                                  .direct = library,
                                  .cuda = true,
                                  .local_rank = rank,
                                  .graph = graph,
                                  .ranks_in_process = ranks});
  testing::expect_ok(made.status(), "the backend");
  Backend& backend = **made;
  size_t shapes = 0;
  for (const Collective collective :
       {Collective::kAllReduce, Collective::kBroadcast, Collective::kAllToAll}) {
    for (const size_t count : {size_t{2}, size_t{5000}}) {
      const CallShape shape{.collective = collective,
                            .type = DataType::kFloat32,
                            .op = ReduceOp::kSum,
                            .root = 0,
                            .count = count};
      if (library && !backend.supports(shape).ok()) continue;
      const size_t bytes = count * static_cast<size_t>(ranks) * sizeof(float);
      const Buffers buffers{.in = backend.allocate(bytes), .out = backend.allocate(bytes)};
      auto measured = measure(backend, shape, buffers, {.iterations = 11, .warmup = 1});
      testing::expect_ok(measured.status(), "measuring");
      const auto is_right = [](const auto& half) {
        return half && half->wrong == 0 && half->time_us > 0;
      };
      testing::expect(is_right(measured->out_of_place), "right out of place");
      if (backend.supports_in_place(shape)) {
        testing::expect(is_right(measured->in_place), "right in place");
      }
      ++shapes;
      backend.release(buffers.in);
      backend.release(buffers.out);
    }
  }
  testing::expect_eq(shapes, size_t{library ? 4u : 6u}, "shapes that were measured");
}

/// Runs body(rank, directory) on every rank, a thread, over that GPU. Nothing may be left there.
template <class Body>
void run_on(std::shared_ptr<FakeGpu> its_gpu, int ranks, const Body& body) {
  gpu = std::move(its_gpu);
  {
    const device::test::Installed installed(gpu);
    const testing::TempDirectory directory;
    testing::require_all_ok(testing::run_ranks(
        testing::How::kThreads, ranks, [&](int rank) { body(rank, directory); },
        std::chrono::seconds{100}));
  }
  CHECK(gpu->alive() == 0);
}

}  // namespace rondo::bench::test
