// See endings.hpp.
#include "comm/control/endings.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "comm/base/clock.hpp"
#include "comm/bootstrap/interface.hpp"

namespace rondo::comm {
namespace {

constexpr int64_t kLookEveryNs = 1'000'000;
constexpr int64_t kFirstPauseNs = 50'000'000, kLongestPauseNs = 1'000'000'000;
constexpr int64_t kAttemptNs = 1'000'000'000;  // then another begins

}  // namespace

Endings::Endings(const Bootstrap& bootstrap, const board::Board& board)
    : bootstrap_(bootstrap),
      board_(board),
      ended_(static_cast<size_t>(board.ranks())),
      attempts_(static_cast<size_t>(board.ranks())) {}

bool Endings::has_ended(int rank) {
  look();
  if (!ended_[static_cast<size_t>(rank)] && !board_.is_local(rank)) ask(rank);
  return ended_[static_cast<size_t>(rank)];
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

// A process's listening socket is closed at its end at the latest; a stopped process's is not.
void Endings::ask(int rank) {
  Attempt& attempt = attempts_[static_cast<size_t>(rank)];
  const int64_t now = base::now_ns();
  if (attempt.socket.valid()) {
    pollfd writable{attempt.socket.get(), POLLOUT, 0};
    if (poll(&writable, 1, 0) > 0) {
      int error = 0;
      socklen_t bytes = sizeof error;
      (void)getsockopt(attempt.socket.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
      conclude(rank, error);
    } else if (now - attempt.began_ns > kAttemptNs) {
      attempt.socket.reset();
    }
    return;
  }
  if (attempt.began_ns != 0 && now - attempt.began_ns < attempt.pause_ns) return;
  attempt.began_ns = now;
  attempt.pause_ns = std::clamp(2 * attempt.pause_ns, kFirstPauseNs, kLongestPauseNs);
  const RankHost& place = bootstrap_.places()[static_cast<size_t>(rank)];
  const auto address = parse_address(place.address, place.port);
  if (!address.ok()) return;
  attempt.socket = transport::UniqueFd(
      socket(address->get()->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!attempt.socket.valid()) return;
  const int made = connect(attempt.socket.get(), address->get(), address->bytes);
  if (made == 0 || errno != EINPROGRESS) conclude(rank, made == 0 ? 0 : errno);
}

void Endings::conclude(int rank, int error) {
  attempts_[static_cast<size_t>(rank)].socket.reset();
  if (error == ECONNREFUSED) ended_[static_cast<size_t>(rank)] = true;
}

}  // namespace rondo::comm
