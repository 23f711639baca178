// One call of a collective as a value, its options, and what stands for it while it runs.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "rondo/status.hpp"
#include "rondo/types.hpp"

#pragma GCC visibility push(default)  // librondo.so exports this part
namespace rondo {

/// The size and position of each rank's block in a _v collective: how many elements it has, and at
/// which element of the buffer it begins. Each span has one entry for every rank. Without offsets the blocks follow each
/// other. reduce_scatter_v and scatter_v use the spans of In, all_gather_v and gather_v those of Out,
/// all_to_all_v uses all four. Communicator's named calls say what ranks must agree on.
struct Blocks {
  std::span<const size_t> in_counts{}, in_offsets{}, out_counts{}, out_offsets{};
};

/// A collective with its arguments: what Communicator::run() and start() take. Communicator's named
/// calls, such as all_reduce(), make one, and document the arguments. A collective ignores the fields
/// that it does not use. A call without a collective or a type is refused.
struct Call {
  Collective collective{0xff};     // not set
  const void* in = nullptr;        // In, read by the operation
  void* out = nullptr;             // Out, written by it
  size_t count = 0;                // in elements, of the whole or of one block
  DataType type{0xff};             // not set; a barrier needs none
  ReduceOp op = ReduceOp::kSum;    // of collectives that reduce
  int root = 0;                    // of collectives with a root
  const Blocks* blocks = nullptr;  // of _v collectives: the address of a Blocks that lives until
                                   // run() or start() has returned
};

/// Settings that one call may override.
struct CallOptions {
  Algorithm algorithm = Algorithm::kAuto;      // kAuto: the communicator's choice
  std::chrono::milliseconds stall_timeout{0};  // 0: the communicator's
  /// kMulSum only: the factor of this rank's input. May differ from rank to rank. Refused
  /// (kInvalidArgument) if the type of the sum cannot hold it: ReduceOp has the rules.
  double factor = 1;
  /// With Config::device: the cudaStream_t on which the operation is enqueued; null: the legacy
  /// default stream. Without: must be null.
  void* stream = nullptr;
  /// The order of a tensor's dimensions in memory, slowest first, as hexadecimal digits: 0x1342 is
  /// channels-last. It must be equal on all ranks, and 0 for C order, _v calls and messages.
  uint64_t layout = 0;
  friend bool operator==(const CallOptions&, const CallOptions&) = default;
};

/// What a message is, as its receiver learns it.
struct Envelope {
  int source = -1;  // the rank that sent it; -1: there is no message
  int tag = 0;
  size_t count = 0;  // of elements, as it was sent
  DataType type = DataType::kUint8;
};

/// An asynchronous operation. Copies share it; if all are dropped, the operation continues.
/// Thread-safe.
class Work {
 public:
  /// Blocks until the operation has ended and returns its Status. May be called more than once.
  /// kInvalidArgument at once while the operation's group is open: group_end() begins it.
  Status wait();
  /// Whether it has ended, without blocking.
  bool test() const;
  /// ok while it runs, then its Status.
  Status status() const;
  /// Times of issue, of the first byte that could move, and of the end: CLOCK_MONOTONIC
  /// nanoseconds, 0: not yet.
  struct Times {
    int64_t issued_ns, started_ns, ended_ns;
  };
  Times times() const;
  /// Of a recv that has ended well: what it received. Otherwise its source is -1.
  Envelope envelope() const;

  struct [[gnu::visibility("hidden")]] State;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

 private:
  friend size_t wait_any(std::span<const Work> works);
  std::shared_ptr<State> state_;
};

/// wait() of each; the first Status in their order that is not ok.
Status wait_all(std::span<Work> works);
/// Blocks until one has ended, well or badly, and returns its index, the lowest if there are more;
/// 0 without any. It stays ended: take it out of the list before the next call. If none has ended
/// and one's group is open, that one's index at once: its wait() fails.
size_t wait_any(std::span<const Work> works);

}  // namespace rondo
#pragma GCC visibility pop
