// What a communicator's ranks need from each other while it is set up: every rank gives bytes and
// descriptors, and gets those of all. How they travel is the implementation's business.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/base/host_map.hpp"
#include "rondo/status.hpp"
#include "transport/memory/unique_fd.hpp"

namespace rondo::comm {

/// What one rank has given to the others.
struct Parcel {
  std::string bytes;
  /// Duplicates of a rank's descriptors, in its order. Of ranks of this host other than this one.
  std::vector<transport::UniqueFd> fds{};
};

/// Every rank's bytes, and how many descriptors it has given.
std::string pack_parcels(const std::vector<Parcel>& parcels);
/// Their descriptors are empty. Nothing: this is not what pack_parcels() makes of so many.
std::optional<std::vector<Parcel>> unpack_parcels(std::string_view payload, size_t count);

/// One thread at a time; every rank calls the same operations in the same order. Each takes a bounded
/// time. The first failure sticks, and reaches every rank by its next operation.
class RankExchange {
 public:
  virtual ~RankExchange() = default;
  virtual int rank() const = 0;
  virtual const base::HostMap& hosts() const = 0;
  /// What every rank has given, by rank. `fds` stay this rank's own.
  virtual Result<std::vector<Parcel>> all_gather(std::string_view bytes,
                                                 std::span<const int> fds = {}) = 0;

  int size() const { return hosts().ranks(); }
  std::span<const int> local_ranks() const { return hosts().ranks_on(hosts().host_of(rank())); }
  bool is_first_on_host() const { return hosts().local_rank(rank()) == 0; }
};

}  // namespace rondo::comm
