// Connections to rank 0 whose other end has not proved the job's secret. Anyone who reaches the port
// can make them, so they are few, short-lived, and shared fairly between the addresses they come
// from.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <deque>

#include "comm/bootstrap/connection/connection.hpp"
#include "comm/bootstrap/connection/wire.hpp"
#include "transport/memory/unique_fd.hpp"

namespace rondo::comm {

/// Costs one descriptor and some 300 bytes.
struct PendingConnection {
  transport::UniqueFd socket;  // empty: it is over
  uint64_t source;             // source_of() the other end
  pid_t visible_pid;           // 0: it cannot be seen from here
  Deadline::Time deadline;
  Challenge challenge;
  size_t received = 0;
  Hello hello{};
};

/// One thread. At most `most` connections.
class PendingConnections {
 public:
  explicit PendingConnections(size_t most) : most_(most) {}

  /// If there are too many, drop_one() makes room.
  void add(PendingConnection connection);
  /// Closes the oldest from the address that most come from, so a flood from some addresses closes
  /// no connection from another. Returns whether there was one.
  bool drop_one();
  /// Forgets those whose socket is empty.
  void forget_closed();

  auto begin() { return connections_.begin(); }
  auto end() { return connections_.end(); }

 private:
  const size_t most_;
  std::deque<PendingConnection> connections_;  // oldest first
};

/// The address at the other end of a TCP connection; of IPv6 the network (64 bits), since one host
/// has as many addresses there as it likes. 0: a unix socket.
uint64_t source_of(int socket);

}  // namespace rondo::comm
