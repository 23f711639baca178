// See meeting.hpp.
#include "comm/bootstrap/rendezvous/meeting.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "comm/bootstrap/identity/inherited.hpp"
#include "comm/bootstrap/rendezvous/connector.hpp"

namespace rondo::comm {
Result<std::vector<PeerConnection>> host_meeting(const Meeting& meeting) {
  const Deadline deadline = meeting.deadline();
  Connector connector(meeting, deadline);
  while (true) {
    auto listener = RONDO_TRY(meeting.rendezvous.listen());
    if (listener) return accept_ranks(meeting, *listener);
    // Another process listens here. If it is a rank 0, joining it reveals the duplicate to all.
    auto answer = connector.attempt();
    if (!answer.ok() && connector.found_taken()) {
      return Status(answer.status().code(), "rank 0 cannot listen at " + meeting.rendezvous.text() +
                                                ", which is taken: " + answer.status().message());
    }
    if (!answer.ok()) return answer.status();
    if (deadline.has_passed()) {
      return Status(Code::kBootstrap, "rank 0 could not listen at " + meeting.rendezvous.text() +
                                          " within " + name_duration(meeting.timeout) +
                                          (meeting.rendezvous.trouble().empty()
                                               ? ": another process does" + connector.suspicion()
                                               : meeting.rendezvous.trouble()));
    }
    RONDO_TRY(connector.pause());
  }
}

Result<Joined> join_meeting(const Meeting& meeting) {
  const Deadline deadline = meeting.deadline();
  InheritedRank inherited(meeting.identity, meeting.timeout, meeting.may_be_inherited());
  Connector connector(meeting, deadline);
  while (true) {
    auto joined = RONDO_TRY(connector.attempt());
    if (joined) return std::move(*joined);
    if (deadline.has_passed()) {
      return Status(Code::kBootstrap,
                    "rank " + std::to_string(meeting.number_of(0)) + meeting.of_how_many() +
                        " did not come within " + name_duration(meeting.timeout) + "; rank " +
                        std::to_string(meeting.number_of(meeting.identity.rank)) +
                        " looked for it at " + meeting.rendezvous.text() + connector.suspicion() +
                        meeting.rendezvous.trouble() + inherited.hint());
    }
    RONDO_TRY(inherited.check(std::chrono::steady_clock::now()));
    RONDO_TRY(connector.pause());
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

Result<transport::UniqueFd> open_pidfd(pid_t pid, int rank) {
  if (pid == 0 || pid == getpid()) return transport::UniqueFd();
  transport::UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (pidfd.valid()) return pidfd;
  const std::string who = "rank " + std::to_string(rank) + " " + pid_text(pid);
  if (errno == ESRCH) return Status(Code::kPeerDied, who + " ended while the ranks were meeting");
  return system_status("cannot watch " + who + ": pidfd_open", errno);
}

}  // namespace rondo::comm
