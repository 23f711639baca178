// The communicator: ranks that do collectives together.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/status.hpp"
#include "rondo/types.hpp"

#pragma GCC visibility push(default)  // what is declared here, librondo.so exports
namespace rondo {

/// A fresh identity for one communicator: printable, at most kUniqueIdChars characters, and secret,
/// because whoever of this user has it can join. Give it to every rank as Config::unique_id, by
/// whatever means they have of talking to each other.
Result<std::string> make_unique_id();
inline constexpr size_t kUniqueIdChars = 127;

/// Gathers one blob from every rank, by means of the caller's own (MPI, a store, pipes): is given
/// this rank's, returns all ranks', in rank order. Every rank's blob has the same length, at most
/// 256 bytes.
using AllGather = std::function<Result<std::vector<std::string>>(std::string_view own)>;

/// How a communicator is made. Every rank must pass the same values, apart from `rank`; where they
/// differ rank 0's win for everything that shapes the communication.
struct Config {
  /// This rank and how many there are. Both -1: as place_from_launcher() says; no launcher either:
  /// one rank alone.
  int rank = -1;
  int world_size = -1;
  /// Where the ranks meet: a directory (created 0700), or tcp://HOST:PORT for ranks that share none
  /// (rank 0 listens there). Empty: RONDO_RENDEZVOUS, else derived from what the launcher calls the
  /// job.
  std::string rendezvous;
  /// Instead of a directory: what one rank's make_unique_id() gave. rank and world_size must be
  /// set; the environment is not asked where to meet.
  std::string unique_id;
  /// Instead of both: create() calls it once, on every rank, to hand round a unique id that rank 0
  /// makes. rank and world_size must be set. Not called again after create().
  AllGather all_gather;
  /// Tells communicators of one job apart; every rank of this one passes the same.
  std::string name = "world";
  /// A call fails when nothing at all has moved for this long. Slow is not dead. 0: RONDO_TIMEOUT
  /// (seconds), else ten minutes.
  std::chrono::milliseconds timeout{0};
  /// How long create() waits for the other ranks.
  std::chrono::milliseconds bootstrap_timeout{60'000};
  /// Independent pipelines per operation; beyond the first each takes a thread of its own for large
  /// messages. More threads than CPUs, all ranks' together, yield where they would spin: small
  /// operations then take microseconds. 0: one.
  int channels = 0;
  /// Slots per link and bytes per slot; 0: from the link profile. Tests use tiny slots to reach
  /// many rounds.
  int slots = 0;
  size_t slot_bytes = 0;
  /// "1GB/s,20us": delay every message to that bandwidth and latency (see transport/README.md).
  /// Empty: RONDO_PACE, else off.
  std::string pace;
  /// A link profile that `rondo-perf --calibrate` has written, by which rank 0 lets all ranks
  /// choose algorithms. Empty: RONDO_LINKS, else a built-in profile.
  std::string links;
  /// Forces one algorithm for every operation that has it; kAuto: by the link profile.
  Algorithm algorithm = Algorithm::kAuto;
  /// Reductions fold in rank order 0..N-1, by another algorithm than the forced one if need be: the
  /// same bits whatever size, position, algorithm, channels or memory (comm/README.md: the price).
  bool reproducible = false;
  /// The CUDA device whose memory this rank's buffers are in; -1: none, buffers are the host's.
  /// Either every rank has one or none; ranks may share one. See Communicator for what is different
  /// then.
  int device = -1;
};

/// Which rank a launcher has made of this process.
struct Place {
  int rank = 0, world_size = 1;
  int local_rank = 0, local_world_size = 1;  // among the ranks of this host
};

/// From what rondo-run, torchrun, Open MPI, MPICH, PALS, Slurm or PMIx left in the environment;
/// nothing when none did. For what has to be settled before create(): pinning, devices, starting
/// ranks. kInvalidArgument names a variable that is missing, wrong or contradicted by another.
Result<std::optional<Place>> place_from_launcher();

/// What one call may override.
struct CallOptions {
  Algorithm algorithm = Algorithm::kAuto;  // kAuto: the communicator's choice
  std::chrono::milliseconds timeout{0};    // 0: the communicator's
  /// kScaledSum only: what this rank's input is multiplied by, in the type that it is folded in,
  /// before anything is added. May differ from rank to rank.
  double factor = 1;
  /// With Config::device: the cudaStream_t on which the operation is enqueued; null: the legacy
  /// default stream. Null without.
  void* stream = nullptr;

