// Which rank waits for which, across communicators: while a rank waits long in one communicator,
// the boards of its process's others show for which process.
#pragma once

#include "comm/board/board.hpp"

namespace rondo::board {

/// One communicator's part in it. A peer that is a thread of this process is not shown: which of
/// its ranks is meant cannot be told.
class Elsewhere {
 public:
  /// `board` outlives it. Any thread, as the destructor.
  explicit Elsewhere(const Board& board);
  ~Elsewhere();
  Elsewhere(const Elsewhere&) = delete;
  Elsewhere& operator=(const Elsewhere&) = delete;

  /// This rank waits for `peer` of its board; -1: it does not wait. Cheap when nothing changes.
  void show(int peer);

 private:
  const Board& board_;
  int shown_ = -1;
};

}  // namespace rondo::board
