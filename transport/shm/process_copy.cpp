#include "transport/shm/process_copy.hpp"

#include <dirent.h>
#include <poll.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>

namespace rondo::transport::shm {
namespace {

// Less than the 2 GiB at which the kernel cuts a call.
constexpr size_t kMostBytes = size_t{1} << 30;

/// A call may copy less than `bytes`: up to the first page that is not there, or up to its own
/// limit. The next call, for the rest, tells the two apart.
template <class Call>
int copy(pid_t pid, uint64_t address, std::byte* here, size_t bytes, Call call) {
  while (bytes > 0) {
    const size_t part = bytes < kMostBytes ? bytes : kMostBytes;
    const iovec local{.iov_base = here, .iov_len = part};
    const iovec remote{.iov_base = reinterpret_cast<void*>(address), .iov_len = part};
    const ssize_t copied = call(pid, &local, 1, &remote, 1, 0);
    if (copied < 0 && errno == EINTR) continue;
    if (copied < 0) return errno;
    if (copied == 0) return EFAULT;
    here += copied;
    address += static_cast<uint64_t>(copied);
    bytes -= static_cast<size_t>(copied);
  }
  return 0;
}

/// The process's number is that of its first thread, which has no memory any more once it has
/// ended; the others' numbers do as well.
template <class Call>
int copy_by_any_thread(pid_t pid, uint64_t address, std::byte* here, size_t bytes, Call call) {
  int error = copy(pid, address, here, bytes, call);
  if (error != ESRCH) return error;
  const std::string path = "/proc/" + std::to_string(pid) + "/task";
  const std::unique_ptr<DIR, int (*)(DIR*)> threads(opendir(path.c_str()), closedir);
  while (const dirent* entry = threads ? readdir(threads.get()) : nullptr) {
    const auto thread = static_cast<pid_t>(std::atoi(entry->d_name));
    if (thread <= 0 || thread == pid) continue;  // "." and ".." are 0
    error = copy(thread, address, here, bytes, call);
    if (error != ESRCH) return error;
  }
  return error;
}

bool has_ended(const PeerProcess& process) {
  if (!process.pidfd) return false;
  pollfd ended{process.pidfd->get(), POLLIN, 0};
  int found = 0;
  do {
    found = poll(&ended, 1, 0);
  } while (found < 0 && errno == EINTR);  // a signal was pending
  return found != 0;
}

}  // namespace

Probe own_probe() {
  static const uint64_t word = [] {
    std::random_device random;
    return static_cast<uint64_t>(random()) << 32 | random();
  }();
  return {.pid = getpid(), .address = reinterpret_cast<uint64_t>(&word), .word = word};
}

bool reaches(const PeerProcess& process, const Probe& probe) {
  uint64_t word = 0;
  return copy_from_process(process, probe.address, reinterpret_cast<std::byte*>(&word),
                           sizeof(word)) == 0 &&
         word == probe.word;
}

// A process that lives after the copy was also there during it.
int copy_from_process(const PeerProcess& process, uint64_t address, std::byte* to, size_t bytes) {
  const int error = copy_by_any_thread(process.pid, address, to, bytes, process_vm_readv);
  return has_ended(process) ? ESRCH : error;
}

// Checks before the copy, because a write cannot be undone. The process could still end, and another
// one get its number, between these two calls.
int copy_to_process(const PeerProcess& process, uint64_t address, const std::byte* from,
                    size_t bytes) {
  if (has_ended(process)) return ESRCH;
  return copy_by_any_thread(process.pid, address, const_cast<std::byte*>(from), bytes,
                            process_vm_writev);
}

}  // namespace rondo::transport::shm
