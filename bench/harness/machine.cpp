// Linux: sched_setaffinity and sysfs.
#include "bench/harness/machine.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace rondo::bench {

std::string pin(int rank, int ranks) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0)
    return "not pinned: the affinity cannot be read";
  const int cpus = CPU_COUNT(&allowed);
  if (cpus == 1 && ranks > 1) return "bound to one CPU by its launcher";
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

size_t private_memory_bytes() {
  // RssAnon of status is too coarse: the kernel adds it up in batches, some hundred KiB late.
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string word; file >> word;) {
    size_t kib = 0;
    if (word == "Anonymous:" && file >> kib) return kib << 10;
  }
  return 0;
}

int allowed_cpus() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return 1;
  return CPU_COUNT(&allowed);
}

size_t last_level_cache_bytes() {
  // sysconf() is wrong: glibc multiplies shared caches by its idea of the topology, and reports 256
  // MiB on a 2-core VM with 32 MiB.
  for (const char* level : {"3", "2"}) {
    std::ifstream file(std::string("/sys/devices/system/cpu/cpu0/cache/index") + level + "/size");
    size_t kib = 0;
    if (file >> kib && kib > 0) return kib << 10;
  }
  return size_t{32} << 20;
}

}  // namespace rondo::bench
