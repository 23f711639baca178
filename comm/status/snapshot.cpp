// The number of a step is all that a rank publishes; its name comes from the schedule, which is a
// pure function of what the board says.
#include "comm/status/snapshot.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "comm/algorithms/algorithm.hpp"
#include "comm/base/clock.hpp"
#include "comm/base/counted.hpp"
#include "comm/base/process.hpp"
#include "comm/health/diagnose.hpp"
#include "comm/health/process_state.hpp"

namespace rondo::status {
namespace {

using board::BoardView;
using board::Life;
using board::Observation;

bool has_ended(const std::string& process) { return process.empty() || process == "a zombie"; }
bool is_stopped(const std::string& process) { return process.starts_with("stopped"); }

/// The owner may be 64 operations further before a post has been read: then a newer one is asked
/// for.
std::optional<board::Posted> last_posted(const BoardView& board, int rank, uint64_t& sequence) {
  constexpr int kTries = 8;
  for (int i = 0; i < kTries; ++i) {
    sequence = board.state(rank).posted.load(std::memory_order_acquire);
    if (auto posted = board.read(rank, sequence)) return posted;
  }
  return std::nullopt;
}

double seconds_since(int64_t since_ns) {
  return static_cast<double>(std::max<int64_t>(base::now_ns() - since_ns, 0)) * 1e-9;
}

void describe_wait(const Observation& seen, const board::Fingerprint& call,
                   const schedule::SharedHosts& hosts, RankSnapshot& rank) {
  rank.seconds = seconds_since(seen.waiting_since_ns);
  rank.algorithm = static_cast<Algorithm>(seen.algorithm);
  if (call.root < 0 || call.root >= hosts->ranks()) return;  // a board that a stranger wrote
  auto schedule = algorithms::build(call.collective, rank.algorithm, hosts, rank.rank, call.root);
  if (!schedule.ok() || seen.step >= schedule->steps.size()) return;
  rank.step = seen.step;
  rank.steps = static_cast<uint32_t>(schedule->steps.size());
  rank.round = seen.round;
  rank.action = schedule::name_of(schedule->steps[seen.step]);
}

/// What a rank that is in no operation waits with: a message from or to that peer.
std::string message_with(const RankSnapshot& rank) {
  for (const board::Message& message : rank.messages) {
    if (message.peer == rank.peer) return message.to_string();
  }
  return "a message (send, recv)";
}

RankSnapshot look_at(const BoardView& board, std::span<const Observation> all, int r,
                     const schedule::SharedHosts& hosts, int own_host) {
  const Observation& seen = all[static_cast<size_t>(r)];
  RankSnapshot rank{.rank = r, .pid = seen.pid, .host = hosts->host_of(r)};
  const bool here = rank.host == own_host;
  if (!here) rank.age_seconds = seconds_since(seen.heard_ns);
  const int peer = seen.waiting_for;
  rank.ended = seen.finished;
  rank.messages = board.messages(r);
  rank.message_lanes = seen.messages;
  const auto posted = last_posted(board, r, rank.begun);
  if (posted) rank.operation = posted->call.to_string();
  rank.foreign_pid = here && seen.life == Life::kAlive && !base::proc_shows(seen.pid_namespace);
  const bool has_process = here && seen.life == Life::kAlive && !rank.foreign_pid;
  if (has_process) rank.process = board::process_state(rank.pid);
  const auto letter = static_cast<char>(seen.process);
  if (!here && seen.life == Life::kAlive && board::is_stopped(letter)) {
    rank.process = board::words_of(letter);
  }
  if (seen.life != Life::kAlive) {
    rank.doing = seen.life == Life::kGone   ? Doing::kLeft
                 : seen.life == Life::kDead ? Doing::kDead
                 : seen.life == Life::kLost ? Doing::kLost
                                            : Doing::kNotCome;
  } else if (has_process && has_ended(rank.process)) {
    rank.doing = Doing::kDead;
  } else if (rank.begun <= rank.ended &&
             (peer == kAnySource || (peer >= 0 && peer < board.ranks()))) {
    rank.doing = Doing::kWaiting;
    rank.peer = peer;
    rank.operation = message_with(rank);
    rank.seconds = seconds_since(seen.waiting_since_ns);
  } else if (rank.begun <= rank.ended) {
    rank.doing = Doing::kOutside;
    rank.elsewhere = board::awaited_elsewhere(all, r);
  } else if (peer < 0 || peer >= board.ranks() || !posted) {
    rank.doing = Doing::kWorking;
  } else {
    rank.doing = Doing::kWaiting;
    rank.peer = peer;
    describe_wait(seen, posted->call, hosts, rank);
  }
  return rank;
}

/// Whom a chain goes on to: -1 where it ends.
int next_of(const RankSnapshot& rank) {
  return is_stopped(rank.process) ? -1 : rank.peer >= 0 ? rank.peer : rank.elsewhere;
}
std::string place_of_wait(const RankSnapshot& rank) {
  return rank.elsewhere >= 0 ? " in another communicator" : "";
}

/// Whether the waits of these ranks, each for the next and the last for the first, were all so at one
/// time: the copy of another host's row is some time old, and the ranks have gone on meanwhile.
bool is_circle(const Snapshot& snapshot, std::span<const int> ranks) {
  double shortest_wait = std::numeric_limits<double>::infinity(), oldest = 0;
  for (const int r : ranks) {
    const RankSnapshot& rank = snapshot.ranks[static_cast<size_t>(r)];
    if (!rank.is_steady) return false;
    // How long a process has waited in another communicator is not known.
    shortest_wait = std::min(shortest_wait, rank.doing == Doing::kWaiting ? rank.seconds : 0);
    oldest = std::max(oldest, rank.age_seconds.value_or(0));
  }
  return shortest_wait >= oldest;
}

/// " on host b", where there are several.
std::string host_of(const Snapshot& snapshot, const RankSnapshot& rank) {
  if (snapshot.hosts.empty()) return "";
  return " on host " + snapshot.hosts[static_cast<size_t>(rank.host)];
}

std::string end_of_chain(const Snapshot& snapshot, const std::vector<int>& path) {
  const RankSnapshot& rank = snapshot.ranks[static_cast<size_t>(path.back())];
  if (is_stopped(rank.process)) {
    return fmt::format("is {} (pid {}{})", rank.process, rank.pid, host_of(snapshot, rank));
  }
  const auto back_to = std::ranges::find(path, next_of(rank));
  const bool circle = back_to != path.end() && is_circle(snapshot, {back_to, path.end()});
  const char* const claim = circle ? ": a circle" : ": a circle, if all of this was so at one time";
  switch (rank.doing) {
    case Doing::kNotCome:
      return "has not come";
    case Doing::kOutside:
      if (rank.elsewhere >= 0) {
        return fmt::format("waits in another communicator for rank {}{}", rank.elsewhere, claim);
      }
      return rank.ended == 0 ? "has not begun an operation"
                             : fmt::format("is not in an operation; its last was #{}", rank.ended);
    case Doing::kWorking:
      return fmt::format("works on #{}", rank.begun);
    case Doing::kWaiting:
      if (rank.peer == kAnySource) return "waits for a message from any rank";
      return fmt::format("waits for rank {}{}", rank.peer, claim);
    case Doing::kLeft:
      return "has left";
    case Doing::kLost:
      return fmt::format("is lost (pid {}{}): its host does not answer, and it may live", rank.pid,
                         host_of(snapshot, rank));
    case Doing::kDead:
      return fmt::format("is dead (pid {}{})", rank.pid, host_of(snapshot, rank));
  }
  return "";
}

std::string list_of(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() > 1 ? "s" : "", fmt::join(ranks, ", "));
}

/// From `head` on, whom each waits for, in turn.
std::vector<int> path_from(const Snapshot& snapshot, int head) {
  return board::follow(head, snapshot.ranks.size(), [&](int rank) {
    return next_of(snapshot.ranks[static_cast<size_t>(rank)]);
  });
}

/// A cell, wide enough for every host's name; nothing where there is one host. Of the heading: -1.
std::string host_cell(const Snapshot& snapshot, int host) {
  if (snapshot.hosts.empty()) return "";
  size_t width = 4;
  for (const std::string& name : snapshot.hosts) width = std::max(width, name.size());
  return fmt::format("{:<{}}  ", host < 0 ? "host" : snapshot.hosts[static_cast<size_t>(host)],
                     width);
}

std::string row_of(const Snapshot& snapshot, const RankSnapshot& rank) {
  const bool waits = rank.doing == Doing::kWaiting;
  const bool in_operation = rank.begun > rank.ended || waits;
  std::string step = "-", round = "-", wait = "-", peer = "-";
  if (waits) {
    peer = rank.peer == kAnySource ? "any" : std::to_string(rank.peer);
    wait = fmt::format("{:.3g} s", rank.seconds);
    if (rank.step) {
      step = fmt::format("{} of {} {}", *rank.step, rank.steps, rank.action);
      round = std::to_string(rank.round);
    }
  }
  std::string operation = in_operation ? rank.operation : "-";
  if (waits && rank.algorithm != Algorithm::kAuto && operation.find(" by ") == std::string::npos) {
    operation += fmt::format(" by {}", name(rank.algorithm));
  }
  return fmt::format("{:>4}  {}{:>8}  {:<24}  {:>10}  {:<28}  {:>6}  {:>5}  {:>8}  {}", rank.rank,
                     host_cell(snapshot, rank.host), rank.pid,
                     rank.process.empty()
                         ? to_string(rank.doing)
                         : fmt::format("{} ({})", to_string(rank.doing), rank.process),
                     rank.begun, step, round, peer, wait, operation);
}

/// A line for each.
std::string messages_of(const RankSnapshot& rank) {
  std::string text;
  for (const board::Message& message : rank.messages) {
    text += fmt::format("rank {}: {}\n", rank.rank, message.describe());
  }
  if (rank.message_lanes > board::kMessages) {
    text += fmt::format("rank {}: and those of {} more lanes\n", rank.rank,
                        rank.message_lanes - board::kMessages);
  }
  return text;
}

/// How old the rows of other hosts' ranks are.
std::string remote_rows(const Snapshot& snapshot) {
  std::vector<int> remote;
  double oldest = 0;
  for (const RankSnapshot& rank : snapshot.ranks) {
    if (!rank.age_seconds) continue;
    remote.push_back(rank.rank);
    oldest = std::max(oldest, *rank.age_seconds);
  }
  if (remote.empty()) return "";
  return fmt::format("{}: on other hosts, as it was up to {:.2g} s ago\n", list_of(remote), oldest);
}

}  // namespace

