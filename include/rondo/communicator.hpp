// The communicator: ranks that run collectives and exchange messages.
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

#include "rondo/call.hpp"
#include "rondo/memory.hpp"
#include "rondo/named_calls.hpp"
#include "rondo/status.hpp"
#include "rondo/types.hpp"

#pragma GCC visibility push(default)  // librondo.so exports this part
namespace rondo {

/// A fresh id for one communicator: printable, at most kUniqueIdChars characters, and secret,
/// because a process of this user that knows it can join. Call it on rank 0's host (in any process
/// of it) and give the id to every rank, of any host, as Config::unique_id, by any means. It names
/// an address by RONDO_INTERFACE and a port of RONDO_PORTS, which is kept for rank 0 until this
/// process ends or has made 16 more.
Result<std::string> make_unique_id();
inline constexpr size_t kUniqueIdChars = 127;

/// Gathers one blob from every rank by the caller's own means (MPI, a store, pipes): takes this
/// rank's, returns all in rank order. Each has the same length, at most 256 bytes.
using AllGather = std::function<Result<std::vector<std::string>>(std::string_view own)>;

/// How a communicator is created. Every rank must pass the same values, except `rank`; if they
/// differ, rank 0's are used for everything that shapes the communication.
struct Config {
  /// This rank and the number of ranks. Both -1: from place_from_launcher(), else one rank alone.
  int rank = -1;
  int world_size = -1;
  /// Where the ranks meet: a directory (created 0700), or tcp://HOST:PORT for ranks that share none
  /// (rank 0 listens there). Empty: RONDO_RENDEZVOUS, else from the launcher's name for the job.
  std::string rendezvous;
  /// Instead of a directory: a result of make_unique_id(). rank and world_size must be set; the
  /// environment does not say where to meet.
  std::string unique_id;
  /// Instead of both: create() calls it once on every rank to distribute a unique id that rank 0
  /// makes. rank and world_size must be set. Not called again after create().
  AllGather all_gather;
  /// Distinguishes communicators of one job; every rank of this one passes the same name.
  std::string name = "world";
  /// A call fails when nothing has moved on any rank for this long. Slow progress is not a failure.
  /// 0: RONDO_TIMEOUT (seconds), else ten minutes.
  std::chrono::milliseconds stall_timeout{0};
  /// How long create() waits for the other ranks; after a third of it rank 0 warns, naming the
  /// missing ones. 0: RONDO_BOOTSTRAP_TIMEOUT (seconds), else one minute.
  std::chrono::milliseconds bootstrap_timeout{0};
  /// Independent pipelines per operation; each beyond the first takes a thread for large messages.
  /// If all ranks' threads together exceed the CPUs, they yield instead of spinning, and small
  /// operations take microseconds. 0: one. Of a device: its thread blocks; 0: as many as leave room
  /// for other communicators, up to max_channels.
  int channels = 0;
  /// 0: 16; 8 over several hosts, and where GPUs cannot access each other.
  int max_channels = 0;
  /// Slots per link and bytes per slot; 0: from the link profile. Tiny ones make many rounds (tests).
  int slots = 0;
  size_t slot_bytes = 0;
  /// "1GB/s,20us": delays every message (docs/course.md has examples). Empty: RONDO_PACE, else off.
  std::string pace;
  /// A link profile: a file that `rondo-perf --calibrate` wrote, or "built-in". Rank 0's decides
  /// the algorithms for all ranks. Empty: RONDO_LINKS, else the file at default_links_path() if it
  /// exists (ranks on CPUs), else the built-in profile.
  std::string links;
  /// Forces one algorithm for every operation that has it. kAuto: RONDO_ALGORITHM's, else the cheapest.
  Algorithm algorithm = Algorithm::kAuto;
  /// Reductions fold in rank order 0..N-1, if necessary by another algorithm than the forced one: the
  /// same bits whatever the size, position, algorithm or memory; maybe slower. Or: RONDO_REPRODUCIBLE.
  bool reproducible = false;
  bool wrapping_averages = false;  // sums of averaged integers wrap, as in NCCL: see ReduceOp
  /// The CUDA device whose memory holds this rank's buffers; -1: none, buffers are in host memory.
  /// Every rank has a device, or none has; ranks may share one. Communicator says what differs.
  int device = -1;
};

/// This process's rank, as its launcher set it.
struct Place {
  int rank = 0, world_size = 1;
  int local_rank = 0, local_world_size = 1;  // among the ranks of this host
};

/// Reads the environment of rondo-run, torchrun, Open MPI, MPICH, PALS, Slurm or PMIx; nullopt
/// without any of them. For decisions before create(): pinning, devices, starting ranks.
/// kInvalidArgument names a variable that is missing, wrong or contradicted by another. Under PMIx
/// without WORLD_SIZE it connects to the launcher's server; kUnavailable: that fails.
Result<std::optional<Place>> place_from_launcher();

/// How one operation would be done, and its predicted time.
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
  /// reader), plus bytes that it wrote into or read from others' buffers in place.
  uint64_t bytes_sent;
  /// Shared memory of the whole communicator, touched or not; without rondo::alloc's arenas.
  uint64_t shared_bytes;
};

