// Linux: sched_setaffinity and sysconf.
#include "bench/harness/machine.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>

namespace rondo::bench {

std::string pin(int rank, int ranks) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0)
    return "not pinned: the affinity cannot be read";
  const int cpus = CPU_COUNT(&allowed);
  if (ranks > cpus) {
    return "not pinned: " + std::to_string(ranks) + " ranks on " + std::to_string(cpus) + " CPUs";
  }
  int seen = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || seen++ != rank) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    if (sched_setaffinity(0, sizeof(one), &one) != 0) break;
    return "pinned, one CPU per rank";
  }
  return "not pinned: the system refused";
}

size_t last_level_cache_bytes() {
  const long bytes = std::max(sysconf(_SC_LEVEL3_CACHE_SIZE), sysconf(_SC_LEVEL2_CACHE_SIZE));
  return bytes > 0 ? static_cast<size_t>(bytes) : size_t{32} << 20;
}

}  // namespace rondo::bench
