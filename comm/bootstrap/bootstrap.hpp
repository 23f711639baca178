// How the ranks of one communicator find and trust each other, and what they exchange before shared
// memory exists. A star of unix stream sockets around rank 0, on one host, found over TCP where no
// directory is shared; made for a few kilobytes and a few descriptors per rank, never for payload.
// No wait is unbounded, and whatever goes wrong on one rank is told to all.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/bootstrap/environment.hpp"
#include "comm/bootstrap/process_handle.hpp"
#include "rondo/status.hpp"
#include "transport/shm/unique_fd.hpp"

namespace rondo::comm {

/// A rank of this communicator, this one included.
struct Peer {
  pid_t pid = 0;               // as it sees itself,
  uint64_t pid_namespace = 0;  // in this one
  bool same_process = false;   // a thread of this process, or this rank itself
  ProcessHandle pidfd{};       // empty when same_process
};

/// The meeting of one communicator's ranks. One thread at a time; every rank calls the same
/// operations in the same order. Each operation takes at most the timeout given to meet(). The
/// first failure sticks, and reaches every rank by its next operation. A world of one opens
/// nothing.
class Bootstrap {
 public:
  /// Blocks until all ranks of `identity.world_size` have come, or `timeout`. `name` (letters,
  /// digits, '_', '-', '.', at most 64) tells communicators of one job apart; a name may be used
  /// again once its last meeting has ended.
  static Result<Bootstrap> meet(const Identity& identity, const std::string& name,
                                std::chrono::milliseconds timeout);
  ~Bootstrap();
  Bootstrap(Bootstrap&&) noexcept;
  Bootstrap& operator=(Bootstrap&&) noexcept;

  int rank() const;
  int size() const;
  const std::vector<Peer>& peers() const;

  /// Everybody's blob, by rank. At most kMaxBlobBytes each; lengths may differ.
  Result<std::vector<std::string>> all_gather(std::string_view blob);
  /// Rank 0 gives `fd` (and keeps its own); the others pass -1 and receive a duplicate. Rank 0's
  /// result is empty.
  Result<transport::UniqueFd> broadcast_fd(int fd);
  /// Duplicates of what each rank gave, by rank; empty where it gave -1, and at this rank's own
  /// place.
  Result<std::vector<transport::UniqueFd>> all_gather_fds(int fd);
  Status barrier();

  /// Tells the other ranks why this one gives up: their current or next operation returns this
  /// status, with this rank's number before the message. Waits for nobody.
  void fail(const Status& why);

  /// The first rank, from `first` on, whose process has ended, or -1. Never blocks; works after
  /// close_sockets(). Any thread.
  int find_dead(int first = 0) const;
  /// Gives the sockets back once the exchange is over; peers() stay. Every rank calls it after the
  /// same operation.
  void close_sockets();

  static constexpr size_t kMaxBlobBytes = 1 << 20;

 private:
  class Impl;
  explicit Bootstrap(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace rondo::comm
