// See reach.hpp.
#include "comm/setup/reach.hpp"

#include <fmt/format.h>

#include <set>
#include <span>
#include <string>
#include <utility>

#include "comm/base/refuse.hpp"
#include "comm/bootstrap/launchers.hpp"
#include "rondo/log.hpp"

namespace rondo::comm {
namespace {

/// RONDO_CMA: whether the kernel may copy between ranks (cross-memory attach).
Result<bool> allows_process_copy() {
  const std::string text = variable("RONDO_CMA").value_or("1");
  if (text == "1") return true;
  if (text == "0") return false;
  return refuse(fmt::format("RONDO_CMA is '{}': it must be 0 or 1", text));
}

/// Of the arenas of all processes with `members` together.
uint64_t arena_addresses(const Bootstrap& bootstrap, std::span<const int> members,
                         const std::vector<RankFacts>& ranks) {
  std::set<std::pair<uint64_t, pid_t>> processes;
  uint64_t sum = 0;
  for (const int member : members) {
    const auto r = static_cast<size_t>(member);
    const Peer& peer = bootstrap.peers()[r];
    if (processes.emplace(peer.pid_namespace, peer.pid).second) sum += ranks[r].arena_bytes;
  }
  return sum;
}

/// False, with a warning: some arena could not be mapped.
Result<bool> map_arenas(Bootstrap& bootstrap, std::span<const int> members,
                        const std::vector<RankFacts>& ranks,
                        std::vector<transport::ArenaView>& arenas) {
  auto own = transport::export_arena();
  if (!own.ok()) return own.status();
  auto fds = bootstrap.all_gather_fds(own->fd);
  if (!fds.ok()) return fds.status();
  arenas.resize(members.size());
  const uint64_t addresses = arena_addresses(bootstrap, members, ranks);
  const bool fits = addresses <= transport::kArenaAddresses;
  if (!fits && bootstrap.is_first_on_host()) {  // equal on all ranks of the host
    log(LogLevel::kWarn,
        fmt::format("library memory goes through slots: the arenas of {} ranks take {} GiB of "
                    "addresses, and at most {} GiB are mapped; set RONDO_ARENA_BYTES to {}G or "
                    "less, or create the communicator before the first rondo::alloc",
                    members.size(), addresses >> 30, transport::kArenaAddresses >> 30,
                    transport::kArenaAddresses / members.size() >> 30));
  }
  bool mapped = fits;
  for (size_t local = 0; local < members.size(); ++local) {
    const int r = members[local];
    const uint64_t bytes = ranks[static_cast<size_t>(r)].arena_bytes;
    if (r == bootstrap.rank()) {
      arenas[local] = transport::own_arena();
    } else if (mapped && (*fds)[local].valid() && bytes > 0) {
      auto view = transport::attach_arena(std::move((*fds)[local]), bytes);
      if (view.ok()) {
        arenas[local] = std::move(*view);
        continue;
      }
      mapped = false;
      log(LogLevel::kWarn,
          fmt::format("library memory goes through slots: rank {} cannot map that of rank {}: {}",
                      bootstrap.rank(), r, view.status().to_string()));
    }
  }
  return mapped;
}

}  // namespace

Result<PeerMemory> reach_peers(Bootstrap& bootstrap, const Introduced& introduced) {
  auto process_copy = allows_process_copy();
  if (!process_copy.ok()) return process_copy.status();
  PeerMemory memory;
  const base::HostMap& hosts = bootstrap.hosts();
  const std::span<const int> members = hosts.ranks_on(hosts.host_of(bootstrap.rank()));
  auto mapped = map_arenas(bootstrap, members, introduced.ranks, memory.arenas);
  if (!mapped.ok()) return mapped.status();
  // Threads of one process reach each other's memory without the kernel; a pace delays no
  // copies by the kernel.
  bool copies = *process_copy && !introduced.same_process && introduced.ranks[0].pace[0] == '\0';
  for (const int member : members) {
    const transport::shm::Probe& probe = introduced.ranks[static_cast<size_t>(member)].probe;
    const Peer& peer = bootstrap.peers()[static_cast<size_t>(member)];
    memory.processes.push_back({.pid = probe.pid, .pidfd = peer.pidfd.shared()});
    copies = copies && transport::shm::reaches(memory.processes.back(), probe);
  }
  auto all = bootstrap.all_gather(std::string{*mapped ? '1' : '0', copies ? '1' : '0'});
  if (!all.ok()) return all.status();
  for (const int member : members) {
    const std::string& answer = (*all)[static_cast<size_t>(member)];
    if (answer.at(0) != '1') memory.arenas.clear();
    if (answer.at(1) != '1') memory.processes.clear();
  }
  return memory;
}

}  // namespace rondo::comm
