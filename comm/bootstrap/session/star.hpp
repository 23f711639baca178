// Ranks that have met around one of them, their rank 0, over authenticated stream sockets, and what
// they exchange. Over TCP they exchange bytes; over unix sockets descriptors, too.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/bootstrap/connection/connection.hpp"
#include "comm/bootstrap/identity/environment.hpp"
#include "comm/bootstrap/rendezvous/meeting.hpp"
#include "comm/bootstrap/rendezvous/rendezvous.hpp"
#include "comm/bootstrap/session/process_handle.hpp"
#include "comm/bootstrap/session/rank_exchange.hpp"
#include "rondo/status.hpp"
#include "transport/memory/unique_fd.hpp"

namespace rondo::comm {

/// A rank of this communicator, this one included.
struct Peer {
  pid_t pid = 0;               // in its own PID namespace,
  uint64_t pid_namespace = 0;  // which is this one (inode)
  bool same_process = false;   // a thread of this process, or this rank
  ProcessHandle pidfd{};       // empty when same_process, on another host, and before the first
                               // exchange
};

/// One thread at a time; every rank calls the same operations in the same order. Each takes at most
/// the timeout. The first failure sticks, and reaches every rank by its next operation.
class Star {
 public:
  Star(const Identity& identity, std::chrono::milliseconds timeout, Interrupt interrupt);

  /// Meets all ranks at `rendezvous`. Throws nothing: a rank that fails before the others have seen
  /// it comes again, to tell them.
  Status gather(const Identity& identity, const std::string& name, const Rendezvous& rendezvous,
                Deadline until);
  /// An exchange, in two steps, so that those of two stars go on at the same time: post() sends what
  /// this rank gives, and finish(), with the same arguments, waits for that of all. `fds`: over unix
  /// sockets only. `kind`: kGather or kBarrier, for messages.
  Status post(FrameKind kind, std::string_view bytes, std::span<const int> fds);
  Result<std::vector<Parcel>> finish(FrameKind kind, std::string_view bytes,
                                     std::span<const int> fds);
  /// Between two exchanges: the failure, if a rank at the other end of a connection has ended or failed.
  Status check_links();
  /// After the end of a rank, which may be the consequence of a failure: waits for word of it, up to
  /// `patience`, then as check_links().
  Status await_last_words(std::chrono::milliseconds patience);
  /// Every later operation returns `why`, on all ranks; those that learn of it read which rank's
  /// failure it is. Never waits.
  Status fail(const Status& why) { return failed_here(why); }

  /// How messages call the ranks, where these are not their numbers in the communicator.
  void call_ranks(std::span<const int> numbers) { numbers_.assign(numbers.begin(), numbers.end()); }
  /// Whether the failure is another rank's, which has reported it.
  bool has_heard() const { return facts_.heard || heard_from_peer_; }
  const Status& status() const { return status_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  std::vector<Peer>& peers() { return peers_; }
  /// Rank 0: to all other ranks, in order; the others: to rank 0.
  std::vector<PeerConnection>& links() { return links_; }
  void close() {
    links_.clear();
    interrupt_ = {};
  }

 private:
  using Received = Connection::Received;

  bool is_root() const { return rank_ == 0; }
  Deadline deadline() const { return {std::chrono::steady_clock::now() + timeout_, &interrupt_}; }
  int number_of(int rank) const {
    return numbers_.empty() ? rank : numbers_[static_cast<size_t>(rank)];
  }
  std::string name_of(const PeerConnection& link) const {
    return "rank " + std::to_string(number_of(link.rank)) + " (pid " + std::to_string(link.pid) +
           ")";
  }

  Status try_to_gather(const Meeting& meeting);
  Status know_peers(const std::string& welcome);
  Status begin();
  Status send_all(FrameKind kind, std::string_view payload, std::span<const int> fds = {});
  Status send_to(PeerConnection& link, FrameKind kind, std::string_view payload,
                 std::span<const int> fds, Deadline until);
  Result<std::vector<Received>> collect(FrameKind kind);
  Status await_links(const std::vector<Received*>& come, std::vector<bool>& ended, FrameKind kind,
                     Deadline until);
  Status said_by(const PeerConnection& link, const Frame& frame);
  Result<bool> hear(PeerConnection& link, FrameKind kind, Received& into);
  Result<std::vector<Parcel>> distribute(FrameKind kind, std::string_view bytes,
                                         std::span<const int> fds);
  Result<std::vector<Parcel>> receive(FrameKind kind);
  Status failed(Status why);
  /// The same for what has gone wrong in this process: every rank learns in which.
  Status failed_here(const Status& why);

  const int rank_;
  const int size_;
  const std::chrono::milliseconds timeout_;
  Interrupt interrupt_;
  uint32_t sequence_ = 0;
  Status status_;
  MeetingFacts facts_;
  bool heard_from_peer_ = false;  // status_ came from another rank, which has it already
  std::vector<int> numbers_;      // of the ranks, for messages; empty: as here
  std::vector<Peer> peers_;
  std::vector<PeerConnection> links_;
};

}  // namespace rondo::comm
