// Ranks with communicators on a stand-in for GPUs (fake_gpu.hpp). Threads make the communicators;
// then one thread drives all of them: no call may wait for a peer, so it must get through.
#pragma once

#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/bootstrap/host.hpp"
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

inline bool says(const Status& status, const std::string& text) {
  INFO(status.to_string());
  const bool found = status.message().find(text) != std::string::npos;
  CHECK(found);
  return found;
}

/// Small slots, so that little data reaches many rounds.
inline Config small_config() {
  Config config;
  config.channels = 2;
  config.slots = 4;
  config.slot_bytes = 256;
  config.device = 0;
  return config;
}

class World {
 public:
  /// Ranks take turns over the GPU's devices, and have a stream each.
  World(std::shared_ptr<FakeGpu> gpu, int size, const Config& config = small_config())
      : gpu_(std::move(gpu)), made_(static_cast<size_t>(size)) {
    const TempDirectory directory;
    const auto devices = static_cast<int>(gpu_->devices.size());
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        Config own = config_of(directory, rank, size, config);
        own.device = rank % devices;
        auto communicator = Communicator::create(own);
        made_[static_cast<size_t>(rank)].status = communicator.status();
        if (communicator.ok()) {
          made_[static_cast<size_t>(rank)].communicator = std::move(*communicator);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (Made& made : made_) {
      // Not one of the calls that a test lets fail.
      auto stream = gpu_->FakeGpu::create_stream();
      if (stream.ok()) made.stream = *stream;
    }
  }
  ~World() {
    // At once, as ranks do: each waits a while for other hosts' last words.
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size(); ++rank) threads.emplace_back([this, rank] { leave(rank); });
    for (std::thread& thread : threads) thread.join();
    for (Made& made : made_) {
      if (made.stream != nullptr) (void)gpu_->destroy_stream(made.stream);
    }
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int size() const { return static_cast<int>(made_.size()); }
  const Status& created(int rank) const { return made_[static_cast<size_t>(rank)].status; }
  bool all_created() const {
    for (const Made& made : made_) {
      if (!made.communicator) return false;
    }
    return true;
  }
  Communicator& operator[](int rank) { return *made_[static_cast<size_t>(rank)].communicator; }
  Stream stream(int rank) const { return made_[static_cast<size_t>(rank)].stream; }
  CallOptions on_stream(int rank) const {
    CallOptions options;
    options.stream = stream(rank);
    return options;
  }
  void leave(int rank) { made_[static_cast<size_t>(rank)].communicator.reset(); }
  /// Until all streams are through.
  void synchronize() {
    for (const Made& made : made_) gpu_->drain(made.stream);
  }

 private:
  struct Made {
    std::optional<Communicator> communicator = {};
    Status status = {};
    Stream stream = nullptr;
  };
  std::shared_ptr<FakeGpu> gpu_;
  std::vector<Made> made_;
};

/// One collective as a rank calls it, with buffers for any of them.
struct Call {
  Collective collective;
  size_t count;
  DataType type = DataType::kInt32;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  Algorithm algorithm = Algorithm::kAuto;
  bool in_place = false;

  std::string to_string() const {
    return std::string(name(collective)) + " of " + std::to_string(count) + " " +
           std::string(name(type)) + ", " + std::string(name(op)) + ", by " +
           std::string(name(algorithm)) + (in_place ? ", in place" : "");
  }
};

/// In and Out of one rank, as large as any collective needs them; in place they are one.
class Buffers {
 public:
  Buffers(const Call& call, int rank, int size)
      : call_(call), bytes_(call.count * size_of(call.type) * static_cast<size_t>(size)) {
    const Form form = form_of(call.collective);
    const size_t block = bytes_ / static_cast<size_t>(size) * static_cast<size_t>(rank);
    const bool wide_in = form.in == Holds::kEach && form.out == Holds::kOne;
    const bool wide_out = form.in == Holds::kOne && form.out == Holds::kEach;
    in_ = wide_out && call.in_place ? block : 0;
    out_ = !call.in_place ? bytes_ : wide_in ? block : 0;
    fill(rank);
  }
  /// Once more, at the same place.
  void fill(int rank) {
    memory_.assign(2 * bytes_ + 1, 0xa5);
    const size_t elements = bytes_ / size_of(call_.type);
    for (size_t i = 0; i < elements; ++i) {
      testing::store(memory_.data() + i * size_of(call_.type), call_.type,
                     testing::contribution(rank, i, call_.op));
    }
  }
  const void* in() const { return memory_.data() + in_; }
  void* out() { return memory_.data() + out_; }
  const std::vector<unsigned char>& memory() const { return memory_; }

