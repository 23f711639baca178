// How rank 0 gathers the authenticated connections of all others, and how they find it. Ends when
// all have come.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "comm/bootstrap/connection.hpp"
#include "comm/bootstrap/environment.hpp"
#include "comm/bootstrap/rendezvous.hpp"

namespace rondo::comm {

/// A rank at the other end of a connection.
struct Guest {
  int rank = -1;
  pid_t pid = 0;                // as that rank sees itself
  uint64_t pid_namespace = 0;   // in which it does; unknown of rank 0
  transport::UniqueFd pidfd{};  // empty for a thread of this process, and where it cannot be seen
  Connection connection{};
};

/// What one meeting is about.
struct Invitation {
  const Identity& identity;
  const std::string& name;
  const Venue& venue;
  std::chrono::milliseconds timeout;
};

/// Lets everybody in who comes to `listener`; the part of host_meeting() that follows listening.
Result<std::vector<Guest>> receive_guests(const Invitation& invitation, const Listener& listener);

/// Rank 0: everybody else, by rank, from rank 1. On failure all who have come have been told.
Result<std::vector<Guest>> host_meeting(const Invitation& invitation);

/// The others: rank 0, once all have come; `welcome` is what it said to that.
struct Admission {
  Guest host;
  std::string welcome;
};
Result<Admission> join_meeting(const Invitation& invitation);

/// After its own deadline a rank waits this much longer for rank 0's verdict, which names the
/// culprit.
inline constexpr std::chrono::milliseconds kVerdictGrace{2000};

/// "rank 2", "ranks 2, 3 and 5", "ranks 1, 2, ... and 40 more".
std::string name_ranks(const std::vector<int>& ranks);
/// "(pid 17)".
std::string pid_text(pid_t pid);
Status other_version(uint32_t rank_0, uint32_t other);
/// "60 s", "0.5 s".
std::string name_duration(std::chrono::milliseconds duration);

/// Empty for this process itself, and for pid 0.
Result<transport::UniqueFd> open_pidfd(pid_t pid, int rank);
uint64_t own_pid_namespace();

}  // namespace rondo::comm
