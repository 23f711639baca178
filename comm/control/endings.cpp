// See endings.hpp.
#include "comm/control/endings.hpp"

#include "comm/base/clock.hpp"

namespace rondo::comm {
namespace {

constexpr int64_t kLookEveryNs = 1'000'000;

}  // namespace

Endings::Endings(const Bootstrap& bootstrap, const board::Board& board)
    : bootstrap_(bootstrap), board_(board), ended_(static_cast<size_t>(board.ranks())) {
  for (const RankHost& place : bootstrap.places()) probes_.emplace_back(place.address, place.port);
}

bool Endings::has_ended(int rank) {
  look();
  const auto at = static_cast<size_t>(rank);
  if (!ended_[at] && !board_.is_local(rank) && probes_[at].is_refused()) ended_[at] = true;
  return ended_[at];
}

bool Endings::is_known(int rank) {
  look();
  return ended_[static_cast<size_t>(rank)];
}

bool Endings::is_lost(int rank) const { return is_marked(rank, board::Life::kLost); }

bool Endings::is_marked(int rank, board::Life life) const {
  return board_.state(rank).life.load(std::memory_order_acquire) == static_cast<uint32_t>(life);
}

void Endings::look() {
  const int64_t now = base::now_ns();
  if (now - looked_ns_ < kLookEveryNs) return;
  looked_ns_ = now;
  for (int dead = bootstrap_.find_dead(); dead >= 0; dead = bootstrap_.find_dead(dead + 1)) {
    ended_[static_cast<size_t>(dead)] = true;
  }
  for (int rank = 0; rank < board_.ranks(); ++rank) {
    if (rank == board_.rank()) continue;
    if (is_marked(rank, board::Life::kGone) || is_marked(rank, board::Life::kDead)) {
      ended_[static_cast<size_t>(rank)] = true;
    }
  }
}

}  // namespace rondo::comm