  friend bool operator==(const CallOptions&, const CallOptions&) = default;
};

/// An asynchronous operation. Copies share the operation; a dropped Work goes on. Thread-safe.
class Work {
 public:
  /// Blocks until the operation has ended; its Status. May be called more than once.
  Status wait();
  /// Whether it has ended, without blocking.
  bool test() const;
  /// ok while it runs, then its Status.
  Status status() const;
  /// When it was issued, when its first byte could move and when it ended; CLOCK_MONOTONIC
  /// nanoseconds, 0: not yet.
  struct Times {
    int64_t issued_ns, started_ns, ended_ns;
  };
  Times times() const;

  struct [[gnu::visibility("hidden")]] State;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<State> state_;
};

/// What would be done for one operation, and what it is predicted to cost.
struct Plan {
  Algorithm algorithm;
  int channels;
  double predicted_us;
  uint64_t bytes_sent_per_rank;  // as Stats::bytes_sent counts them; largest over the ranks
};

/// Counters since creation, of this rank.
struct Stats {
  uint64_t operations;
  /// Payload that this rank moved between itself and others: slots that it filled (once for each
  /// reader), and what it wrote into or read from others' buffers in place.
  uint64_t bytes_sent;
  /// Memory that all ranks of the communicator share, for all of them together, counted whether
  /// touched or not; without rondo::alloc's arenas, which take what is allocated.
  uint64_t shared_bytes;
};

/// A group of ranks. Thread rule: one thread at a time per communicator, except abort(), status()
/// and the Work handles, which any thread may use at any time; different communicators are
/// independent of each other. Every rank issues the same operations in the same order. Calls check
/// their arguments before anything moves. The first failure sticks: every later call returns it, on
/// every rank. Buffers belong to the caller, and to the operation until it has ended; no call ends
/// while a peer may still touch its buffers. (After a failure it waits for the peers to let go, but
/// for 0.2 s at most: a peer that is stopped while it touches them may go on with that later.) `in
/// == out` (all_reduce, broadcast, reduce, all_to_all), `out == in + rank * count` (reduce_scatter,
/// scatter on the root) and `in == out + rank * count` (all_gather, gather on the root) are in
/// place; any other overlap is refused. A forked child must not use its parent's communicator.
///
/// With Config::device, buffers are device memory and a call is enqueued on CallOptions::stream: it
/// returns at once, like a kernel launch (some hundred launches ahead it waits), and has ended when
/// the stream has come past it. Buffers belong to it until then. What one communicator does is in
/// order, whatever the streams; it may be captured in graphs, whose replays the caller keeps in
/// order with each other and with other operations. What goes wrong on the way comes back from
/// status() and from later calls; the stream goes on with wrong data. Ranks of one process that
/// share a device need a stream each. A group's messages, 128 at most and on one stream, come
/// before its collectives, not beside them. Calls that return a Work are refused there.
class Communicator {
 public:
  /// Meets the other ranks. Blocks at most Config::bootstrap_timeout until all have come, and at
  /// most as long again for each thing that they then tell each other. A missing rank is named in
  /// the error. Takes up to 128 KiB of the thread's stack.
  static Result<Communicator> create(const Config& config = {});

  /// Creation without waiting: the communicator, or why there is none, when it is ready. Dropping
  /// the future waits for it, as long as create() would.
  static std::future<Result<Communicator>> create_async(const Config& config = {});

  /// A communicator for each color, of the ranks that pass it, ordered by key, then by rank here;
  /// nothing for a rank that passes kNoColor. Every rank of this one calls it. Settings are this
  /// communicator's. Blocks as create() does.
  Result<std::optional<Communicator>> split(int color, int key);
  static constexpr int kNoColor = -1;
  /// Another communicator of the same ranks, whose operations are independent of this one's.
  Result<Communicator> duplicate();

  /// Says goodbye. Does not wait for the peers. Outstanding asynchronous operations are waited for,
  /// unless one has failed; on a device, for at most the communicator's timeout those that are
  /// enqueued: graphs that hold some must have ended.
  ~Communicator();
  Communicator(Communicator&&) noexcept;
  Communicator& operator=(Communicator&&) noexcept;

  int rank() const;
  int size() const;