/// A group of ranks.
///
/// Thread rule: one thread at a time per communicator, except abort(), status() and Work handles,
/// which any thread may use at any time. Different communicators are independent. Every rank issues
/// the same operations in the same order.
/// Errors: calls check their arguments before anything moves. After the first failure every later
/// call, on every rank, returns it.
///
/// Buffers belong to the operation until it has ended; no call ends while a peer may still touch
/// its buffers. (After a failure it waits for the peers to let go, at most 0.2 s: a peer that is
/// stopped while it touches them may continue later.) In place are `in == out` (all_reduce,
/// broadcast, reduce, all_to_all, scans), `out == in + rank * count` (reduce_scatter, scatter on the root)
/// and `in == out + rank * count` (all_gather, gather on the root); any other overlap is refused.
/// A forked child must not use its parent's communicator: calls, and waits for Works that had not ended,
/// return kInvalidArgument there (abort() does nothing). Destroying it does nothing to the ranks.
///
/// With Config::device, buffers are device memory and a call is enqueued on CallOptions::stream. It
/// returns at once, like a kernel launch (with some hundred launches in flight it waits), and has
/// ended when the stream has passed it; buffers belong to it until then. Operations of one
/// communicator are ordered, whatever their streams. They may be captured in graphs; the caller
/// orders replays with each other and with other operations. status() and later calls return errors
/// of enqueued operations, while the stream continues with wrong data. Ranks of one process that
/// share a device need a stream each. A group has at most 128 messages, on one stream, which
/// precede its collectives instead of running beside them. Calls that return a Work are refused.
/// Where ranks are on several hosts, data between hosts go through pinned memory (docs/gpus.md).
class Communicator : public NamedCalls<Communicator> {
 public:
  /// Meets the other ranks. Blocks at most Config::bootstrap_timeout until all have come, and at
  /// most as long again for each of the exchanges that follow. The error names a missing rank.
  /// Takes up to 128 KiB of the thread's stack.
  static Result<Communicator> create(const Config& config = {});

  /// create() in the background. Destroying the future waits for it, as long as create() would.
  static std::future<Result<Communicator>> create_async(const Config& config = {});

  /// Creates a communicator for each color, of the ranks that pass it, ordered by key, then by rank
  /// here; nullopt for a rank that passes kNoColor. Collective. The new ones have this
  /// communicator's settings. Waits for late ranks as a call does (Config::stall_timeout), then blocks as
  /// create() does. Errors, logs and rondo-status use `name` ("rows"; by default "world/color 1").
  /// All ranks of a color must pass the same name. Only its first 60 bytes are used.
  Result<std::optional<Communicator>> split(int color, int key, std::string_view name = {});
  static constexpr int kNoColor = -1;
  /// Another communicator of the same ranks, with independent operations. Collective.
  Result<Communicator> duplicate();

  /// After a failure (a rank that ended, a timeout, an abort): a communicator of the ranks that are
  /// left, in their old order, with this one's settings. Every rank that is left calls it, as in
  /// MPI's MPIX_Comm_shrink. The ranks need not agree on which failure there was, and need no
  /// collective that works; shrink() finds out who is left, waits up to `patience` (0:
  /// Config::bootstrap_timeout) for ranks that have not ended and have not come, and goes on without
  /// them if more than half of those that have not ended are there, or half with the lowest of them.
  /// Otherwise kTimeout: two parts of the ranks never go on side by side. A rank that
  /// comes when the others have gone on gets kTimeout, too.
  ///
  /// Blocks for `patience` and two seconds for each rank that could lead the others and does not come,
  /// and then as create() does. A rank that ends meanwhile is left out. After any other error
  /// the call may be repeated, by all ranks; one that fails alone (it has no descriptors) is left out
  /// if it does not come again in time. This communicator stays as it is: failed, or, if nothing
  /// has failed, working. Destroy it at any time. kUnavailable on a device.
  ///
  /// Ranks of a host that does not answer have not ended: nobody waits for them, and of a network that
  /// falls apart no two parts go on. Of two equal ones only that with the lowest rank does.
  Result<Communicator> shrink(std::chrono::milliseconds patience = std::chrono::milliseconds{0});
  /// Of a communicator from shrink(): the rank that each of its ranks had before, by rank, so that
  /// data can be divided anew. Else empty.
  const std::vector<int>& former_ranks() const;