 private:
  Call call_;
  size_t bytes_, in_ = 0, out_ = 0;
  std::vector<unsigned char> memory_;
};

/// `buffers`: has in() and out().
template <class Memory>
Status issue(Communicator& c, const Call& call, Memory& buffers, CallOptions options = {}) {
  options.algorithm = call.algorithm;
  if (call.op == ReduceOp::kScaledSum && form_of(call.collective).reduces) {
    options.factor = c.rank() + 1;
  }
  const void* in = buffers.in();
  void* out = buffers.out();
  switch (call.collective) {
    case Collective::kAllReduce:
      return c.all_reduce(in, out, call.count, call.type, call.op, options);
    case Collective::kReduceScatter:
      return c.reduce_scatter(in, out, call.count, call.type, call.op, options);
    case Collective::kAllGather:
      return c.all_gather(in, out, call.count, call.type, options);
    case Collective::kBroadcast:
      return c.broadcast(in, out, call.count, call.type, call.root, options);
    case Collective::kReduce:
      return c.reduce(in, out, call.count, call.type, call.root, call.op, options);
    case Collective::kGather:
      return c.gather(in, out, call.count, call.type, call.root, options);
    case Collective::kScatter:
      return c.scatter(in, out, call.count, call.type, call.root, options);
    case Collective::kAllToAll:
      return c.all_to_all(in, out, call.count, call.type, options);
    case Collective::kInclusiveScan:
      return c.inclusive_scan(in, out, call.count, call.type, call.op, options);
    case Collective::kExclusiveScan:
      return c.exclusive_scan(in, out, call.count, call.type, call.op, options);
    default:
      return c.barrier(options);
  }
}

/// Runs body(communicator) on ranks that are threads, with buffers in the host's memory.
inline void run_on_host(int size, const std::function<void(Communicator&)>& body,
                        Config config = {}) {
  config.device = -1;
  const TempDirectory directory;
  testing::require_all_ok(testing::run_ranks(testing::How::kThreads, size, [&](int rank) {
    auto made = Communicator::create(config_of(directory, rank, size, config));
    testing::expect_ok(made.status(), "create");
    body(*made);
  }));
}

/// What the same calls leave in the host's memory: [call][rank].
inline std::vector<std::vector<Buffers>> on_host(const std::vector<Call>& calls, int size) {
  std::vector<std::vector<Buffers>> all(calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    for (int rank = 0; rank < size; ++rank) all[i].emplace_back(calls[i], rank, size);
  }
  run_on_host(size, [&](Communicator& c) {
    for (size_t i = 0; i < calls.size(); ++i) {
      testing::expect_ok(issue(c, calls[i], all[i][static_cast<size_t>(c.rank())]),
                         calls[i].to_string());
    }
  });
  return all;
}

/// Enqueues all calls on all ranks, nothing in between; then compares.
inline void compare(World& world, const std::vector<Call>& calls) {
  const auto wanted = on_host(calls, world.size());
  std::vector<std::vector<Buffers>> found(calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    for (int rank = 0; rank < world.size(); ++rank) {
      found[i].emplace_back(calls[i], rank, world.size());
    }
  }
  for (int rank = 0; rank < world.size(); ++rank) {
    for (size_t i = 0; i < calls.size(); ++i) {
      INFO(calls[i].to_string() << ", rank " << rank);
      const Status status =
          issue(world[rank], calls[i], found[i][static_cast<size_t>(rank)], world.on_stream(rank));
      INFO(status.to_string());
      REQUIRE(status.ok());
    }
  }
  world.synchronize();
  for (int rank = 0; rank < world.size(); ++rank) {
    INFO(world[rank].status().to_string());
    CHECK(world[rank].status().ok());
    for (size_t i = 0; i < calls.size(); ++i) {
      INFO(calls[i].to_string() << ", rank " << rank << " of " << world.size());
      const auto r = static_cast<size_t>(rank);
      CHECK((found[i][r].memory() == wanted[i][r].memory()));
    }
  }
}

inline std::vector<Call> every_collective(int size) {
  std::vector<Call> calls;
  for (const Collective collective :
       {Collective::kAllReduce, Collective::kBarrier, Collective::kReduceScatter,
        Collective::kAllGather, Collective::kBroadcast, Collective::kReduce, Collective::kGather,
        Collective::kScatter, Collective::kAllToAll, Collective::kInclusiveScan,
        Collective::kExclusiveScan}) {
    for (const size_t count : {0, 1, 7, 300}) {
      for (const bool in_place : {false, true}) {
        calls.push_back({.collective = collective,
                         .count = count,
                         .type = count % 2 == 0 ? DataType::kInt32 : DataType::kFloat32,
                         .op = count == 7 ? ReduceOp::kMax : ReduceOp::kSum,
                         .root = size / 2,
                         .in_place = in_place});
      }
    }
  }
  return calls;
}

}  // namespace rondo::device::test