  /// out[i] = op over all ranks of in[i], for `count` elements; out is the same bits on every rank.
  Status all_reduce(const void* in, void* out, size_t count, DataType type,
                    ReduceOp op = ReduceOp::kSum, const CallOptions& options = {});
  /// in: size() blocks of `count`; out: the reduction of every rank's block number rank().
  Status reduce_scatter(const void* in, void* out, size_t count, DataType type,
                        ReduceOp op = ReduceOp::kSum, const CallOptions& options = {});
  /// in: `count` elements; out: size() blocks of `count`, block r being rank r's in.
  Status all_gather(const void* in, void* out, size_t count, DataType type,
                    const CallOptions& options = {});
  /// out on every rank = in of `root`; in is ignored, and may be null, elsewhere. A root does not
  /// wait for anybody: if ranks disagree about it, it learns so from a later call, at most 64 on.
  Status broadcast(const void* in, void* out, size_t count, DataType type, int root,
                   const CallOptions& options = {});
  /// out on `root` = op over all ranks of in; unused elsewhere. There ranks do not wait, as above.
  Status reduce(const void* in, void* out, size_t count, DataType type, int root,
                ReduceOp op = ReduceOp::kSum, const CallOptions& options = {});
  /// in: `count` elements; out on `root`: size() blocks of `count`, block r being rank r's in; out
  /// is ignored elsewhere.
  Status gather(const void* in, void* out, size_t count, DataType type, int root,
                const CallOptions& options = {});
  /// in on `root`: size() blocks of `count`, ignored elsewhere; out: block rank() of it.
  Status scatter(const void* in, void* out, size_t count, DataType type, int root,
                 const CallOptions& options = {});
  /// in, out: size() blocks of `count`; block r of out is block rank() of rank r's in.
  Status all_to_all(const void* in, void* out, size_t count, DataType type,
                    const CallOptions& options = {});
  /// As all_gather, with blocks of different sizes: out holds counts[r] elements from rank r,
  /// beginning at element offsets[r]; no offsets: one after the other. counts and offsets have an
  /// entry for every rank and are the same on every rank. in: counts[rank()] elements; in place it
  /// is its own block. Calls of _v collectives are prepared anew each time, unless they repeat the
  /// last call.
  Status all_gather_v(const void* in, void* out, std::span<const size_t> counts,
                      std::span<const size_t> offsets, DataType type,
                      const CallOptions& options = {});
  /// As reduce_scatter, likewise: in holds counts[r] elements for rank r at element offsets[r].
  Status reduce_scatter_v(const void* in, void* out, std::span<const size_t> counts,
                          std::span<const size_t> offsets, DataType type,
                          ReduceOp op = ReduceOp::kSum, const CallOptions& options = {});
  /// As all_to_all: in_counts[r] elements, at element in_offsets[r] of in, go to rank r, and
  /// out_counts[r] come from it, to element out_offsets[r] of out. Each rank gives its own counts;
  /// what one sends is what the other expects. Never in place.
  Status all_to_all_v(const void* in, std::span<const size_t> in_counts,
                      std::span<const size_t> in_offsets, void* out,
                      std::span<const size_t> out_counts, std::span<const size_t> out_offsets,
                      DataType type, const CallOptions& options = {});
  /// Nobody leaves before everybody has come.
  Status barrier(const CallOptions& options = {});

  /// One message. The k-th send to a peer meets its k-th recv from this rank, whatever else either
  /// of them does in between; count and type must be the same. send() returns when the buffer may
  /// be used again, which can be before the peer has called recv() (small messages) or not
  /// (others): two ranks that first send to each other need a group, or the asynchronous calls.
  Status send(const void* buffer, size_t count, DataType type, int peer,
              const CallOptions& options = {});
  Status recv(void* buffer, size_t count, DataType type, int peer, const CallOptions& options = {});

  /// From group_start() on, calls are collected: blocking ones return at once, ok unless their
  /// arguments are refused. group_end() carries them out, messages all at once and beside the
  /// collectives, collectives in their order, and returns when the blocking ones have ended. In
  /// whatever order ranks put the same messages into their groups, these cannot wait for each other
  /// in a circle; collectives keep one order. A refused call spoils the group: group_end() only
  /// returns its error. Groups inside a group are part of it: all begins with the outermost end.
  Status group_start();
  Status group_end();

