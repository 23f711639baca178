// See spread.hpp. Everything is counted in whole numbers and halves, which doubles hold exactly.
#include "comm/algorithms/spread.hpp"

#include <algorithm>

namespace rondo::algorithms {
namespace {

/// Something for every host.
using PerHost = std::vector<double>;

double most(const PerHost& values) { return *std::max_element(values.begin(), values.end()); }

void count_pairs(const base::HostMap& map, HostSpread& spread) {
  const int ranks = map.ranks();
  PerHost on(static_cast<size_t>(map.hosts())), earlier = on, later = on, so_far = on;
  for (int h = 0; h < map.hosts(); ++h) {
    on[static_cast<size_t>(h)] = static_cast<double>(map.ranks_on(h).size());
  }
  for (int r = 0; r < ranks; ++r) {
    const auto h = static_cast<size_t>(map.host_of(r));
    earlier[h] += r - so_far[h];
    later[h] += (ranks - 1 - r) - (on[h] - 1 - so_far[h]);
    ++so_far[h];
  }
  spread.least = *std::min_element(on.begin(), on.end());
  spread.most = most(on);
  spread.outside = ranks - spread.least;
  spread.later_pairs = std::max(most(earlier), most(later));
  for (const double n : on) spread.pairs = std::max(spread.pairs, n * (ranks - n));
  for (size_t h = 0; h < on.size(); ++h) {
    spread.outside_two = std::max(spread.outside_two, 2 * ranks - on[h] - on[(h + 1) % on.size()]);
  }
}

void count_ring(const base::HostMap& map, int root, HostSpread& spread) {
  const int ranks = map.ranks();
  PerHost leave(static_cast<size_t>(map.hosts())), enter = leave;
  double links = 0;
  const auto count = [&](int from, double by) {
    const int to = (from + 1) % ranks;
    if (map.share_host(from, to)) return;
    leave[static_cast<size_t>(map.host_of(from))] += by;
    enter[static_cast<size_t>(map.host_of(to))] += by;
    links += by;
  };
  for (int r = 0; r < ranks; ++r) count(r, 1);
  const auto share = [&] { return std::max(most(leave), most(enter)); };
  const auto both = [&] {
    PerHost sums = leave;
    for (size_t h = 0; h < sums.size(); ++h) sums[h] += enter[h];
    return most(sums);
  };
  const int to_root = (root + ranks - 1) % ranks;
  spread.ring_links = links;
  spread.ring_share = share();
  count(root, -1);
  spread.up_links = links;
  spread.up_share = share();
  spread.up_both = both();
  count(root, 1);
  count(to_root, -1);
  spread.down_links = links;
  spread.down_share = share();
  spread.down_both = both();
  count(root, -0.5);
  spread.late_share = share();
  spread.late_both = both();
}

void count_heap(const base::HostMap& map, int root, HostSpread& spread) {
  const int ranks = map.ranks();
  PerHost parents(static_cast<size_t>(map.hosts())), children = parents, both = parents;
  std::vector<double> depth(static_cast<size_t>(ranks));
  for (int v = 1; v < ranks; ++v) {
    const int up = (v - 1) / 2, rank = (root + v) % ranks, parent = (root + up) % ranks;
    double& own = depth[static_cast<size_t>(v)];
    own = depth[static_cast<size_t>(up)];
    if (map.share_host(rank, parent)) continue;
    spread.heap_depth = std::max(spread.heap_depth, ++own);
    ++parents[static_cast<size_t>(map.host_of(rank))];
    ++children[static_cast<size_t>(map.host_of(parent))];
  }
  for (size_t h = 0; h < both.size(); ++h) both[h] = parents[h] + children[h];
  spread.heap_share = std::max(most(parents), most(children));
  spread.heap_links = most(both);
}

}  // namespace

HostSpread spread_of(const base::HostMap& hosts, int root) {
  HostSpread spread;
  if (hosts.hosts() <= 1) return spread;
  spread.hosts = hosts.hosts();
  spread.outside_root =
      hosts.ranks() - static_cast<double>(hosts.ranks_on(hosts.host_of(root)).size());
  count_pairs(hosts, spread);
  count_ring(hosts, root, spread);
  count_heap(hosts, root, spread);
  return spread;
}

}  // namespace rondo::algorithms
