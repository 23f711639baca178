// A meeting: rank 0 collects an authenticated connection from every other rank. Both sides, and the
// words that their errors share.
#pragma once

#include <chrono>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/bootstrap/connection/connection.hpp"
#include "comm/bootstrap/identity/environment.hpp"
#include "comm/bootstrap/rendezvous/rendezvous.hpp"

namespace rondo::comm {

/// A rank at the other end of a connection.
struct PeerConnection {
  int rank = -1;
  pid_t pid = 0;               // as that rank sees itself
  uint64_t pid_namespace = 0;  // of that pid; 0 for rank 0: unknown
  transport::UniqueFd
      pidfd{};  // empty for a thread of this process, and where the pid is not visible
  Connection connection{};
};

/// What has happened in a meeting, for this rank's end if it fails.
struct MeetingFacts {
  bool is_seen = false;  // rank 0 has this rank's hello: it notices if this rank leaves
  bool heard = false;    // the failure is another rank's, which has reported it
  /// If the interrupt sets this name, rank 0 answers the waiting ranks with it instead of the error.
  std::string next{};
};

/// Whether a roll call waits for that rank.
using IsNeeded = std::function<bool(int rank)>;

struct Meeting {
  const Identity& identity;
  const std::string& name;
  const Rendezvous& rendezvous;
  std::chrono::milliseconds timeout;
  const Interrupt& interrupt;
  MeetingFacts& facts;
  /// Null: all ranks must come, and one that ends while they meet fails the meeting. Else a roll call
  /// (roll_call.hpp): rank 0 takes the ranks that come, until no other is needed, at the deadline at
  /// the latest; and the others know that the place is rank 0's own, however late it comes there.
  const IsNeeded* is_needed = nullptr;
  /// Null, or told the name of another meeting of this job that was found at the place: the one that
  /// rank 0 holds there, or that a rank came for.
  const std::function<void(std::string_view name)>* on_other_name = nullptr;

  /// How messages call the ranks, where these are not their numbers here.
  std::span<const int> numbers{};

  int number_of(int rank) const {
    return numbers.empty() ? rank : numbers[static_cast<size_t>(rank)];
  }
  /// " of 4", after the name of one.
  std::string of_how_many() const {
    const std::string ranks = std::to_string(identity.world_size);
    return numbers.empty() ? " of " + ranks : " of the " + ranks + " ranks on this host";
  }
  /// Not in a roll call, nor where the ranks have found each other before.
  bool may_be_inherited() const { return is_needed == nullptr && numbers.empty() && !interrupt; }
  Deadline deadline() const { return {std::chrono::steady_clock::now() + timeout, &interrupt}; }
};

/// Accepts all other ranks at `listener`: the second half of host_meeting(). After a roll call, the
/// ranks that have come, and in the place of each other one a PeerConnection whose rank is -1.
Result<std::vector<PeerConnection>> accept_ranks(const Meeting& meeting, const Listener& listener);

/// Rank 0: connections to all other ranks, in order, from rank 1. A failure is sent to all ranks
/// that have joined.
Result<std::vector<PeerConnection>> host_meeting(const Meeting& meeting);

struct Joined {
  PeerConnection host;
  std::string welcome;  // the payload: ProcessId by rank
};
/// The other ranks: a connection to rank 0, once all have joined.
Result<Joined> join_meeting(const Meeting& meeting);

/// After its own deadline a rank waits this much longer for rank 0's error, which names the missing
/// ranks.
inline constexpr std::chrono::milliseconds kVerdictGrace{2000};

/// "rank 2", "ranks 2, 3 and 5", "ranks 1, 2, ... and 40 more".
std::string name_ranks(const std::vector<int>& ranks);
/// "(pid 17)".
std::string pid_text(pid_t pid);
Status other_version(uint32_t rank_0, uint32_t other);

/// Empty for this process itself, and for pid 0.
Result<transport::UniqueFd> open_pidfd(pid_t pid, int rank);

}  // namespace rondo::comm