  /// The same, at once back: rondo's progress thread carries them out, in issue order. An error in
  /// the arguments comes back as a Work that has already ended with it.
  Work all_reduce_async(const void* in, void* out, size_t count, DataType type,
                        ReduceOp op = ReduceOp::kSum, const CallOptions& options = {});
  Work reduce_scatter_async(const void* in, void* out, size_t count, DataType type,
                            ReduceOp op = ReduceOp::kSum, const CallOptions& options = {});
  Work all_gather_async(const void* in, void* out, size_t count, DataType type,
                        const CallOptions& options = {});
  Work broadcast_async(const void* in, void* out, size_t count, DataType type, int root,
                       const CallOptions& options = {});
  Work reduce_async(const void* in, void* out, size_t count, DataType type, int root,
                    ReduceOp op = ReduceOp::kSum, const CallOptions& options = {});
  Work gather_async(const void* in, void* out, size_t count, DataType type, int root,
                    const CallOptions& options = {});
  Work scatter_async(const void* in, void* out, size_t count, DataType type, int root,
                     const CallOptions& options = {});
  Work all_to_all_async(const void* in, void* out, size_t count, DataType type,
                        const CallOptions& options = {});
  Work all_gather_v_async(const void* in, void* out, std::span<const size_t> counts,
                          std::span<const size_t> offsets, DataType type,
                          const CallOptions& options = {});
  Work reduce_scatter_v_async(const void* in, void* out, std::span<const size_t> counts,
                              std::span<const size_t> offsets, DataType type,
                              ReduceOp op = ReduceOp::kSum, const CallOptions& options = {});
  Work all_to_all_v_async(const void* in, std::span<const size_t> in_counts,
                          std::span<const size_t> in_offsets, void* out,
                          std::span<const size_t> out_counts, std::span<const size_t> out_offsets,
                          DataType type, const CallOptions& options = {});
  Work barrier_async(const CallOptions& options = {});
  /// Messages do not wait for collectives, nor for messages to or from others.
  Work send_async(const void* buffer, size_t count, DataType type, int peer,
                  const CallOptions& options = {});
  Work recv_async(void* buffer, size_t count, DataType type, int peer,
                  const CallOptions& options = {});

  /// Makes every pending and later call, on every rank, return kAborted with this reason. Any
  /// thread.
  void abort(const std::string& reason);
  /// The sticky failure, or ok. On a device it looks for one first: what kernels have reported,
  /// CUDA's errors, ranks that ended; ask it in a loop that waits for a stream.
  Status status() const;

  /// What all_reduce(...) etc. of this shape would do here, out of place; `direct`: with library
  /// memory on every rank, else with plain; `op`: of those that reduce. _v collectives: as if every
  /// block were of `count` elements.
  Plan plan(Collective collective, size_t count, DataType type, bool direct = false,
            Algorithm algorithm = Algorithm::kAuto, ReduceOp op = ReduceOp::kSum) const;
  Stats stats() const;
  /// The last operations of every rank as this rank can see them, and the messages with which ranks
  /// wait, as text: what SIGUSR1 under rondo-run prints.
  std::string flight_record() const;

  class [[gnu::visibility("hidden")]] Impl;

 private:
  explicit Communicator(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// For people: what hwloc, CUDA and NVML see of this host (fork no ranks on GPUs after it), what
/// `ranks` ranks, pinned, would share, and the link profile that `config` would give them.
std::string topology_report(int ranks, const Config& config = {});

}  // namespace rondo
#pragma GCC visibility pop

namespace rondo {

/// What one operation took, out of place: a robust figure over many. For programs that measure a
/// machine; `rondo-perf --calibrate FILE` is one.
struct LinkTiming {
  Collective collective;
  Algorithm algorithm;  // as forced; not kAuto
  size_t bytes;         // the call's count in bytes: one block, where it has blocks
  bool library_memory;  // every rank's buffers, or plain memory on all of them
  double us;
};

/// The text of a link profile for `ranks` ranks of this host, ready to be written to a file that
/// Config::links names. A time that was measured is predicted as it was; what lies between, and
/// other numbers of ranks, by the constants fitted to all of them. Pure apart from asking for the
/// host's caches. kInvalidArgument for too few timings, or times that are not above 0.
Result<std::string> fit_link_profile(std::span<const LinkTiming> timings, int ranks,
                                     const std::string& name);

}  // namespace rondo
