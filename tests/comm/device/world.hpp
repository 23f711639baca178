// Ranks with communicators on a stand-in for GPUs (fake_gpu.hpp). Threads make the communicators;
// then one thread drives all of them: no call may wait for a peer, so it must get through.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

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
        Config own = testing::world_config(directory.path(), rank, size, config);
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
    for (int rank = 0; rank < size(); ++rank) leave(rank);
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

/// What the same calls leave in the host's memory: [call][rank].
inline std::vector<std::vector<Buffers>> on_host(const std::vector<Call>& calls, int size) {
  std::vector<std::vector<Buffers>> all(calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    for (int rank = 0; rank < size; ++rank) all[i].emplace_back(calls[i], rank, size);
  }
  testing::require_all_ok(testing::run_world(testing::How::kThreads, size, [&](Communicator& c) {
    for (size_t i = 0; i < calls.size(); ++i) {
      testing::expect_ok(issue(c, calls[i], all[i][static_cast<size_t>(c.rank())]),
                         calls[i].to_string());
    }
  }));
  return all;
}

}  // namespace rondo::device::test