  /// With Config::device, collective: registers device memory, and ends that (see memory.hpp).
  Status register_device_memory(void* pointer, size_t bytes);
  Status unregister_device_memory(void* pointer);

  /// Leaves the communicator without waiting for the peers. Waits for outstanding asynchronous
  /// operations, unless one has failed; on a device it waits for enqueued ones, at most the
  /// communicator's stall timeout. Graphs that hold some must have ended.
  ~Communicator();
  Communicator(Communicator&&) noexcept;
  Communicator& operator=(Communicator&&) noexcept;

  int rank() const;
  int size() const;
  bool is_reproducible() const;  // Config::reproducible, of all ranks
  int device() const;            // Config::device, of this rank
  /// The host of every rank; hosts are numbered from 0 in the order of their lowest ranks.
  std::vector<int> hosts() const;
  int host_of(int rank) const;  // -1: there is no such rank

  /// Runs a collective, and returns when it has ended (on a device: when it is enqueued). The named
  /// calls, such as all_reduce(), are inline functions around it (named_calls.hpp), which document
  /// each collective. A group collects it, as it collects every call.
  Status run(const Call& call, const CallOptions& options = {});
  /// Starts it, and returns at once: see the _async calls.
  Work start(const Call& call, const CallOptions& options = {});
  /// The same with buffers that have a size and a type: replaces in, out, count and type of the call.
  Status run(Call call, const InSpan& in, const OutSpan& out, const CallOptions& options = {});
  Work start(Call call, const InSpan& in, const OutSpan& out, const CallOptions& options = {});

  /// Sends one message. send() returns when the buffer may be reused. That can be before the peer
  /// has called recv() (small messages) or only after it (others), so two ranks that both send
  /// first need a group, or the asynchronous calls. Tags are 0 to kMaxTag.
  Status send(const void* buffer, size_t count, DataType type, int peer, int tag,
              const CallOptions& options = {});
  /// Receives one message: the earliest that has this peer, or any (kAnySource), and this tag, or any
  /// (kAnyTag), and that no earlier recv gets. Messages of one sender with one tag never overtake
  /// each other. If recvs ask for any source, no sender waits for ever while others are received.
  ///
  /// `count` is the room in the buffer: a shorter message fills its front, a longer one is kMismatch.
  /// The types must be equal. On a device the counts must be equal, too. `envelope`, if not null, is
  /// written when the recv has completed without error (in a group: by group_end()).
  ///
  /// Messages travel in the order of their sends. While a recv waits for another tag than the next
  /// one's, messages of that sender that nobody asks for are set aside, up to 16 MiB in all
  /// (each counts 256 bytes more than it has). One without room holds up those after it until it is
  /// received: two ranks then wait for each other, which ends with kTimeout, if the sender waits
  /// for a later message to arrive first. Recvs that are posted, in a group or asynchronously, need
  /// no room. On a device every message has tag 0 and a known source.
  Status recv(void* buffer, size_t count, DataType type, int peer, int tag,
              Envelope* envelope = nullptr, const CallOptions& options = {});
  /// The asynchronous forms. Messages wait neither for collectives nor for messages with other peers.
  /// Work::envelope() says what was received.
  Work send_async(const void* buffer, size_t count, DataType type, int peer, int tag,
                  const CallOptions& options = {});
  Work recv_async(void* buffer, size_t count, DataType type, int peer, int tag,
                  const CallOptions& options = {});

  /// Without a tag: with tag 0.
  Status send(const void* buffer, size_t count, DataType type, int peer,
              const CallOptions& options = {}) {
    return send(buffer, count, type, peer, 0, options);
  }
  Status recv(void* buffer, size_t count, DataType type, int peer,
              const CallOptions& options = {}) {
    return recv(buffer, count, type, peer, 0, nullptr, options);
  }
  Work send_async(const void* buffer, size_t count, DataType type, int peer,
                  const CallOptions& options = {}) {
    return send_async(buffer, count, type, peer, 0, options);
  }
  Work recv_async(void* buffer, size_t count, DataType type, int peer,
                  const CallOptions& options = {}) {
    return recv_async(buffer, count, type, peer, 0, options);
  }
  /// Blocks until there is a message that such a recv would get, and says what it is. The message
  /// stays: with that source and tag, recv() gets it. Not in a group.
  Result<Envelope> probe(int peer, int tag, const CallOptions& options = {});
  /// The same without waiting for a message; nullopt: none has come. An error if a rank has died, or
  /// if those that could send one have left.
  Result<std::optional<Envelope>> try_probe(int peer, int tag);

