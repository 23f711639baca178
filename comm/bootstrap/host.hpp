// Where a rank runs, as far as it decides whether ranks can share memory. The kernel says so; what
// a launcher says does not count.
#pragma once

#include <string>
#include <vector>

#include "rondo/status.hpp"

namespace rondo::comm {

struct RankHost {
  std::string name;
  /// The kernel's, new at every boot; equal in all containers of one host.
  std::string boot_id;
  /// Inode of the network namespace: abstract sockets belong to one.
  std::string network;
  std::string uid;

  /// Errors: kResourceExhausted, kSystem.
  static Result<RankHost> here();
};

/// kUnavailable names the first rank that cannot pass descriptors to rank 0, and why.
Status check_same_host(const std::vector<RankHost>& by_rank);

}  // namespace rondo::comm
