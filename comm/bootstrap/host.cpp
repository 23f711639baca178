// See host.hpp.
#include "comm/bootstrap/host.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "comm/bootstrap/connection.hpp"
#include "transport/memory/unique_fd.hpp"

namespace rondo::comm {

using transport::UniqueFd;

Result<RankHost> RankHost::here() {
  RankHost host;
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  host.name = name.data();
  const UniqueFd file(open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  std::array<char, 37> id{};  // a UUID
  if (!file.valid() || read(file.get(), id.data(), id.size() - 1) <= 0) {
    return system_status("cannot read the host's boot_id", errno);
  }
  host.boot_id = id.data();
  struct stat info {};
  if (stat("/proc/self/ns/net", &info) == 0) host.network = std::to_string(info.st_ino);
  host.uid = std::to_string(geteuid());
  return host;
}

Status check_same_host(const std::vector<RankHost>& by_rank) {
  const RankHost& first = by_rank.front();
  for (size_t rank = 1; rank < by_rank.size(); ++rank) {
    const RankHost& other = by_rank[rank];
    const std::string who = "rank " + std::to_string(rank);
    if (other.boot_id != first.boot_id) {
      return Status(Code::kUnavailable, "rank 0 is on host " + first.name + " and " + who +
                                            " on host " + other.name +
                                            ": this build has no transport between hosts yet");
    }
    if (other.network != first.network) {
      return Status(Code::kUnavailable,
                    who + " (" + other.name + ") is on the host of rank 0 (" + first.name +
                        "), but in another network namespace, so they cannot pass descriptors: "
                        "give all containers the host's network, or a common directory as "
                        "RONDO_RENDEZVOUS");
    }
    if (other.uid != first.uid) {
      return Status(Code::kUnavailable, who + " runs as uid " + other.uid + " and rank 0 as uid " +
                                            first.uid + ": all ranks must be one user's");
    }
  }
  return {};
}

}  // namespace rondo::comm
