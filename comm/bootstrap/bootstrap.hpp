// How the ranks of one communicator find and authenticate each other, and what they exchange before
// shared memory exists: a star of unix stream sockets around rank 0, on one host, found over TCP
// where no directory is shared. For a few kilobytes and a few descriptors per rank, never for
// payload. No wait is unbounded, and a failure of one rank reaches all.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/bootstrap/connection.hpp"
#include "comm/bootstrap/environment.hpp"
#include "comm/bootstrap/process_handle.hpp"
#include "rondo/status.hpp"
#include "transport/memory/unique_fd.hpp"

namespace rondo::comm {

/// A rank of this communicator, this one included.
struct Peer {
  pid_t pid = 0;               // in its own PID namespace,
  uint64_t pid_namespace = 0;  // which is this one (inode)
  bool same_process = false;   // a thread of this process, or this rank
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
  /// again once its last meeting has ended. `interrupt` may end this and every later wait early,
  /// until close_sockets(). `failing` is called when this rank fails to meet, unless another has
  /// told it why. Throws only before another rank can have seen this one, which may then come again.
  static Result<Bootstrap> meet(const Identity& identity, const std::string& name,
                                std::chrono::milliseconds timeout, Interrupt interrupt = {},
                                const std::function<void(const Status&)>& failing = {});
  ~Bootstrap();
  Bootstrap(Bootstrap&&) noexcept;
  Bootstrap& operator=(Bootstrap&&) noexcept;

  int rank() const;
  int size() const;
  const std::vector<Peer>& peers() const;

  /// Every rank's blob, by rank. At most kMaxBlobBytes each; lengths may differ.
  Result<std::vector<std::string>> all_gather(std::string_view blob);
  /// Rank 0 passes `fd`, which stays its own; the others pass -1 and receive a duplicate. Rank 0's
  /// result is empty.
  Result<transport::UniqueFd> broadcast_fd(int fd);
  /// Duplicates of each rank's `fd`, by rank; empty where it passed -1, and for this rank itself.
  Result<std::vector<transport::UniqueFd>> all_gather_fds(int fd);
  Status barrier();

  /// This rank fails: the other ranks' current or next operation returns `why`, with this rank's
  /// number before the message. Never waits.
  void fail(const Status& why);

  /// The first rank, from `first` on, whose process has ended, or -1. Never blocks; works after
  /// close_sockets(). Any thread.
  int find_dead(int first = 0) const;
  /// Closes the sockets; peers() stay. Every rank calls it after the same operation.
  void close_sockets();

  static constexpr size_t kMaxBlobBytes = 1 << 20;

 private:
  class Impl;
  explicit Bootstrap(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace rondo::comm