const char* to_string(Doing doing) {
  static constexpr const char* kWords[] = {"not come", "outside", "works", "waits",
                                           "left",     "lost",    "dead"};
  return kWords[static_cast<size_t>(doing)];
}

Snapshot take(const MappedBoard& board) {
  const BoardView view = board.view();
  board::Places places = view.read_places();
  const auto hosts = std::make_shared<const base::HostMap>(std::move(places.hosts));
  Snapshot snapshot{.communicator = board.name(), .hosts = std::move(places.names)};
  const int own_host = hosts->hosts() > 1 ? board.host() : 0;
  const std::vector<Observation> all = view.observe_all();
  for (int rank = 0; rank < view.ranks(); ++rank) {
    snapshot.ranks.push_back(look_at(view, all, rank, hosts, own_host));
  }
  for (RankSnapshot& rank : snapshot.ranks) {
    rank.is_steady = all[static_cast<size_t>(rank.rank)].is_same_wait(view.observe(rank.rank));
  }
  if (const Status error = view.error(); !error.ok()) snapshot.error = error.to_string();
  return snapshot;
}

std::vector<std::string> waiting_chains(const Snapshot& snapshot) {
  std::vector<bool> awaited(snapshot.ranks.size(), false), told(snapshot.ranks.size(), false);
  for (const RankSnapshot& rank : snapshot.ranks) {
    if (const int next = next_of(rank); next >= 0) awaited[static_cast<size_t>(next)] = true;
  }
  // Heads that go on alike share a sentence.
  std::map<std::pair<std::string, std::vector<int>>, std::vector<int>> heads;
  const auto tell = [&](int head) {
    std::vector<int> path = path_from(snapshot, head);
    for (int rank : path) told[static_cast<size_t>(rank)] = true;
    path.erase(path.begin());
    heads[{place_of_wait(snapshot.ranks[static_cast<size_t>(head)]), path}].push_back(head);
  };
  for (const RankSnapshot& rank : snapshot.ranks) {
    if (next_of(rank) >= 0 && !awaited[static_cast<size_t>(rank.rank)]) tell(rank.rank);
  }
  for (const RankSnapshot& rank : snapshot.ranks) {  // circles have no head
    if (next_of(rank) >= 0 && !told[static_cast<size_t>(rank.rank)]) tell(rank.rank);
  }
  std::vector<std::string> sentences;
  for (const auto& [way, from] : heads) {
    const auto& [place, path] = way;
    std::string text = list_of(from) + (from.size() > 1 ? " wait" : " waits") + place;
    for (size_t i = 0; i < path.size(); ++i) {
      const auto before = static_cast<size_t>(i > 0 ? path[i - 1] : 0);
      if (i > 0) text += "waits" + place_of_wait(snapshot.ranks[before]);
      text += fmt::format(" for rank {}, which ", path[i]);
    }
    text += end_of_chain(snapshot, path_from(snapshot, from.front()));
    sentences.push_back(std::move(text));
  }
  return sentences;
}

