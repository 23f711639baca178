// How an agent gets a connection back that was lost, and how it learns that the process at the other
// end has ended.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "comm/bootstrap/connection/connection.hpp"
#include "comm/bootstrap/identity/environment.hpp"
#include "comm/bootstrap/session/bootstrap.hpp"

namespace rondo::comm {

/// Ranks are the first ones of their hosts. One thread. Nothing here waits.
class Reconnector {
 public:
  virtual ~Reconnector() = default;
  /// A new authenticated connection to the agent in the process of `rank`, or nullopt until it is
  /// made. The first call starts the attempts.
  virtual std::optional<Connection> reconnect(int rank) = 0;
  /// Whether the process of `rank` is proved to have ended. If false, it may live.
  virtual bool has_ended(int rank) = 0;
  /// Ends the attempts to connect to `rank`.
  virtual void give_up(int rank) = 0;
};

/// Over TCP: the agents connect to the port at which rank 0 listens for sub-communicators, with the
/// handshake of the bootstrap. `identity`: that of the communicator's own rendezvous. `token`: equal
/// on all ranks of this communicator, and of no other one. `bootstrap` outlives it.
std::unique_ptr<Reconnector> reconnect_over_tcp(const Bootstrap& bootstrap, Identity identity,
                                                uint64_t token);

}  // namespace rondo::comm
