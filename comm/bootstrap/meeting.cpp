// The meeting from either side, and how its people and times are named.
#include "comm/bootstrap/meeting.hpp"

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <thread>

#include "comm/bootstrap/visit.hpp"

namespace rondo::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using transport::UniqueFd;

constexpr milliseconds kRetryEvery{5};

}  // namespace

Result<std::vector<Guest>> host_meeting(const Invitation& invitation) {
  const Deadline deadline = steady_clock::now() + invitation.timeout;
  Visit visit(invitation, deadline);
  while (true) {
    auto listener = invitation.venue.listen();
    if (!listener.ok()) return listener.status();
    if (*listener) return receive_guests(invitation, **listener);
    // Another rank 0 is receiving here: knocking tells it, and so everybody, that there are two.
    auto answer = visit.attempt();
    if (!answer.ok() && visit.met_another_program()) {
      return Status(answer.status().code(), "rank 0 cannot listen at " + invitation.venue.text() +
                                                ", which is taken: " + answer.status().message());
    }
    if (!answer.ok()) return answer.status();
    if (steady_clock::now() >= deadline) {
      return Status(Code::kBootstrap, "rank 0 could not listen at " + invitation.venue.text() +
                                          " within " + name_duration(invitation.timeout) +
                                          ": another process does");
    }
    std::this_thread::sleep_for(kRetryEvery);
  }
}

Result<Admission> join_meeting(const Invitation& invitation) {
  const Deadline deadline = steady_clock::now() + invitation.timeout;
  Visit visit(invitation, deadline);
  while (true) {
    auto admission = visit.attempt();
    if (!admission.ok()) return admission.status();
    if (*admission) return std::move(**admission);
    if (steady_clock::now() >= deadline) {
      return Status(Code::kBootstrap,
                    "rank 0 of " + std::to_string(invitation.identity.world_size) +
                        " did not come within " + name_duration(invitation.timeout) + "; rank " +
                        std::to_string(invitation.identity.rank) + " looked for it at " +
                        invitation.venue.text());
    }
    std::this_thread::sleep_for(kRetryEvery);
  }
}

std::string name_ranks(const std::vector<int>& ranks) {
  constexpr size_t kMost = 16;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  const size_t shown = std::min(ranks.size(), kMost);
  for (size_t i = 0; i < shown; ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  if (ranks.size() > shown) text += " and " + std::to_string(ranks.size() - shown) + " more";
  return text;
}

std::string pid_text(pid_t pid) { return "(pid " + std::to_string(pid) + ")"; }

Status other_version(uint32_t rank_0, uint32_t other) {
  return Status(Code::kBootstrap, "rank 0 speaks version " + std::to_string(rank_0) +
                                      " of the bootstrap, another rank version " +
                                      std::to_string(other) +
                                      ": all ranks must use the same rondo");
}

std::string name_duration(milliseconds duration) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", static_cast<double>(duration.count()) / 1000.0);
  return text;
}

Result<UniqueFd> open_pidfd(pid_t pid, int rank) {
  if (pid == 0 || pid == getpid()) return UniqueFd();
  UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (pidfd.valid()) return pidfd;
  const std::string who = "rank " + std::to_string(rank) + " " + pid_text(pid);
  if (errno == ESRCH) return Status(Code::kPeerDied, who + " ended while the ranks were meeting");
  return system_status("cannot watch " + who + ": pidfd_open", errno);
}

uint64_t own_pid_namespace() {
  struct stat info {};
  return stat("/proc/self/ns/pid", &info) == 0 ? info.st_ino : 0;
}

}  // namespace rondo::comm