std::string to_text(const Snapshot& snapshot) {
  std::string text = fmt::format("communicator \"{}\" of {}\n", snapshot.communicator,
                                 comm::counted(snapshot.ranks.size(), "rank"));
  text += fmt::format("{:>4}  {}{:>8}  {:<24}  {:>10}  {:<28}  {:>6}  {:>5}  {:>8}  {}\n", "rank",
                      host_cell(snapshot, -1), "pid", "does", "operation", "step", "round", "peer",
                      "for", "what");
  for (const RankSnapshot& rank : snapshot.ranks) text += row_of(snapshot, rank) + "\n";
  for (const RankSnapshot& rank : snapshot.ranks) text += messages_of(rank);
  std::vector<int> foreign;
  for (const RankSnapshot& rank : snapshot.ranks) {
    if (rank.foreign_pid) foreign.push_back(rank.rank);
  }
  if (!foreign.empty()) {
    text += list_of(foreign) +
            ": in another PID namespace, where their pids count; whether these processes live "
            "cannot be seen from here\n";
  }
  text += remote_rows(snapshot);
  for (const std::string& chain : waiting_chains(snapshot)) text += chain + "\n";
  if (!snapshot.error.empty()) text += "error: " + snapshot.error + "\n";
  return text;
}

}  // namespace rondo::status
