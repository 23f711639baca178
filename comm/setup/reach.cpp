// See reach.hpp.
#include "comm/setup/reach.hpp"

#include <fmt/format.h>

#include <set>
#include <span>
#include <string>
#include <utility>

#include "comm/base/refuse.hpp"
#include "comm/base/variables.hpp"
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
bool map_arenas(const Bootstrap& bootstrap, std::span<const int> members,
                const std::vector<RankFacts>& ranks, std::vector<Parcel>& exchanged,
                std::vector<transport::ArenaView>& arenas) {
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
    std::vector<transport::UniqueFd>& fds = exchanged[static_cast<size_t>(r)].fds;
    if (r == bootstrap.rank()) {
      arenas[local] = transport::own_arena();
    } else if (mapped && !fds.empty() && bytes > 0) {
      auto view = transport::attach_arena(std::move(fds[0]), bytes);
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

Result<PeerMemory> reach_peers(const Bootstrap& bootstrap, const std::vector<RankFacts>& ranks,
                               std::vector<Parcel>& exchanged) {
  // Threads of one process reach each other's memory without the kernel; a pace delays no
  // copies by the kernel.
  bool copies =
      RONDO_TRY(allows_process_copy()) && !bootstrap.is_one_process() && ranks[0].pace[0] == '\0';
  PeerMemory memory;
  const std::span<const int> members = bootstrap.local_ranks();
  const bool mapped = map_arenas(bootstrap, members, ranks, exchanged, memory.arenas);
  for (const int member : members) {
    const transport::shm::Probe& probe = ranks[static_cast<size_t>(member)].probe;
    const Peer& peer = bootstrap.peers()[static_cast<size_t>(member)];
    memory.processes.push_back({.pid = probe.pid, .pidfd = peer.pidfd.shared()});
    copies = copies && transport::shm::reaches(memory.processes.back(), probe);
  }
  if (!mapped) memory.arenas.clear();
  if (!copies) memory.processes.clear();
  return memory;
}

}  // namespace rondo::comm
