// Linux: affinity masks and sysfs.
#include "bench/harness/machine.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "kernels/host/cpu_mask.hpp"

namespace rondo::bench {

std::string pin(int rank, int ranks) {
  const std::vector<int> allowed = kernels::list_cpus(kernels::allowed_cpus());
  const int cpus = static_cast<int>(allowed.size());
  if (cpus == 0) return "not pinned: the affinity cannot be read";
  if (cpus == 1 && ranks > 1) return "bound to one CPU by its launcher";
  if (ranks > cpus) {
    return "not pinned: " + std::to_string(ranks) + " ranks on " + std::to_string(cpus) + " CPUs";
  }
  kernels::CpuMask one;
  kernels::add_cpu(one, allowed[static_cast<size_t>(rank)]);
  return kernels::bind_to_cpus(one) ? "pinned, one CPU per rank" : "not pinned: the system refused";
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

namespace {

/// A control group's own limit less what it holds; the largest size if it has none.
size_t left_to_group(const std::filesystem::path& group) {
  const std::string folder = "/sys/fs/cgroup" + group.string() + "/";
  size_t most = 0, now = 0;  // "max" is no number
  if (!(std::ifstream(folder + "memory.max") >> most) ||
      !(std::ifstream(folder + "memory.current") >> now)) {
    return std::numeric_limits<size_t>::max();
  }
  size_t cached = 0, bytes = 0;  // files' pages, which give way
  std::ifstream file(folder + "memory.stat");
  for (std::string word; file >> word >> bytes;) {
    if (word == "inactive_file" || word == "active_file") cached += bytes;
  }
  const size_t held = now - std::min(now, cached);
  return most - std::min(most, held);
}

}  // namespace

size_t available_memory_bytes() {
  size_t available = std::numeric_limits<size_t>::max();
  std::ifstream machine("/proc/meminfo");
  for (std::string word; machine >> word;) {
    size_t kib = 0;
    if (word == "MemAvailable:" && machine >> kib) available = kib << 10;
  }
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (line.rfind("0::", 0) != 0) continue;
    std::filesystem::path group = line.substr(3);
    available = std::min(available, left_to_group(group));
    while (group.has_relative_path()) {
      group = group.parent_path();
      available = std::min(available, left_to_group(group));
    }
  }
  return available;
}

bool zero_if_available(void* memory, size_t bytes, size_t later_bytes, int ranks) {
  constexpr size_t kPiece = size_t{64} << 20;
  ranks = std::min(ranks, static_cast<int>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN))));
  for (size_t begin = 0; begin < bytes; begin += kPiece) {
    const size_t others = (static_cast<size_t>(ranks) - 1) * std::min(kPiece, bytes);
    if (bytes - begin + later_bytes + others > available_memory_bytes()) return false;
    std::memset(static_cast<std::byte*>(memory) + begin, 0, std::min(kPiece, bytes - begin));
  }
  return true;
}

int allowed_cpus() { return std::max(1, kernels::count_cpus(kernels::allowed_cpus())); }

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
