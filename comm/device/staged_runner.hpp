// One rank of a communicator on GPUs of several hosts: the host's engine carries everything out, on
// images of the buffers in the host's memory. Knows nothing of algorithms and links.
//
// A call becomes, on the caller's stream, an event, and then a wait for the word `done` to reach
// the call's number; it returns at once. A thread of the communicator takes the calls in their order:
// it awaits the event, copies down what the call reads, runs the host's operation, copies up what
// that has written, and sets the word. So neither the caller nor a thread of CUDA ever waits for a
// peer. Whatever happens, every number is reached: an error is on the board then.
//
// A call may be carried out by others on its stream (StreamCarrier): it has a number and its turn on
// the board like the rest.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/board/board.hpp"
#include "comm/device/backend.hpp"
#include "comm/engine/operation.hpp"
#include "comm/health/watch.hpp"
#include "comm/host/runner.hpp"

namespace rondo::device {

struct StagedSettings {
  int device;
  bool shares_device;  // with another rank of this process
  int64_t longest_wait_ns;
  /// How the host carries out a call that is not in place. Any thread.
  std::function<Result<std::shared_ptr<const engine::Prepared>>(const board::Call&)> prepare;
};

/// Carries calls out on their streams, beside a staged runner that gives them their turn.
class StreamCarrier {
 public:
  virtual ~StreamCarrier() = default;
  /// Puts the call on its stream; waits for no peer. An error is the communicator's.
  virtual Status put(const engine::Operation& operation) = 0;
  /// Why the calls that have been put fail; ok: they do not. Any thread.
  virtual Status look() = 0;
  /// The communicator has failed: ends the waits of what has been put. Any thread.
  virtual void abort(const Status& why) = 0;
  /// For whose data between hosts this rank waits, by the communicator's numbers, or -1; and since
  /// when. Any thread.
  struct AwaitedRank {
    int rank;
    int64_t since_ns;
  };
  virtual AwaitedRank awaited() const = 0;
};

/// How a call is cut that the staging memory does not hold: a piece is the same elements of every
/// block of the buffers, and goes by the algorithm of the whole. So each element stays in its chunk,
/// and the result keeps its bits. Equal on all ranks, whatever they do in the call.
struct StagedCut {
  Holds in, out;
  size_t element_bytes;
  size_t blocks, block;  // of a buffer with all of them: their number, and the elements of each
  size_t total;          // elements of all, of which the last blocks may lack some
  size_t unit;           // what blocks of a piece are multiples of
  size_t piece;          // elements of each block, at a time; 0: the call is not cut

  size_t pieces() const { return (block + piece - 1) / piece; }
  /// Of an image with `count` elements of each block.
  size_t bytes(Holds holds, size_t count) const {
    return (holds == Holds::kOne ? count : blocks * count) * element_bytes;
  }
};

/// Thread rule: the communicator's. `runner` is this one's alone, from create() to the end.
class StagedRunner {
 public:
  /// The references outlive it.
  static Result<std::unique_ptr<StagedRunner>> create(engine::Runner& runner, board::Board& board,
                                                      board::Watch& watch,
                                                      const StagedSettings& settings);
  /// Waits for what has been enqueued, at most the longest wait; then the communicator fails, and
  /// it waits some seconds more for the streams to go on, and for copies. Whichever of them does
  /// not end, the memory that it uses is never freed.
  ~StagedRunner();
  StagedRunner(const StagedRunner&) = delete;
  StagedRunner& operator=(const StagedRunner&) = delete;

  /// From now on the thread calls `note` when the data of a call go over the network, and when they
  /// have. REQUIRES: no call is under way.
  void note_stages(std::function<void(bool begins)> note) { note_stage_ = std::move(note); }

  std::string describe() const;
  /// Why a call on that stream is refused, else ok.
  Status refusal(void* stream) const;
  /// The same of a group, whose streams may be captured.
  Status refusal(const std::list<engine::Operation>& operations,
                 const std::list<engine::Transfer>& messages) const;

  /// Takes a group and puts it on the streams of its calls: its messages begin together, then its
  /// operations follow each other. Refuses what is captured; any other error is the communicator's.
  /// With `kMostInFlight` calls that streams have not passed it waits for the first of them.
  Status enqueue(std::list<engine::Operation>& operations, std::list<engine::Transfer>& messages);
  /// A call that `carrier`, which outlives this, puts on the call's stream, in the order of all
  /// calls. While it is under way, the thread looks after it and after the other ranks.
  Status enqueue(const engine::Operation& operation, StreamCarrier& carrier);
  /// An operation on the host's memory, after everything that has been enqueued. Blocks.
  Status run_on_host(engine::Operation& operation);

