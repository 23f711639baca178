// See topology.hpp.
#include "bench/perf/topology.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace rondo::bench {
namespace {

/// The ranks of `host`, in order.
std::vector<int> ranks_on(const std::vector<int>& hosts, int host) {
  std::vector<int> ranks;
  for (int rank = 0; rank < static_cast<int>(hosts.size()); ++rank) {
    if (hosts[static_cast<size_t>(rank)] == host) ranks.push_back(rank);
  }
  return ranks;
}

/// Of this host, by its first rank; empty on the others.
std::string report_of(const Communicator& world, const Config& config) {
  const std::vector<int> hosts = world.hosts();
  const std::vector<int> here = ranks_on(hosts, hosts[static_cast<size_t>(world.rank())]);
  if (here.front() != world.rank()) return "";
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return fmt::format("== {}: rank{} {} of {}\n", name, here.size() > 1 ? "s" : "",
                     fmt::join(here, ", "), world.size()) +
         topology_report(static_cast<int>(here.size()), config);
}

/// Every rank's text, one after the other, on all of them.
Result<std::string> gather_texts(Communicator& world, const std::string& own) {
  const auto ranks = static_cast<size_t>(world.size());
  const uint64_t length = own.size();
  std::vector<uint64_t> lengths(ranks);
  RONDO_TRY(world.all_gather(&length, lengths.data(), 1, DataType::kUint64));
  const size_t most = *std::max_element(lengths.begin(), lengths.end());
  std::string padded = own, all(ranks * most, '\0');
  padded.resize(most);
  RONDO_TRY(world.all_gather(padded.data(), all.data(), most, DataType::kUint8));
  std::string text;
  for (size_t rank = 0; rank < ranks; ++rank) text += all.substr(rank * most, lengths[rank]);
  return text;
}

}  // namespace

Status print_topology_of_hosts(const Config& config) {
  auto world = RONDO_TRY(Communicator::create(config));
  const std::string text = RONDO_TRY(gather_texts(world, report_of(world, config)));
  if (world.rank() == 0)
    std::fputs(text.c_str(), stdout);  // the caller looks whether it was written
  return world.barrier();
}

}  // namespace rondo::bench
