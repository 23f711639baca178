// Sets of CPUs as the kernel takes them, for any number of CPUs: cpu_set_t ends at 1024. Here so that
// all layers above have one.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstddef>
#include <string>
#include <vector>

namespace rondo::kernels {

/// Bit i % 8 of byte i / 8 is CPU i.
using CpuMask = std::string;

inline void add_cpu(CpuMask& mask, int cpu) {
  const auto at = static_cast<size_t>(cpu);
  if (mask.size() <= at / 8) mask.resize(at / 8 + 1, '\0');
  mask[at / 8] = static_cast<char>(mask[at / 8] | 1 << at % 8);
}

/// In order.
inline std::vector<int> list_cpus(const CpuMask& mask) {
  std::vector<int> cpus;
  for (size_t cpu = 0; cpu < 8 * mask.size(); ++cpu) {
    if ((mask[cpu / 8] >> cpu % 8 & 1) != 0) cpus.push_back(static_cast<int>(cpu));
  }
  return cpus;
}

inline int count_cpus(const CpuMask& mask) {
  int count = 0;
  for (const char byte : mask) count += std::popcount(static_cast<unsigned char>(byte));
  return count;
}

/// The CPUs that the calling thread may use, without trailing zeros. Empty where the kernel does not
/// say. `first_bytes`: of the first attempt.
inline CpuMask allowed_cpus(size_t first_bytes = 128) {
  // The kernel refuses a mask that is too short for the CPUs that it may have.
  CpuMask mask(first_bytes, '\0');
  long bytes = 0;
  while ((bytes = syscall(SYS_sched_getaffinity, 0, mask.size(), mask.data())) < 0 &&
         errno == EINVAL && mask.size() < (size_t{1} << 20)) {
    mask.assign(2 * mask.size(), '\0');
  }
  mask.resize(bytes > 0 ? static_cast<size_t>(bytes) : 0);
  while (!mask.empty() && mask.back() == '\0') mask.pop_back();
  return mask;
}

/// From now on the calling thread uses only these. Returns whether the kernel agrees. Takes no
/// memory: may be called after a fork.
inline bool bind_to_cpus(const CpuMask& mask) {
  return syscall(SYS_sched_setaffinity, 0, mask.size(), mask.data()) == 0;
}

}  // namespace rondo::kernels