 private:
  static constexpr size_t kMostInFlight = 256;
  struct Enqueued {
    uint32_t number = 0;
    std::vector<Event> ready{};  // of every stream: what comes before the call has ended
    std::list<engine::Operation> operations{};
    std::list<engine::Transfer> messages{};
    StreamCarrier* carrier = nullptr;  // of the only operation; `ready`: it has ended
    Status put{};                      // by it
    engine::Operation* on_host = nullptr;
    std::promise<Status> outcome{};  // of on_host
  };
  /// A part of a buffer and of its image.
  struct StagedPart {
    std::byte *device, *host;
    size_t bytes;
  };

  StagedRunner(GpuBackend backend, engine::Runner& runner, board::Board& board, board::Watch& watch,
               const StagedSettings& settings);
  Status open();
  Status try_wait();
  Status put(std::list<engine::Operation>& operations, std::list<engine::Transfer>& messages,
             std::span<void* const> streams);
  Status put(const engine::Operation& operation, StreamCarrier& carrier);
  Status make_wait(void* stream, uint32_t number);
  Status await_room();
  bool await_calls();
  void recycle_passed();
  Result<Event> take_event();
  void give_events(std::span<const Event> events);
  uint32_t push(std::unique_ptr<Enqueued> call);

  /// A second thread, which never calls CUDA: fails the communicator, and lets streams go on, when the
  /// first does not come back from a call of CUDA's. A caller's thread may hold the context's lock, in
  /// a call that waits for a stream, which waits for the first thread.
  void guard();

  // The thread's.
  void work();
  Status carry_out(Enqueued& call);
  Status run(engine::Operation& operation);
  Status carry_out(engine::Operation operation);
  Status carry_out(std::list<engine::Transfer>& messages);
  Status carry_out(const engine::Operation& whole, const StagedCut& cut);
  Status oversee(Enqueued& call);
  Status look_round(const engine::Prepared& prepared, uint64_t sequence, StreamCarrier& carrier);
  StagedCut cut_of(const engine::Prepared& prepared) const;
  Status settle_copies();
  Result<std::byte*> image_of(size_t bytes);
  size_t third() const { return backend_.staging_bytes / 3 / 64 * 64; }
  bool is_pinned(const std::byte* memory) const {
    return memory >= staging_ && memory < staging_ + backend_.staging_bytes;
  }
  Status copy_down(std::span<const StagedPart> parts);
  Status copy_up(std::span<const StagedPart> parts);
  Status await(Event event);
  Status await_copies(Event event);
  void let_streams_go(Status why);
  int64_t longest_in_cuda_ns() const;
  void note_cuda();

  const GpuBackend backend_;
  CudaCalls& cuda_;
  engine::Runner& runner_;
  board::Board& board_;
  board::Watch& watch_;
  const StagedSettings settings_;
  Stream down_ = nullptr, up_ = nullptr;  // so that the two directions do not wait for each other
  // Of each third of the staging memory, or half: what was copied there last, and from there.
  Event copied_down_[3] = {}, copied_up_[3] = {};
  std::byte* pinned_ = nullptr;  // the word, on a page of its own; then the staging memory
  uint32_t* done_ = nullptr;     // the number of the last call that has ended
  std::byte* staging_ = nullptr;
  std::unique_ptr<std::byte[]> large_;  // of images that the staging memory does not hold
  size_t large_bytes_ = 0;
  std::function<void(bool)> note_stage_ = [](bool) {};
  // Since when the thread may be inside of a call of CUDA's; 0: it is not.
  std::atomic<int64_t> in_cuda_ns_{0};
  bool is_abandoned_ = false;  // the thread's: copies that do not end use the staging memory

  std::deque<Event> passed_;  // after every wait that a stream may not have passed; the caller's
  uint32_t last_number_ = 0;  // likewise
  uint32_t last_staged_ = 0;  // likewise: of the last call without a carrier
  Event carried_ = nullptr;   // likewise: recorded after the last call with one

  std::mutex mutex_;
  std::condition_variable changed_, guard_ends_;
  std::deque<std::unique_ptr<Enqueued>> calls_;  // guarded by mutex_; the first may be under way
  std::vector<Event> all_events_, free_events_;  // guarded by mutex_
  bool ends_ = false, has_ended_ = false;        // guarded by mutex_
  std::thread thread_, guard_;                   // last: they use the others
};

}  // namespace rondo::device
