// Which ranks of a communicator have ended or left, as far as this process can know it without their
// help: by the pidfds of this host's, by the board, and where a rank of another host listens for the
// parts of this communicator, by whether its host refuses a connection there. The agents are no help:
// they end with the first process of their host.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/board/board.hpp"
#include "comm/bootstrap/bootstrap.hpp"
#include "transport/memory/unique_fd.hpp"

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
  struct Attempt {
    transport::UniqueFd socket;
    int64_t began_ns = 0;
    int64_t pause_ns = 0;  // from its beginning until the next one's; longer each time
  };
  bool is_marked(int rank, board::Life life) const;
  void look();
  void ask(int rank);
  void conclude(int rank, int error);

  const Bootstrap& bootstrap_;
  const board::Board& board_;
  int64_t looked_ns_ = 0;
  std::vector<bool> ended_;
  std::vector<Attempt> attempts_;
};

}  // namespace rondo::comm
