// Where a rank runs, as far as it decides whether ranks can share memory: told, not guessed from
// what a launcher says.
#pragma once

#include <string>
#include <vector>

#include "rondo/status.hpp"

namespace rondo::comm {

struct Host {
  std::string name;
  /// The kernel's, new at every boot: two containers of one host have the same.
  std::string boot_id;
  /// Inode of the network namespace, with which abstract sockets go.
  std::string network;
  std::string uid;

  static Host here();
};

/// kUnavailable names the first rank that cannot pass descriptors to rank 0, and why.
Status check_same_host(const std::vector<Host>& by_rank);

}  // namespace rondo::comm
