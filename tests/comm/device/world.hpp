// Ranks with communicators on the fake CUDA runtime (fake_gpu.hpp). Threads make the communicators;
// then one thread drives all of them: no call may wait for a peer, so it must get through.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/bootstrap/identity/host.hpp"
#include "tests/comm/communicator/await.hpp"
#include "tests/comm/communicator/world.hpp"
#include "tests/comm/device/fake_gpu.hpp"

namespace rondo::device::test {

using testing::TempDirectory;

/// While it lives, open_backend() gives `gpu`.
class Installed {
 public:
  explicit Installed(std::shared_ptr<FakeGpu> gpu, size_t program_bytes = size_t{1} << 20) {
    replace_backend(
        [gpu, program_bytes]() -> Result<GpuBackend> { return gpu->backend(gpu, program_bytes); });
  }
  ~Installed() { replace_backend({}); }
  Installed(const Installed&) = delete;
  Installed& operator=(const Installed&) = delete;
};

/// testing::world_config(), also where ranks pretend to be on several hosts.
inline Config config_of(const TempDirectory& directory, int rank, int size, const Config& config) {
  Config own = testing::world_config(directory.path(), rank, size, config);
  if (comm::pretend_host != nullptr) own.rendezvous = testing::loopback_place(directory.path());
  return own;
}

/// While it lives, ranks of communicators to come pretend to be on these hosts, with UCX over
/// loopback between them. A thread stays where the rank of its first communicator is, whichever
/// ranks its further ones have.
class Pretended {
 public:
  explicit Pretended(std::vector<int> hosts) : before_(comm::pretend_host) {
    map() = std::move(hosts);
    ++worlds();
    setenv("UCX_TLS", "tcp", 1);
    setenv("UCX_NET_DEVICES", "lo", 1);
    comm::pretend_host = [](int rank, comm::RankHost& here) {
      thread_local int world = 0, host = 0;
      if (std::exchange(world, worlds()) != worlds()) host = map().at(static_cast<size_t>(rank));
      here.name = "h" + std::to_string(host);
      here.boot_id = here.name;
    };
  }
  ~Pretended() { comm::pretend_host = before_; }
  Pretended(const Pretended&) = delete;
  Pretended& operator=(const Pretended&) = delete;