  /// Between group_start() and group_end() calls are collected: blocking ones return at once, ok
  /// unless their arguments are refused. group_end() runs them (all messages at once and beside the
  /// collectives, collectives in order) and returns when the blocking ones have ended. Ranks may
  /// put the same messages into their groups in any order without deadlock; collectives need the
  /// same order. After a refused call group_end() only returns its error. A nested group is part of
  /// the outermost one and runs with it.
  Status group_start();
  Status group_end();
  /// Instead of group_end(): nothing of the group runs, nor of one around it. Its Works, and the end
  /// of the outermost group, return kInvalidArgument with this reason.
  Status group_abandon(const std::string& reason);

  Status send(InSpan buffer, int peer, const CallOptions& options = {}) {
    return send(buffer.data(), buffer.size(), buffer.type(), peer, options);
  }
  Work send_async(InSpan buffer, int peer, const CallOptions& options = {}) {
    return send_async(buffer.data(), buffer.size(), buffer.type(), peer, options);
  }
  Status recv(OutSpan buffer, int peer, const CallOptions& options = {}) {
    return recv(buffer.data(), buffer.size(), buffer.type(), peer, options);
  }
  Work recv_async(OutSpan buffer, int peer, const CallOptions& options = {}) {
    return recv_async(buffer.data(), buffer.size(), buffer.type(), peer, options);
  }

  /// Waits until all asynchronous operations and messages have ended, or abort() was called. Not in an
  /// open group. Returns the first failure, or kMismatch if the calls of ranks that only sent differ.
  Status finish();
  /// Whether no asynchronous call, or kernel, is under way. False once graphs hold calls.
  bool is_idle() const;
  /// Makes every pending and later call on every rank return kAborted with this reason. Any thread.
  void abort(const std::string& reason);
  /// The first failure, or ok. On a device it first checks kernels' reports and CUDA's errors, and
  /// looks for ranks that have ended: call it in a loop that waits for a stream.
  Status status() const;

  /// How all_reduce(...) etc. of this shape would be done here, out of place. `direct`: with library
  /// memory (on a device: registered) on every rank, otherwise plain; `op`: for collectives that
  /// reduce. A _v collective is planned as if every block had `count` elements. 0 channels: there is
  /// no such operation here, and find_plan() says why, as the call would.
  Plan plan(Collective collective, size_t count, DataType type, bool direct = false,
            Algorithm algorithm = Algorithm::kAuto, ReduceOp op = ReduceOp::kSum) const {
    const auto found = find_plan(collective, count, type, direct, algorithm, op);
    return found.ok() ? *found : Plan{};
  }
  Result<Plan> find_plan(Collective, size_t count, DataType, bool direct, Algorithm,
                         ReduceOp) const;
  Stats stats() const;
  /// Every rank's last operations and pending messages: what rondo-status PID --records prints.
  std::string flight_record() const;

  class [[gnu::visibility("hidden")]] Impl;

 private:
  explicit Communicator(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// With this exit code a process says that its shrink() returned kTimeout: others may have gone on
/// without it. `rondo-run --elastic` counts its rank as lost, and the job goes on.
inline constexpr int kLeftOutExitCode = 75;  // EX_TEMPFAIL of sysexits.h

/// A report for people: this host according to hwloc, CUDA and NVML (fork no ranks on GPUs after
/// it), what `ranks` pinned ranks would share, and the link profile that `config` would give them.
std::string topology_report(int ranks, const Config& config = {});

}  // namespace rondo
#pragma GCC visibility pop

namespace rondo {

/// Measured time of one operation, out of place, for programs such as `rondo-perf --calibrate FILE`.
struct LinkTiming {
  Collective collective;
  Algorithm algorithm;  // the forced one; not kAuto
  size_t bytes;         // the call's count in bytes (of one block, if it has blocks)
  bool library_memory;  // of all buffers; false: plain memory. Between hosts it makes no difference
  double us;
};

/// The text of a link profile, to be written to a file that Config::links names, from timings of ranks
/// that lie on `hosts` (Communicator::hosts()). It predicts measured times exactly, and sizes in between
/// and other ranks by constants fitted to all timings: a host's constants if there is one host, the
/// wire's if there are several. `before`: the text of the profile in which everything else stays as it
/// is; empty: the built-in one. Reads the host's caches; otherwise pure.
/// kInvalidArgument for too few timings, or times that are not above 0; kDataError for `before`.
Result<std::string> fit_link_profile(std::span<const LinkTiming> timings,
                                     std::span<const int> hosts, const std::string& name,
                                     const std::string& before = {});

/// The file in which communicators look for a link profile of this processor if neither
/// Config::links nor RONDO_LINKS names one: in $XDG_CONFIG_HOME/rondo, or ~/.config/rondo. It need
/// not exist; `rondo-perf --calibrate` writes it. Empty: the process has neither variable.
std::string default_links_path();

}  // namespace rondo
