// Cross-memory attach: the kernel copies between two processes' memory, without a slot in between
// (process_vm_readv and process_vm_writev, Linux 3.2). Allowed between processes of one user,
// unless Yama or a container's seccomp filter forbids it: so ranks try it before they rely on it.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "transport/memory/unique_fd.hpp"

namespace rondo::transport::shm {

/// Where another process finds a word of this one, and what it reads there. Trivial: it travels.
struct Probe {
  int32_t pid;  // in the process's own namespace; in others it may be free, or another's
  uint64_t address;
  uint64_t word;
};

/// This process's; the word is random and stays for as long as the process does. Thread-safe.
Probe own_probe();

/// A process whose memory is copied. The kernel finds it by its number, which is another process's
/// some time after it has ended.
struct PeerProcess {
  pid_t pid = 0;
  /// Readable once the process has ended. Null for this process.
  std::shared_ptr<const UniqueFd> pidfd{};
};

/// Whether that word of that process can be read from here.
bool reaches(const PeerProcess& process, const Probe& probe);

/// See Transport::copy_from and copy_to. ESRCH if the process has ended, also if another one has its
/// number by now.
int copy_from_process(const PeerProcess& process, uint64_t address, std::byte* to, size_t bytes);
int copy_to_process(const PeerProcess& process, uint64_t address, const std::byte* from,
                    size_t bytes);

}  // namespace rondo::transport::shm
