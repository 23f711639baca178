// Finds which ranks of a communicator have ended or left, for shrink(). The board records what this
// host and the agents have proved. If the agent of another host may have ended as well, this connects to
// the port at which the rank listens.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/board/board.hpp"
#include "comm/bootstrap/session/bootstrap.hpp"
#include "comm/control/port_probe.hpp"

namespace rondo::comm {

/// One thread. Never waits. What is known stays known.
class Endings {
 public:
  /// Both outlive it.
  Endings(const Bootstrap& bootstrap, const board::Board& board);

  /// Asks the kernel, and of a rank on another host what its last connection attempt gave; attempts
  /// begin again, ever less often. A proof goes to the board.
  bool has_ended(int rank);
  /// The same without connection attempts.
  bool is_known(int rank);
  /// Whether its host does not answer: the rank may live.
  bool is_lost(int rank) const { return board_.life(rank) == board::Life::kLost; }

 private:
  const Bootstrap& bootstrap_;
  const board::Board& board_;
  int64_t looked_ns_ = 0;
  std::vector<PortProbe> probes_;  // by rank; empty on a single host
};

}  // namespace rondo::comm
