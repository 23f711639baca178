// Where a rank runs, as far as it decides whether ranks can share memory. The kernel says so; what
// a launcher says does not count.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/base/host_map.hpp"
#include "rondo/status.hpp"

namespace rondo::comm {

struct RankHost {
  std::string name;
  /// The kernel's, new at every boot; equal in all containers of one host.
  std::string boot_id;
  /// Inode of the network namespace: abstract sockets, over which ranks pass descriptors, belong to
  /// one.
  std::string network;
  std::string uid;
  /// By which other hosts reach it: "eth0", and "10.0.0.2" or "fd00::2".
  std::string interface {
  }, address{};
  /// Where it listens for ranks of communicators that are made from this one, for which it is rank 0.
  int port = 0;
  /// Random: where the ranks of a host meet follows from that of the first one.
  std::string ticket{};

  /// Errors: kResourceExhausted, kSystem.
  static Result<RankHost> here(int rank);
};

/// A hook for tests: changes what a rank finds out about its host, so that ranks of one machine are
/// on several. Null in every program.
inline void (*pretend_host)(int rank, RankHost& here) = nullptr;

std::string pack(const RankHost& host);
/// Nothing: pack() has not made it.
std::optional<RankHost> unpack_host(std::string_view bytes);

/// Ranks share a host, that is memory, if they have one kernel and one network namespace.
base::HostMap group_by_host(const std::vector<RankHost>& by_rank);

/// kUnavailable names a rank that runs as another user than the first one of its host.
Status check_one_user(const std::vector<RankHost>& by_rank, const base::HostMap& hosts);

}  // namespace rondo::comm
