// See host.hpp.
#include "comm/bootstrap/identity/host.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <map>
#include <utility>

#include "comm/base/bytes.hpp"
#include "comm/bootstrap/connection/connection.hpp"
#include "transport/memory/unique_fd.hpp"

namespace rondo::comm {

using transport::UniqueFd;

Result<RankHost> RankHost::here(int rank) {
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
  if (pretend_host != nullptr) pretend_host(rank, host);
  return host;
}

namespace {

constexpr auto kTexts = {&RankHost::name,  &RankHost::boot_id,   &RankHost::network,
                         &RankHost::uid,   &RankHost::interface, &RankHost::address,
                         &RankHost::ticket};

}  // namespace

std::string pack(const RankHost& host) {
  base::ByteWriter packed;
  for (const auto text : kTexts) packed.put_text(host.*text);
  return packed.put(host.port).take();
}

std::optional<RankHost> unpack_host(std::string_view bytes) {
  RankHost host;
  base::ByteReader reader(bytes);
  for (const auto text : kTexts) host.*text = reader.get_text();
  host.port = reader.get<int>();
  return reader.is_done() ? std::optional(std::move(host)) : std::nullopt;
}

base::HostMap group_by_host(const std::vector<RankHost>& by_rank) {
  std::map<std::pair<std::string, std::string>, int> labels;
  std::vector<int> label_of;
  for (const RankHost& place : by_rank) {
    const auto at = labels.try_emplace({place.boot_id, place.network}, labels.size()).first;
    label_of.push_back(at->second);
  }
  return base::HostMap(label_of);
}

Status check_one_user(const std::vector<RankHost>& by_rank, const base::HostMap& hosts) {
  for (int host = 0; host < hosts.hosts(); ++host) {
    const int first = hosts.ranks_on(host).front();
    for (const int rank : hosts.ranks_on(host)) {
      const std::string& uid = by_rank[static_cast<size_t>(rank)].uid;
      const std::string& wanted = by_rank[static_cast<size_t>(first)].uid;
      if (uid == wanted) continue;
      return {Code::kUnavailable, "rank " + std::to_string(rank) + " runs as uid " + uid +
                                      " and rank " + std::to_string(first) + " as uid " + wanted +
                                      ": all ranks of a host must be one user's"};
    }
  }
  return {};
}

}  // namespace rondo::comm
