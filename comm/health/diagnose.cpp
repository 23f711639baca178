// See diagnose.hpp.
#include "comm/health/diagnose.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "comm/board/tags.hpp"

namespace rondo::board {

std::vector<int> follow(int first, size_t ranks, const std::function<int(int)>& next) {
  std::vector<int> path;
  for (int at = first; at >= 0 && static_cast<size_t>(at) < ranks; at = next(at)) {
    if (std::ranges::find(path, at) != path.end()) break;
    path.push_back(at);
  }
  return path;
}

int awaited_elsewhere(std::span<const Observation> ranks, int rank) {
  const uint64_t process = ranks[static_cast<size_t>(rank)].elsewhere;
  for (size_t r = 0; process != 0 && r < ranks.size(); ++r) {
    if (static_cast<int>(r) != rank && ranks[r].packed_process() == process) {
      return static_cast<int>(r);
    }
  }
  return -1;
}

int find_culprit(const Stall& stall) {
  const auto stands_still = [&](int rank) {
    const auto r = static_cast<size_t>(rank);
    return stall.now[r].heartbeat == stall.before[r].heartbeat &&
           stall.now[r].finished < stall.sequence;
  };
  // A rank whose heart does not beat waits for nobody here.
  const auto next = [&](int rank) {
    int to = stall.now[static_cast<size_t>(rank)].waiting_for;
    if (stands_still(rank)) {
      to = stall.source(rank) == rank ? awaited_elsewhere(stall.now, rank) : -1;
    }
    return to == stall.rank ? -1 : to;
  };
  const int first = stall.peer == stall.rank ? -1 : stall.peer;
  const std::vector<int> path = follow(first, stall.now.size(), next);
  if (!path.empty() && stands_still(path.back())) return stall.source(path.back());
  // The chain closed, or ended at a rank that is through: take whoever stands still.
  for (int rank = 0; rank < static_cast<int>(stall.now.size()); ++rank) {
    if (rank != stall.rank && stall.now[static_cast<size_t>(rank)].life != Life::kGone &&
        stands_still(rank)) {
      return stall.source(rank);
    }
  }
  return -1;
}

Status unlike_calls(uint64_t sequence, int rank, const std::string& called, int peer,
                    const std::string& theirs) {
  return {
      Code::kMismatch,
      fmt::format("the ranks disagree about operation {}: rank {} called {}, rank {} called {}; "
                  "every rank must issue the same operations in the same order",
                  sequence, rank, called, peer, theirs)};
}

Status uneven(const Board& board, int rank, int peer, uint64_t sequence, const Fingerprint& call) {
  if (call.collective != Collective::kAllToAllV) return {};
  for (const auto& [from, to] : {std::pair{rank, peer}, std::pair{peer, rank}}) {
    const auto exchange = board.exchange(from, to, sequence);
    if (!exchange || exchange->sends == exchange->expects) continue;
    return {Code::kMismatch,
            fmt::format("the ranks disagree about operation {}, {}: rank {} sends {} elements to "
                        "rank {}, which expects {} from it",
                        sequence, call.to_string(), from, exchange->sends, to, exchange->expects)};
  }
  return {};
}

Status disagreement(const Board& board, int rank, int peer, uint64_t first, uint64_t last) {
  for (uint64_t at = first; at <= last; ++at) {
    const auto ours = board.read(rank, at), theirs = board.read(peer, at);
    if (!ours || !theirs) continue;
    if (ours->call != theirs->call) {
      const bool layouts = ours->call.layout != theirs->call.layout;
      return unlike_calls(at, rank, ours->call.to_string(layouts), peer,
                          theirs->call.to_string(layouts));
    }
    RONDO_TRY(uneven(board, rank, peer, at, ours->call));
  }
  return {};
}

std::string describe_word(uint64_t word) {
  std::string text = fmt::format("{} {}", count_of_word(word), name(type_of_word(word)));
  if (const int tag = tag_of_word(word); tag != 0) text += fmt::format(" with tag {}", tag);
  return text;
}

Status uneven_message(int from, uint64_t sent_word, int to, uint64_t expected_word) {
  return {Code::kMismatch,
          fmt::format("rank {} sends {} to rank {}, which expects {}: the counts and types of a "
                      "send and its recv must be the same",
                      from, describe_word(sent_word), to, describe_word(expected_word))};
}

Status unfit_message(int from, uint64_t sent_word, int to, uint64_t room_word) {
  return {Code::kMismatch,
          fmt::format("rank {} sends {} to rank {}, whose recv has room for {} {}: the types must "
                      "be the same, and the recv's count as large as the send's",
                      from, describe_word(sent_word), to, count_of_word(room_word),
                      name(type_of_word(room_word)))};
}

Status left_early(int rank, const std::string& when) {
  return {Code::kPeerDied,
          fmt::format("rank {} left the communicator {}: destroy a communicator only when every "
                      "rank has finished",
                      rank, when)};
}

}  // namespace rondo::board
