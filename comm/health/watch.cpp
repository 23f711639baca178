#include "comm/health/watch.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <ctime>
#include <vector>

#include "comm/base/clock.hpp"
#include "comm/base/process.hpp"
#include "comm/health/process_state.hpp"

namespace rondo::board {

namespace {

// How long heartbeats are compared before a rank counts as standing still: longer than the longest
// sleep between two.
constexpr int64_t kHeartbeatWindowNs = 100'000'000;
// The same where heartbeats of other hosts come through agents (control/agent.hpp).
constexpr int64_t kFarHeartbeatWindowNs = 500'000'000;
// How often and how long a NewsWait looks. A rank sees that a connection closes before it sees that the
// process has ended, or its agent's message: up to 100 ms for the agent's turn (control/agent.cpp).
constexpr int64_t kBetweenLooksNs = 1'000'000;
constexpr int kMostLooks = 1000;
// A wait of this length is shown in the process's other communicators.
constexpr int64_t kLongWaitNs = 10'000'000;
// Of RankState::failed_split, for the Code.
constexpr int kCodeBits = 8;

}  // namespace

bool NewsWait::is_due() {
  const int64_t now = base::now_ns();
  if (now < next_ns_) return false;
  next_ns_ = now + kBetweenLooksNs;
  ++looks_;
  return true;
}

bool NewsWait::is_over() const { return looks_ > kMostLooks; }

void NewsWait::pause() {
  constexpr timespec kPause{0, kBetweenLooksNs};
  nanosleep(&kPause, nullptr);
}

std::string Wait::what() const {
  return call != nullptr ? fmt::format("{} (operation {})", call->to_string(), sequence) : transfer;
}

Status Watch::check(const Wait& wait) {
  RankState& own = board_.state(board_.rank());
  // Relaxed: read by other ranks for diagnosis only.
  own.heartbeat.fetch_add(1, std::memory_order_relaxed);
  own.algorithm.store(static_cast<uint32_t>(wait.algorithm), std::memory_order_relaxed);
  board_.show_wait(wait.peer, wait.step, wait.round, wait.since_ns);
  const int64_t now_is = base::now_ns();
  if (looked_ns_ >= wait.since_ns && now_is - looked_ns_ > base::kStoppedNs) moved_ns_ = now_is;
  looked_ns_ = now_is;
  if (now_is - wait.since_ns > kLongWaitNs) elsewhere_.show(std::max(wait.peer, -1));
  if (show_messages_) show_messages_(wait.since_ns);

  if (board_.has_error()) return board_.read_error();
  if (wait.call != nullptr) {
    if (Status s = find_mismatch(wait); !s.ok()) return s;
  }
  // A rank that has finished the operation is not needed any more, but without an agent nothing more is
  // heard of other hosts.
  const int dead = find_dead([&](int rank) {
    return board_.hears_through(rank) ||
           board_.state(rank).finished.load(std::memory_order_acquire) < wait.sequence;
  });
  if (dead >= 0) return raise_death(dead, "during " + wait.what());
  if (wait.call != nullptr) {
    if (Status s = check_left(wait.sequence, wait.call); !s.ok()) return s;
  }
  if (const uint64_t moves = all_moves(); moves != moves_) {
    moves_ = moves;
    moved_ns_ = now_is;
    window_end_ns_ = 0;
  }
  if (now_is - std::max(wait.since_ns, moved_ns_) > wait.timeout_ns) return stalled(wait);
  return {};
}

void Watch::done() {
  board_.state(board_.rank()).waiting_for.store(-1, std::memory_order_relaxed);
  board_.show_messages(0);
  elsewhere_.show(-1);
  window_end_ns_ = 0;
}

uint64_t Watch::all_moves() const {
  uint64_t sum = 0;
  for (int r = 0; r < board_.ranks(); ++r) {
    const RankState& s = board_.state(r);
    sum += s.progress.load(std::memory_order_relaxed) + s.posted.load(std::memory_order_relaxed) +
           s.finished.load(std::memory_order_relaxed);
  }
  return sum;
}

template <class Matters>
int Watch::find_dead(const Matters& matters) const {
  board_.learn_deaths(find_ended_);
  for (int rank = 0; rank < board_.ranks(); ++rank) {
    if (board_.is_dead_or_lost(rank) && matters(rank)) return rank;
  }
  return -1;
}

bool Watch::has_ended(int peer) const {
  return find_dead([peer](int rank) { return rank == peer; }) >= 0;
}

Status Watch::check_alive(std::span<const int> ranks, std::string_view when) {
  const int dead =
      find_dead([&](int rank) { return std::ranges::find(ranks, rank) != ranks.end(); });
  return dead >= 0 ? raise_death(dead, when) : Status();
}

Status Watch::check_all_alive(std::string_view when) {
  const int dead = find_dead([](int) { return true; });
  return dead >= 0 ? raise_death(dead, when) : Status();
}

// Life first: a rank posts before it leaves.
Status Watch::check_left(uint64_t sequence, const Fingerprint* call) {
  for (int peer = 0; peer < board_.ranks(); ++peer) {
    if (!board_.has_left(peer) || board_.last_begun(peer) >= sequence) continue;
    return board_.raise(left_early(
        peer,
        fmt::format("after operation {}; rank {} is in operation {}{}", board_.last_begun(peer),
                    board_.rank(), sequence, call != nullptr ? ", " + call->to_string() : "")));
  }
  return {};
}

void Watch::fail_split(uint64_t number, Code code) const {
  // Relaxed: the word is all that is said.
  board_.state(board_.rank())
      .failed_split.store(number << kCodeBits | static_cast<uint64_t>(code),
                          std::memory_order_relaxed);
}

Status Watch::check_split(std::span<const int> ranks, uint64_t number,
                          std::string_view what) const {
  for (const int rank : ranks) {
    const uint64_t failed = board_.state(rank).failed_split.load(std::memory_order_relaxed);
    if (rank == board_.rank() || failed >> kCodeBits != number) continue;
    return {
        static_cast<Code>(failed & ((1u << kCodeBits) - 1)),
        fmt::format("{} cannot take part in this {} ({}): see its own error", board_.name_of(rank),
                    what, to_string(static_cast<Code>(failed & ((1u << kCodeBits) - 1))))};
  }
  return {};
}

Status Watch::raise_death(int rank, std::string_view when) {
  const board::Places& places = board_.places();
  if (places.several() && rank == places.hosts.ranks_on(places.hosts.host_of(board_.rank()))[0]) {
    board_.agent_has_ended();  // nobody waits for a verdict from it
  }
  const bool is_lost = board_.life(rank) == Life::kLost;
  return board_.raise(
      {Code::kPeerDied,
       fmt::format("{} {} {}; found by rank {}", board_.name_of(rank),
                   is_lost ? "did not answer, and may live," : "ended", when, board_.rank())});
}

Status Watch::find_mismatch(const Wait& wait) {
  for (int peer = 0; peer < board_.ranks(); ++peer) {
    if (peer == board_.rank()) continue;
    const auto posted = board_.read(peer, wait.sequence);
    if (posted && posted->call != *wait.call) return mismatch(peer, wait.sequence, *wait.call);
    if (Status s = find_uneven(peer, wait.sequence, *wait.call); !s.ok()) return s;
  }
  return {};
}

Status Watch::abandoned(int peer, const std::string& transfer) {
  if (peer == kAnySource) {
    return board_.raise({Code::kPeerDied,
                         fmt::format("all other ranks left the communicator while rank {} is in "
                                     "{}: destroy a communicator only when every rank has finished",
                                     board_.rank(), transfer)});
  }
  return board_.raise(
      left_early(peer, fmt::format("while rank {} is in {}", board_.rank(), transfer)));
}

// The rank that died or left is a better answer than one of its connections.
bool Watch::explain_link(const Status& link, const std::string& what, int peer, NewsWait& wait) {
  if (board_.has_error()) return true;
  if (link.code() == Code::kPeerDied) {
    if (!wait.is_due()) return false;
    if (!check_all_alive("during " + what).ok()) return true;
    if (peer >= 0 && board_.has_left(peer)) {
      (void)abandoned(peer, what);
      return true;
    }
    if (!wait.is_over()) return false;
  }
  board_.propose({link.code(), fmt::format("{} during {}; found by rank {}", link.message(), what,
                                           board_.rank())});
  return true;
}

Status Watch::find_uneven(int peer, uint64_t sequence, const Fingerprint& call) {
  const Status found = uneven(board_, board_.rank(), peer, sequence, call);
  return found.ok() ? found : board_.raise(found);
}

bool Watch::has_row(int peer, uint64_t sequence, NewsWait& wait) const {
  if (peer < 0 || board_.is_local(peer) || board_.has_error()) return true;
  // What makes agents send rows often (control/agent.cpp).
  board_.show_wait_for_row(peer);
  // Where one operation is missing that is remembered, the row was sent while nobody waited.
  const uint64_t oldest = oldest_remembered(sequence);
  const uint64_t begun = board_.last_begun(peer);
  if (begun >= sequence && (board_.read(peer, oldest) || begun >= oldest + kHistory)) return true;
  (void)wait.is_due();
  return wait.is_over();
}

Status Watch::mismatch(int peer, uint64_t sequence, const Fingerprint& call) {
  return mismatch(board_.rank(), peer, sequence, call.to_string());
}

// The first difference that the board still remembers: later ones follow from it.
Status Watch::mismatch(int rank, int peer, uint64_t sequence, const std::string& called) {
  const Status found = disagreement(board_, rank, peer, oldest_remembered(sequence), sequence);
  if (!found.ok()) return board_.raise(found);
  const auto theirs =
      fmt::format("something else (it is at operation {})", board_.last_begun(peer));
  return board_.raise(unlike_calls(sequence, rank, called, peer, theirs));
}

Status Watch::find_disagreement(uint64_t sequence) {
  for (int rank = 0; rank < board_.ranks(); ++rank) {
    for (int peer = 0; peer < rank; ++peer) {
      const Status found = disagreement(board_, rank, peer, sequence, sequence);
      if (!found.ok()) return mismatch(rank, peer, sequence, {});
    }
  }
  return {};
}

Status Watch::compare_calls() {
  const int rank = board_.rank();
  const uint64_t own = board_.last_begun(rank);
  // Sequentially consistent, here and in the loop: of two ranks that end at the same moment one at
  // least sees the other's last post.
  board_.state(rank).posted.store(own, std::memory_order_seq_cst);
  for (int peer = 0; peer < board_.ranks(); ++peer) {
    if (peer == rank) continue;
    const uint64_t last = std::min(own, board_.state(peer).posted.load(std::memory_order_seq_cst));
    const Status found = disagreement(board_, rank, peer, oldest_remembered(last), last);
    if (!found.ok()) return board_.raise(found);
  }
  return {};
}

// Rows come by agents, which live in the first ranks of their hosts, and from one host to another by that
// of rank 0: if they have stopped coming, such a rank has stopped, and others may have not.
int Watch::source_of(int rank) const {
  const base::HostMap& hosts = board_.places().hosts;
  const bool no_agent = board_.places().several() && !board_.agent_looks(base::now_ns());
  const int own_first = hosts.ranks_on(hosts.host_of(board_.rank()))[0];
  if (!board_.is_local(rank) && no_agent && !board_.has_left(own_first)) return own_first;
  if (!rows_are_old(rank)) return rank;
  return rows_are_old(0) ? 0 : hosts.ranks_on(hosts.host_of(rank))[0];
}

bool Watch::rows_are_old(int rank) const {
  const int64_t heard_ns = board_.state(rank).heard_ns.load(std::memory_order_relaxed);
  const int64_t now = base::now_ns();
  return !board_.is_local(rank) && board_.agent_looks(now) &&
         now - heard_ns > kFarHeartbeatWindowNs;
}

std::string Watch::describe_stalled(int rank, const Wait& wait) const {
  const Observation seen = board_.observe(rank);
  if (rows_are_old(rank)) {
    return fmt::format(
        "{} stands still: nothing has come from its process for {:.3g} s, when it was in "
        "operation {}",
        name_of(rank), static_cast<double>(base::now_ns() - seen.heard_ns) * 1e-9, seen.posted);
  }
  return seen.posted >= wait.sequence ? name_of(rank) + " stands still inside it"
                                      : describe_late(rank);
}

std::string Watch::describe_late(int rank) const {
  const std::vector<Message> messages = board_.messages(rank);
  std::string text = name_of(rank) + " has not called it";
  text += messages.empty() ? fmt::format("; its last operation is {}", board_.last_begun(rank))
                           : fmt::format(": it waits in {}", messages[0].to_string());
  if (const int awaited = awaited_elsewhere(board_.observe_all(), rank); awaited >= 0) {
    text += fmt::format("; it waits in another communicator for {}", name_of(awaited));
  }
  return text;
}

std::string Watch::name_of(int rank) const {
  const Observation seen = board_.observe(rank);
  std::string name = board_.name_of(rank), state;
  if (!board_.is_local(rank)) {
    // As its host's agent has seen it.
    const auto letter = static_cast<char>(seen.process);
    if (is_stopped(letter)) state = ", " + words_of(letter);
  } else if (!base::proc_shows(seen.pid_namespace)) {
    state = " of another PID namespace";
  } else if (state = process_state(seen.pid); !state.empty()) {
    state = ", " + state;
  }
  return name.insert(name.size() - 1, state);  // before ')'
}

std::string Watch::describe_awaited(const Wait& wait) const {
  if (wait.peer != kAnySource) return fmt::format("rank {}", wait.peer);
  constexpr size_t kMostNamed = 16;
  std::vector<int> candidates;
  for (int r = 0; r < board_.ranks(); ++r) {
    if (r != board_.rank() && !board_.has_left(r)) candidates.push_back(r);
  }
  const size_t unnamed = candidates.size() - std::min(candidates.size(), kMostNamed);
  candidates.resize(candidates.size() - unnamed);
  return fmt::format("any rank: {}{}", fmt::join(candidates, ", "),
                     unnamed > 0 ? fmt::format(" and {} more", unnamed) : "");
}

std::string Watch::describe_circle(const Wait& wait) const {
  for (int r = 0; r < board_.ranks() && wait.call != nullptr; ++r) {
    const uint64_t posted = board_.state(r).posted.load(std::memory_order_acquire);
    if (posted < wait.sequence && !board_.messages(r).empty()) return describe_late(r);
  }
  if (wait.call != nullptr && !pace_.empty()) {
    return fmt::format(
        "all ranks wait for each other, or for messages that the pace '{}' delays: give a longer "
        "timeout or a faster pace",
        pace_);
  }
  if (wait.call != nullptr) {
    return "all ranks wait for each other: this is a bug in rondo or in the order of calls";
  }
  std::string text = "all ranks wait for each other: ";
  if (wait.peer >= 0 && wait.peer != board_.rank()) {
    const std::vector<Message> theirs = board_.messages(wait.peer);
    if (!theirs.empty()) {
      text += fmt::format("rank {} waits in {}; ", wait.peer, theirs[0].to_string());
    }
  }
  return text +
         "if each sends before it receives, put its sends and recvs into one group; or they call "
         "in different orders";
}

// Slow is not dead: this is asked when nothing has moved at all, for anybody, since the deadline
// began. Who has no heartbeat either is found by looking twice, a while apart. It does not wait in
// between: the thread may be the one that moves what it looks at, for another rank or communicator.
Status Watch::stalled(const Wait& wait) {
  const int64_t now_is = base::now_ns();
  if (window_end_ns_ == 0) {
    before_ = board_.observe_all();
    window_end_ns_ =
        now_is + (board_.places().several() ? kFarHeartbeatWindowNs : kHeartbeatWindowNs);
  }
  if (now_is < window_end_ns_) return {};
  window_end_ns_ = 0;
  if (wait.call == nullptr && wait.peer >= 0 && board_.has_left(wait.peer)) {
    return abandoned(wait.peer, wait.transfer);
  }
  const int culprit = find_culprit({.before = before_,
                                    .now = board_.observe_all(),
                                    .rank = board_.rank(),
                                    .peer = wait.peer,
                                    .sequence = wait.sequence,
                                    .source = [this](int rank) { return source_of(rank); }});
  const std::string why = culprit >= 0 ? describe_stalled(culprit, wait) : describe_circle(wait);
  return board_.raise(
      {Code::kTimeout,
       fmt::format("{} has not moved for {:.3g} s on rank {}, which waits for {}: {}", wait.what(),
                   static_cast<double>(base::now_ns() - wait.since_ns) * 1e-9, board_.rank(),
                   describe_awaited(wait), why)});
}

}  // namespace rondo::board
