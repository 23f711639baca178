// See process_handle.hpp.
#include "comm/bootstrap/process_handle.hpp"

#include <poll.h>

#include <map>
#include <mutex>
#include <utility>

namespace rondo::comm {
namespace {

using transport::UniqueFd;

bool lives(const UniqueFd& pidfd) {
  pollfd ended{pidfd.get(), POLLIN, 0};
  return poll(&ended, 1, 0) == 0;
}

}  // namespace

ProcessHandle ProcessHandle::share(const ProcessId& process, UniqueFd pidfd) {
  ProcessHandle handle(std::move(pidfd));
  if (!handle.valid() || process.pid_namespace == 0) return handle;
  static std::mutex mutex;
  static std::map<std::pair<uint64_t, int32_t>, std::weak_ptr<const UniqueFd>> known;
  const std::lock_guard<std::mutex> lock(mutex);
  std::erase_if(known, [](const auto& entry) { return entry.second.expired(); });
  auto& entry = known[{process.pid_namespace, process.pid}];
  // Its pid is nobody else's as long as a process lives.
  if (auto there = entry.lock(); there && lives(*there)) {
    handle.pidfd_ = std::move(there);
  } else {
    entry = handle.pidfd_;
  }
  return handle;
}

}  // namespace rondo::comm
