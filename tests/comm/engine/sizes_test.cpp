// How large a communicator's FIFOs are: the same for all ranks of a host, and within some memory.
#include "comm/setup/sizes.hpp"

#include <vector>

#include "comm/tuner/profile.hpp"
#include "tests/harness/catch.hpp"
#include "transport/shm/layout.hpp"

namespace rondo::comm {
namespace {

using transport::shm::FifoLayout;
using transport::shm::FifoSizes;

constexpr size_t kMiB = size_t{1} << 20;

FifoSizes sizes_of(const base::HostMap& hosts, int rank, int busiest, int cpus,
                   const Config& config = {}) {
  const CpuShares shares{.cpus = cpus, .busiest = {.ranks = busiest, .cpus = cpus}};
  return size_up(shares, tuner::shared_memory_profile(), config, hosts, rank).fifos;
}

TEST_CASE(
    "rings are larger than slots need only where all of a host stay in its last-level cache") {
  for (const int channels : {1, 2, 8}) {
    for (const int ranks : {1, 2, 3, 4, 6, 8, 16}) {
      Config config;
      config.channels = channels;
      const auto sizes =
          sizes_of(base::HostMap::one_host(ranks), 0, ranks, ranks * channels, config);
      FifoSizes needed = sizes;
      needed.ring_bytes = 0;
      const size_t rings =
          static_cast<size_t>(ranks * (ranks - 1) * channels) * FifoLayout(sizes).link_ring_bytes();
      INFO(ranks << " ranks, " << channels << " channels, all rings: " << rings);
      CHECK((rings <= 12 * kMiB || bytes_needed(sizes) == bytes_needed(needed)));
      CHECK(bytes_needed(sizes) / static_cast<size_t>(ranks) < (ranks < 4 ? 28 : 16) * kMiB);
    }
  }
  CHECK(sizes_of(base::HostMap::one_host(2), 0, 2, 2).ring_bytes == 3 * kMiB);
  CHECK(sizes_of(base::HostMap::one_host(1), 0, 1, 2).ring_bytes == 0);
  CHECK(sizes_of(base::HostMap::one_host(2), 0, 2, 1).ring_bytes == 0);  // they take turns
}

TEST_CASE("all ranks of a host have FIFOs of one size, whatever the other hosts are") {
  const base::HostMap hosts(std::vector<int>{0, 1, 1, 0, 2, 1});
  for (const int cpus : {1, 2, 3, 64}) {
    for (int rank = 0; rank < hosts.ranks(); ++rank) {
      const int first = hosts.ranks_on(hosts.host_of(rank)).front();
      CHECK(bytes_needed(sizes_of(hosts, rank, 3, cpus)) ==
            bytes_needed(sizes_of(hosts, first, 3, cpus)));
    }
  }
}

}  // namespace
}  // namespace rondo::comm
