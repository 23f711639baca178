// See endings.hpp.
#include "comm/control/endings.hpp"

#include "comm/base/clock.hpp"

namespace rondo::comm {

using board::Life;

constexpr int64_t kLookEveryNs = 1'000'000;

Endings::Endings(const Bootstrap& bootstrap, const board::Board& board)
    : bootstrap_(bootstrap), board_(board) {
  for (const RankHost& place : bootstrap.places()) probes_.emplace_back(place.address, place.port);
}

bool Endings::has_ended(int rank) {
  if (!board_.is_local(rank) && !is_known(rank) &&
      probes_[static_cast<size_t>(rank)].is_refused()) {
    board_.learn(rank, Life::kDead);
  }
  return is_known(rank);
}

bool Endings::is_known(int rank) {
  const int64_t now = base::now_ns();
  if (now - looked_ns_ >= kLookEveryNs) {
    looked_ns_ = now;
    board_.learn_deaths([this](int first) { return bootstrap_.find_dead(first); });
  }
  return board_.life(rank) >= Life::kDead;
}

}  // namespace rondo::comm
