// See process_handle.hpp.
#include "comm/bootstrap/session/process_handle.hpp"

#include <poll.h>

#include <map>
#include <mutex>
#include <utility>

#include "comm/base/hold_across_fork.hpp"

namespace rondo::comm {
namespace {

using transport::UniqueFd;

std::mutex handles_mutex;  // of the handles that this process knows

bool lives(const UniqueFd& pidfd) {
  pollfd ended{pidfd.get(), POLLIN, 0};
  return poll(&ended, 1, 0) <= 0;  // a signal may interrupt it
}

}  // namespace

ProcessHandle ProcessHandle::share(const ProcessId& process, UniqueFd pidfd) {
  ProcessHandle handle(std::move(pidfd));
  if (!handle.valid() || process.pid_namespace == 0) return handle;
  base::hold_across_fork<handles_mutex>();
  const std::lock_guard<std::mutex> lock(handles_mutex);
  // Made under the lock: a fork must not meet it half made.
  static std::map<std::pair<uint64_t, int32_t>, std::weak_ptr<const UniqueFd>> known;
  std::erase_if(known, [](const auto& entry) { return entry.second.expired(); });
  auto& entry = known[{process.pid_namespace, process.pid}];
  // No other process has this pid while this one lives.
  if (auto there = entry.lock(); there && lives(*there)) {
    handle.pidfd_ = std::move(there);
  } else {
    entry = handle.pidfd_;
  }
  return handle;
}

}  // namespace rondo::comm
