// Communicators on a GPU as programs use them: ranks are threads that share it, buffers are CUDA's.
// Tests on the fake GPU show that the decisions are right; left for this one are CUDA's calls, mapped
// host memory and the memory model.
#include <cuda_runtime_api.h>

#include <barrier>
#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "tests/comm/device/calls.hpp"
#include "transport/ucx/factory.hpp"

namespace rondo::device::test {
namespace {

using testing::expect;
using testing::expect_ok;

void must(cudaError_t code, const char* what) {
  expect(code == cudaSuccess, std::string(what) + ": " + cudaGetErrorString(code));
}

/// A rank's communicator and stream.
class Rank {
 public:
  Rank(Communicator& communicator, std::barrier<>& meeting)
      : communicator_(communicator), meeting_(meeting) {
    must(cudaSetDevice(0), "cudaSetDevice");
    must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  ~Rank() {
    for (void* piece : pieces_) (void)cudaFree(piece);
    (void)cudaStreamDestroy(stream_);
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  Communicator& operator*() const { return communicator_; }
  Communicator* operator->() const { return &communicator_; }
  cudaStream_t stream() const { return stream_; }
  CallOptions options() const {
    CallOptions options;
    options.stream = stream_;
    return options;
  }
  /// Device memory with these contents. Before meet(): allocating may wait for running kernels.
  std::byte* give(const void* contents, size_t bytes) {
    void* piece = nullptr;
    must(cudaMalloc(&piece, bytes), "cudaMalloc");
    pieces_.push_back(piece);
    must(cudaMemcpyAsync(piece, contents, bytes, cudaMemcpyHostToDevice, stream_), "cudaMemcpy");
    synchronize();
    return static_cast<std::byte*>(piece);
  }
  void take(void* to, const std::byte* from, size_t bytes) const {
    synchronize();
    must(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_), "cudaMemcpy");
    synchronize();
  }
  void synchronize() const { must(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }
  /// Until all ranks are here.
  void meet() { meeting_.arrive_and_wait(); }

 private:
  Communicator& communicator_;
  std::barrier<>& meeting_;
  cudaStream_t stream_ = nullptr;
  std::vector<void*> pieces_;
};

/// Runs body(rank) on `size` ranks that share GPU 0.
void on_gpu(int size, const std::function<void(Rank&)>& body) {
  std::barrier<> meeting(size);
  Config config;
  config.device = 0;
  const TempDirectory directory;
  testing::require_all_ok(testing::run_ranks(
      testing::How::kThreads, size,
      [&](int number) {
        auto made = Communicator::create(config_of(directory, number, size, config));
        expect_ok(made.status(), "create");
        Rank rank(*made, meeting);
        try {
          body(rank);
          rank.synchronize();
        } catch (...) {
          meeting.arrive_and_drop();  // or the others would wait for ever
          throw;
        }
        rank.meet();  // what is freed next may be what another rank's kernel uses
      },
      std::chrono::seconds{100}));
}

/// A rank's Buffers on the device.
class Twin {
 public:
  Twin(Rank& rank, const Call& call)
      : host_(call, rank->rank(), rank->size()),
        there_(rank.give(host_.memory().data(), host_.memory().size())) {}
  const void* in() const { return there_ + offset(host_.in()); }
  void* out() { return there_ + offset(host_.out()); }
  /// As at the beginning. Waits for the stream first: a copy from pageable memory behind a kernel may
  /// hold this thread up inside of CUDA, with a lock that the other ranks' launches need.
  void renew(const Rank& rank) const {
    rank.synchronize();
    must(cudaMemcpyAsync(there_, host_.memory().data(), host_.memory().size(),
                         cudaMemcpyHostToDevice, rank.stream()),
         "cudaMemcpy");
    rank.synchronize();
  }
  void expect_equal(const Rank& rank, const Buffers& wanted, const std::string& what) const {
    std::vector<unsigned char> found(host_.memory().size());
    rank.take(found.data(), there_, found.size());
    expect(found == wanted.memory(), what + ": other bits than on the host");
  }

 private:
  ptrdiff_t offset(const void* at) const {
    return static_cast<const unsigned char*>(at) - host_.memory().data();
  }
  Buffers host_;
  std::byte* there_;
};

Status sum(Communicator& c, std::byte* data, size_t count, const CallOptions& options) {
  return c.all_reduce(data, data, count, DataType::kInt32, ReduceOp::kSum, options);
}

/// All of them on every rank, in a row; `body` enqueues them.
void check(const std::vector<Call>& calls, int size,
           const std::function<void(Rank&, std::vector<Twin>&)>& body) {
  const auto wanted = on_host(calls, size);
  on_gpu(size, [&](Rank& rank) {
    std::vector<Twin> twins;
    for (const Call& call : calls) twins.emplace_back(rank, call);
    rank.meet();
    body(rank, twins);
    rank.synchronize();
    expect_ok(rank->status(), "the communicator");
    for (size_t i = 0; i < calls.size(); ++i) {
      twins[i].expect_equal(rank, wanted[i][static_cast<size_t>(rank->rank())],
                            calls[i].to_string() + " on rank " + std::to_string(rank->rank()));
    }
  });
}

void enqueue(Rank& rank, const std::vector<Call>& calls, std::vector<Twin>& twins) {
  for (size_t i = 0; i < calls.size(); ++i) {
    expect_ok(issue(*rank, calls[i], twins[i], rank.options()), calls[i].to_string());
  }
}

TEST_CASE("On a GPU, every collective of a communicator gives what it gives on the host") {
  for (const int size : {2, 3, 8}) {
    const std::vector<Call> calls = every_collective(size, {0, 1, 7, 300, 20000});
    check(calls, size, [&](Rank& rank, std::vector<Twin>& twins) { enqueue(rank, calls, twins); });
  }
}

/// Replays of a graph of these calls, and launches, in turn.
void enqueue_and_replay(Rank& rank, const std::vector<Call>& calls, std::vector<Twin>& twins) {
  cudaGraph_t graph{};
  cudaGraphExec_t replayed{};
  must(cudaStreamBeginCapture(rank.stream(), cudaStreamCaptureModeThreadLocal), "capture");
  enqueue(rank, calls, twins);
  must(cudaStreamEndCapture(rank.stream(), &graph), "cudaStreamEndCapture");
  must(cudaGraphInstantiate(&replayed, graph, 0), "cudaGraphInstantiate");
  must(cudaGraphUpload(replayed, rank.stream()), "cudaGraphUpload");
  rank.synchronize();
  rank.meet();
  for (int i = 0; i < 4; ++i) {
    for (const Twin& twin : twins) twin.renew(rank);
    if (i % 2 == 0) {
      must(cudaGraphLaunch(replayed, rank.stream()), "cudaGraphLaunch");
    } else {
      enqueue(rank, calls, twins);
    }
  }
  rank.synchronize();
  rank.meet();
  must(cudaGraphExecDestroy(replayed), "cudaGraphExecDestroy");
  must(cudaGraphDestroy(graph), "cudaGraphDestroy");
}

TEST_CASE("On a GPU, a replayed graph and launches follow each other") {
  const std::vector<Call> calls = {
      {.collective = Collective::kAllReduce, .count = 2000},
      {.collective = Collective::kAllReduce, .count = 5, .algorithm = Algorithm::kOneShot},
      {.collective = Collective::kAllGather, .count = 40},
      {.collective = Collective::kBarrier, .count = 0}};
  check(calls, 3,
        [&](Rank& rank, std::vector<Twin>& twins) { enqueue_and_replay(rank, calls, twins); });
}

// Ranks pretend to be on several hosts: pinned memory between the kernels and the thread that carries.
TEST_CASE("On a GPU, ranks of several hosts give what they give on the host, in graphs too") {
  if (const auto opened = transport::ucx::open({.slot_bytes = 64}); !opened.ok()) {
    WARN("not tested: " << opened.status().to_string());
    return;
  }
  const std::vector<Call> calls = {
      {.collective = Collective::kAllReduce, .count = 3'000'000},
      {.collective = Collective::kAllReduce, .count = 5, .op = ReduceOp::kMax},
      {.collective = Collective::kBroadcast, .count = 70'000, .root = 1},
      {.collective = Collective::kAllToAll, .count = 4000},
      {.collective = Collective::kReduceScatter, .count = 1000},
      {.collective = Collective::kBarrier, .count = 0}};
  for (const std::vector<int>& hosts : {std::vector<int>{0, 1}, std::vector<int>{0, 0, 1, 1}}) {
    const Pretended pretended(hosts);
    check(calls, static_cast<int>(hosts.size()), [&](Rank& rank, std::vector<Twin>& twins) {
      expect(rank->hosts() == hosts, "the ranks are on other hosts");
      enqueue_and_replay(rank, calls, twins);
    });
  }
}

TEST_CASE("On a GPU, two communicators of the same ranks do not disturb each other") {
  on_gpu(3, [](Rank& rank) {
    auto second = rank->duplicate();
    expect_ok(second.status(), "duplicate");
    {
      const std::vector<int32_t> mine(5000, rank->rank() + 1);
      std::byte* const a = rank.give(mine.data(), mine.size() * 4);
      std::byte* const b = rank.give(mine.data(), mine.size() * 4);
      rank.meet();
      for (int i = 0; i < 3; ++i) {
        expect_ok(sum(*rank, a, mine.size(), rank.options()), "the first");
        expect_ok(sum(*second, b, mine.size(), rank.options()), "the second");
      }
      for (const std::byte* result : {a, b}) {
        std::vector<int32_t> found(mine.size());
        rank.take(found.data(), result, found.size() * 4);
        expect(found == std::vector<int32_t>(mine.size(), 6 * 3 * 3), "a wrong sum");
      }
    }
    rank.meet();
  });
}

/// Three ranks of which `absent` does something else, until all of them report `code` with `words`.
void check_failure(Code code, const std::string& words, const CallOptions& call,
                   const std::function<void(Rank&, std::byte*)>& absent) {
  on_gpu(3, [&](Rank& rank) {
    const std::vector<int32_t> mine(5000, 1);
    std::byte* const data = rank.give(mine.data(), mine.size() * 4);
    rank.meet();
    if (rank->rank() != 2) {
      CallOptions options = rank.options();
      options.stall_timeout = call.stall_timeout;
      const Status enqueued = sum(*rank, data, mine.size(), options);
      expect(enqueued.ok() || enqueued.code() == code, enqueued.to_string());
    }
    rank.meet();
    if (rank->rank() == 2) absent(rank, data);
    Status status;
    testing::await("an error", [&] { return !(status = rank->status()).ok(); });
    expect(status.code() == code, status.to_string());
    expect(status.message().find(words) != std::string::npos, status.to_string());
    rank.synchronize();  // its kernel has ended
  });
}

TEST_CASE("On a GPU, communicators' ranks that disagree learn what each called") {
  check_failure(Code::kMismatch, "rank 2 called all_reduce(int32, sum, count 50)",
                {.stall_timeout = std::chrono::seconds(5)}, [](Rank& rank, std::byte* data) {
                  expect_ok(sum(*rank, data, 50, rank.options()), "enqueueing");
                });
}

TEST_CASE("On a GPU, a rank that does not call is named when the time is over") {
  check_failure(Code::kTimeout, "has not called it",
                {.stall_timeout = std::chrono::milliseconds(300)}, [](Rank&, std::byte*) {});
}

TEST_CASE("On a GPU, abort() ends the kernels of all ranks") {
  check_failure(Code::kAborted, "rank 2 aborted: enough",
                {.stall_timeout = std::chrono::seconds(30)},
                [](Rank& rank, std::byte*) { rank->abort("enough"); });
}

}  // namespace
}  // namespace rondo::device::test
