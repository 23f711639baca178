// One rank of a communicator on a GPU: turns operations into launches on the caller's stream, and
// what kernels report into the error that all ranks return. It never waits for a peer, and for its
// own GPU only where it says so. ../README.md and README.md say how the parts fit.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/bootstrap/bootstrap.hpp"
#include "comm/device/backend.hpp"
#include "comm/device/premises.hpp"
#include "comm/device/programs.hpp"
#include "comm/device/residency.hpp"
#include "comm/engine/device_group.hpp"
#include "comm/engine/lanes.hpp"
#include "comm/engine/operation.hpp"
#include "comm/recorder/watch.hpp"
#include "comm/tuner/profile.hpp"
#include "transport/cuda_ipc/layout.hpp"
#include "transport/cuda_ipc/placement.hpp"
#include "transport/cuda_ipc/segments.hpp"

namespace rondo::device {

/// What a communicator is made with; all but `device` is the same on every rank.
struct Setup {
  int device;
  int channels;                             // 0: a few
  uint32_t slots;                           // 0: as the profile says
  size_t slot_bytes;                        // likewise
  std::optional<tuner::LinkProfile> links;  // given by a file; else a built-in one
};

/// Thread rule: the communicator's, apart from check() and abort().
class Runner {
 public:
  /// Meets the others: every rank calls it with the same `control`, zeroed memory of
  /// Premises::control_bytes(), and is ready for them before they have all met again. The other
  /// references outlive it.
  static Result<std::unique_ptr<Runner>> create(comm::Bootstrap& bootstrap, recorder::Board& board,
                                                recorder::Watch& watch, transport::Segment control,
                                                const Setup& setup);
  /// Waits for this rank's kernels, at most `longest_ns` and then, told to give up, a few seconds.
  /// Should they not even end then, what they use stays for ever.
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;
  void set_longest_wait(int64_t ns) { longest_wait_ns_ = ns; }

  const transport::cuda_ipc::Shape& shape() const { return shape_; }
  /// Of collectives.
  int channels() const { return static_cast<int>(shape_.channels - shape_.message_channels); }
  const tuner::LinkProfile& profile() const { return profile_; }
  /// Whether peers reach any buffer: they are threads of one process.
  bool reaches_buffers() const { return reaches_buffers_; }
  std::string describe() const;

  /// What follows, up to run(), is a group: one launch, as far as it is on one stream and fits. The
  /// operation is the `sequence`-th of this rank; messages come before operations, all at once.
  /// What goes wrong from there on is found by check(). Errors are the communicator's.
  Status add(std::span<const engine::Transfer> messages);
  /// Before a group: room for the programs of all its operations, as far as there can be. Waits, if
  /// it must, for what this rank has launched.
  Status make_room(std::span<const std::unique_ptr<engine::Operation>> operations);
  Status add(const engine::Operation& operation, uint64_t sequence);
  Status run();
  /// Of a call on that stream which must not be made; nothing has happened, and the communicator
  /// works on.
  Status refusal(void* stream) const;
  /// The same of a group's messages.
  Status refusal(std::span<const engine::Transfer> messages) const;

  /// What has gone wrong, anywhere, as far as is known; it is then on the board. `thorough`: asks
  /// CUDA, and after processes, too. Any thread.
  Status check(bool thorough);
  /// Kernels of all ranks give up. Any thread.
  void abort() const { premises_->raise_aborts(); }

  uint64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }

 private:
  Runner(Backend backend, comm::Bootstrap& bootstrap, recorder::Board& board,
         recorder::Watch& watch, int device)
      : backend_(std::move(backend)),
        cuda_(*backend_.cuda),
        bootstrap_(bootstrap),
        board_(board),
        watch_(watch),
        device_(device) {}
  Status meet(transport::Segment control, const Setup& setup);
  Status settle(const Setup& setup, std::span<const transport::cuda_ipc::Place> places,
                int at_once);
  Status connect(const transport::cuda_ipc::Place& own);
  Status connect_through_host();
  struct Bytes {
    const std::byte *begin, *end;
  };
  Status put(const engine::Operation& operation, uint64_t sequence);
  /// Whether the operation has to do with buffers that the launch which is begun writes, or writes
  /// what that reads. A channel goes on to the next operation by itself, so such two would not be
  /// one after the other in one launch.
  bool must_wait_for_begun(Bytes in, Bytes out) const;
  /// Begins a launch on the stream, unless the one that is begun is on it, and has room.
  Status begin_launch(void* stream);
  Status launch();
  /// Waits while too many launches are under way.
  Status keep_bounded(Stream stream);
  Result<const Uploaded*> upload(const engine::Operation& operation, const engine::Plan& plan);
  /// Behind this rank's last operation, whatever stream it is on; graphs have an order of their
  /// own.
  Status follow(Stream stream, uint64_t capture);
  Result<bool> is_idle() const;
  /// False: not within that time, or, unless `despite_errors`, the communicator has failed.
  bool await_idle(int64_t longest_ns, bool despite_errors) const;
  Status find_dead(uint64_t sequence);
  /// On the board, and kernels of all ranks give up.
  Status raise(const Status& status) const;

  const Backend backend_;
  CudaCalls& cuda_;
  comm::Bootstrap& bootstrap_;
  recorder::Board& board_;
  recorder::Watch& watch_;
  const int device_;
  transport::cuda_ipc::Shape shape_;
  tuner::LinkProfile profile_;
  transport::cuda_ipc::Reach reach_{};  // the slowest way between two ranks
  bool reaches_buffers_ = true;
  bool shares_device_ = false;  // with another rank of this process
  Claim claim_;
  std::shared_ptr<Premises> premises_;
  transport::cuda_ipc::Segments* segments_ = nullptr;  // kept by premises_; null: in host memory
  std::vector<std::byte*> bases_;                      // by rank: its segment
  Stream copies_ = nullptr;
  Event launched_ = nullptr;  // recorded behind every launch that is not captured
  Event captured_ = nullptr;  // behind every one that is
  Event marks_[2] = {};       // by turns, once in a while, before one that is not
  uint64_t launches_ = 0;     // that are not
  std::unique_ptr<Programs> programs_;
  int64_t longest_wait_ns_ = 0;

  /// The launch that is begun.
  struct Begun {
    Stream stream;
    uint64_t capture;
    int blocks = 0;
    engine::DeviceGroup group{};
    std::vector<Bytes> read{}, written{};  // what it does with this rank's buffers
  };
  std::optional<Begun> begun_;
  struct Last {
    std::optional<Stream> stream;
    uint64_t capture = 0;
  };
  Last last_launched_, last_captured_;
  std::atomic<bool> has_launched_{false};
  std::atomic<uint64_t> sequence_{0};  // of the last operation
  std::atomic<uint64_t> bytes_sent_{0};
};

/// What kernels have reported, in words, of the rank and for the reason that explains most; ok:
/// they have reported nothing. `board` tells which calls they were.
Status explain_reports(const Premises& premises, uint32_t channels, const recorder::Board& board,
                       recorder::Watch& watch);

}  // namespace rondo::device
