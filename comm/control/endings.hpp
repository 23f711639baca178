// Which ranks of a communicator have ended or left. Three things prove it: the pidfd of a rank of this
// host, what the agents have proved (the board says kDead or kGone), and a refused connection to the
// port at which a rank of another host listens. A lost connection proves nothing.
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
  /// begin again, ever less often.
  bool has_ended(int rank);
  /// The same without connection attempts.
  bool is_known(int rank);
  /// Whether its host does not answer: the rank may live.
  bool is_lost(int rank) const;

 private:
  bool is_marked(int rank, board::Life life) const;
  void look();

  const Bootstrap& bootstrap_;
  const board::Board& board_;
  int64_t looked_ns_ = 0;
  std::vector<bool> ended_;
  std::vector<PortProbe> probes_;  // by rank; empty on a single host
};

}  // namespace rondo::comm