 private:
  static std::vector<int>& map() {
    static std::vector<int> hosts;  // [rank]
    return hosts;
  }
  static int& worlds() {
    static int count = 0;
    return count;
  }
  void (*const before_)(int, comm::RankHost&);
};

/// Fails the test at `at` unless a call succeeded.
inline void must(const Status& status, std::source_location at = std::source_location::current()) {
  INFO("line " << at.line() << ": " << status.to_string());
  REQUIRE(status.ok());
}

inline bool says(const Status& status, const std::string& text,
                 std::source_location at = std::source_location::current()) {
  INFO("line " << at.line() << ": " << status.to_string());
  const bool found = status.message().find(text) != std::string::npos;
  CHECK(found);
  return found;
}

/// A call failed with this code, and each of the texts is in its message.
inline void check_failed(const Status& status, Code code,
                         const std::vector<std::string>& texts = {},
                         std::source_location at = std::source_location::current()) {
  INFO("line " << at.line() << ": " << status.to_string());
  CHECK(status.code() == code);
  for (const std::string& text : texts) says(status, text, at);
}

/// The same for bodies of ranks.
inline void expect_failed(const Status& status, Code code, const std::string& text = "") {
  testing::expect(status.code() == code, status.to_string());
  testing::expect_contains(status.message(), text);
}

/// Runs body(rank) on a thread for each rank, at once.
inline void on_threads(int ranks, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

/// Small slots, so that little data reaches many rounds.
inline Config small_config(std::chrono::milliseconds timeout = {}) {
  Config config;
  config.stall_timeout = timeout;
  config.channels = 2;
  config.slots = 4;
  config.slot_bytes = 256;
  config.device = 0;
  return config;
}

inline Config roomy_config() {
  Config config = small_config();
  config.slot_bytes = 4096;
  return config;
}

class World {
 public:
  /// Ranks take turns over the GPU's devices, and have a stream each.
  World(std::shared_ptr<FakeGpu> gpu, int size, const Config& config = small_config())
      : gpu_(std::move(gpu)), made_(static_cast<size_t>(size)) {
    const TempDirectory directory;
    const auto devices = static_cast<int>(gpu_->devices.size());
    on_threads(size, [&](int rank) {
      Config own = config_of(directory, rank, size, config);
      own.device = rank % devices;
      auto communicator = Communicator::create(own);
      made_[rank].status = communicator.status();
      if (communicator.ok()) made_[rank].communicator = std::move(*communicator);
    });
    for (Made& made : made_) made.stream = add_stream();
  }
  ~World() {
    // At once, as ranks do: each waits a while for other hosts' last words.
    on_threads(size(), [this](int rank) { leave(rank); });
    for (const Stream stream : streams_) {
      if (stream != nullptr) (void)gpu_->destroy_stream(stream);
    }
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int size() const { return static_cast<int>(made_.size()); }
  const Status& created(int rank) const { return made_[rank].status; }
  bool all_created() const {
    return std::all_of(made_.begin(), made_.end(),
                       [](const Made& made) { return made.communicator.has_value(); });
  }
  Communicator& operator[](int rank) { return *made_[rank].communicator; }
  Stream stream(int rank) const { return made_[rank].stream; }
  CallOptions on_stream(int rank, Algorithm algorithm = Algorithm::kAuto) const {
    return {.algorithm = algorithm, .stream = stream(rank)};
  }
  /// A further one, which ends with the world; the default stream if that call of CUDA is to fail.
  Stream add_stream() {
    const auto stream = gpu_->create_stream();
    return streams_.emplace_back(stream.ok() ? *stream : nullptr);
  }
  void leave(int rank) { made_[rank].communicator.reset(); }
  /// Until all streams are through.
  void synchronize() {
    for (const Stream stream : streams_) gpu_->drain(stream);
  }

 private:
  struct Made {
    std::optional<Communicator> communicator = {};
    Status status = {};
    Stream stream = nullptr;
  };
  std::shared_ptr<FakeGpu> gpu_;
  std::vector<Made> made_;
  std::vector<Stream> streams_;
};

/// open_backend() gives this GPU. At the end nothing is left on it, and no kernel has touched what
/// was not its own.
class OnGpu {
 public:
  explicit OnGpu(std::shared_ptr<FakeGpu> own, size_t program_bytes = size_t{1} << 20)
      : gpu(std::move(own)), installed_(std::in_place, gpu, program_bytes) {}
  ~OnGpu() {
    installed_.reset();
    CHECK(gpu->alive() == 0);
    CHECK(gpu->freed_while_imported == 0);
    CHECK(gpu->trespasses == 0);
  }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

  const std::shared_ptr<FakeGpu> gpu;

 private:
  std::optional<Installed> installed_;
};

struct Setup {
  std::shared_ptr<FakeGpu> gpu = std::make_shared<FakeGpu>();
  Config config = small_config();
  size_t program_bytes = size_t{1} << 20;
};

/// Ranks that all have a communicator, on a GPU of their own.
class Rig : public OnGpu, public World {
 public:
  explicit Rig(int ranks, const Setup& setup = {})
      : OnGpu(setup.gpu, setup.program_bytes), World(gpu, ranks, setup.config) {
    for (int rank = 0; rank < ranks; ++rank) must(created(rank));
  }
};

/// A FakeGpu of several devices.
inline std::shared_ptr<FakeGpu> gpus(int count = 2) { return std::make_shared<FakeGpu>(count); }

/// Ranks that pretend to be on these hosts.
struct HostsRig : Pretended, Rig {
  explicit HostsRig(const std::vector<int>& hosts, const Setup& setup = {.gpu = gpus()})
      : Pretended(hosts), Rig(static_cast<int>(hosts.size()), setup) {}
};

inline void check_all_ok(World& world) {
  for (int rank = 0; rank < world.size(); ++rank) {
    INFO("rank " << rank << ": " << world[rank].status().to_string());
    CHECK(world[rank].status().ok());
  }
}

/// Waits until all streams are through; then no rank has an error.
inline void finish(World& world) {
  world.synchronize();
  check_all_ok(world);
}

/// All ranks have the same error, or will have it soon: one may learn of it by another's status().
inline void check_all_failed(World& world, Code code, const std::vector<std::string>& texts,
                             std::source_location at = std::source_location::current()) {
  testing::await("every rank knows the error", [&] {
    bool all_know = true;
    for (int rank = 0; rank < world.size(); ++rank) all_know &= !world[rank].status().ok();
    return all_know;
  });
  for (int rank = 0; rank < world.size(); ++rank) {
    check_failed(world[rank].status(), code, texts, at);
  }
}

/// What a stream captures while body() runs. It ends before its stream.
class Captured {
 public:
  Captured(FakeGpu& gpu, Stream stream, const std::function<void()>& body)
      : gpu_(gpu), stream_(stream) {
    must(gpu_.begin_capture(stream));
    body();
    graph_ = gpu_.end_capture(stream).value();
  }
  ~Captured() { CHECK(gpu_.destroy_graph(graph_).ok()); }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;
  void replay() { gpu_.replay(graph_, stream_); }

 private:
  FakeGpu& gpu_;
  const Stream stream_;
  FakeGpu::Graph graph_ = nullptr;
};

/// One of each rank.
inline std::list<Captured> capture_all(Rig& world, const std::function<void(int rank)>& body) {
  std::list<Captured> graphs;
  for (int rank = 0; rank < world.size(); ++rank) {
    graphs.emplace_back(*world.gpu, world.stream(rank), [&] { body(rank); });
  }
  return graphs;
}
inline void replay_all(std::list<Captured>& graphs) {
  for (Captured& graph : graphs) graph.replay();
}

/// One run of a test in which a call of CUDA is to fail.
struct Failing {
  int call;  // the number of the one that fails, from begin() on; -1: none
  int calls = 0;
  bool told = false, right = true;

  void begin(FakeGpu& gpu) const {
    gpu.calls = 0;
    gpu.fail_at = call;
  }
  void end(FakeGpu& gpu) {
    calls = gpu.calls;
    gpu.fail_at = -1;
  }
  void hear(const Status& status) { told = told || !status.ok(); }
};

/// Runs `body` once without a failure, and then with a failure of each call, of which there are more
/// than `least`: somebody is told, or the result is right.
inline void fail_each_call(int least, const std::function<void(Failing&)>& body) {
  int calls = 0;
  for (int call = -1; call < calls; ++call) {
    INFO("call " << call << " of " << calls);
    Failing failing{.call = call};
    body(failing);
    CHECK((failing.told || failing.right));
    if (call >= 0) continue;
    CHECK_FALSE(failing.told);
    calls = failing.calls;
    REQUIRE(calls > least);
  }
}

using Ints = std::vector<int32_t>;

/// Adds up all ranks' integers.
inline Status sum(Communicator& c, const int32_t* in, int32_t* out, size_t count,
                  const CallOptions& options) {
  return c.all_reduce(in, out, count, DataType::kInt32, ReduceOp::kSum, options);
}
inline Status sum(Communicator& c, Ints& data, const CallOptions& options) {
  return sum(c, data.data(), data.data(), data.size(), options);
}
inline Status sum(World& world, int rank, Ints& data) {
  return sum(world[rank], data, world.on_stream(rank));
}

}  // namespace rondo::device::test
