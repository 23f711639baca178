#include "comm/health/elsewhere.hpp"

#include <mutex>
#include <vector>

#include "transport/memory/across_fork.hpp"

namespace rondo::board {
namespace {

/// The boards of this process's communicators.
struct Boards {
  std::mutex mutex;
  std::vector<const Board*> all;
  /// A forked child has none of its own yet, and must not write on its parent's.
  void begin_child() { all.clear(); }
};

Boards& boards() { return transport::across_fork<Boards>(); }

}  // namespace

Elsewhere::Elsewhere(const Board& board) : board_(board) {
  const std::lock_guard lock(boards().mutex);
  boards().all.push_back(&board);
}

Elsewhere::~Elsewhere() {
  show(-1);
  const std::lock_guard lock(boards().mutex);
  std::erase(boards().all, &board_);
}

void Elsewhere::show(int peer) {
  if (peer == shown_) return;
  shown_ = peer;
  const uint64_t own = board_.observe(board_.rank()).packed_process();
  uint64_t process = peer < 0 ? 0 : board_.observe(peer).packed_process();
  if (process == own) process = 0;
  const std::lock_guard lock(boards().mutex);
  for (const Board* other : boards().all) {
    if (other == &board_) continue;
    // Relaxed: read by other ranks for diagnosis only.
    other->state(other->rank()).elsewhere.store(process, std::memory_order_relaxed);
  }
}

}  // namespace rondo::board
