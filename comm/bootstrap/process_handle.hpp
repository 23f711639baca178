// How a process is watched whose end matters: by one pidfd, however many communicators have ranks
// in it.
#pragma once

#include <memory>

#include "comm/bootstrap/wire.hpp"
#include "transport/shm/unique_fd.hpp"

namespace rondo::comm {

/// A pidfd, readable once the process has ended; or none. Copies share it.
class ProcessHandle {
 public:
  ProcessHandle() = default;
  /// A handle of its own.
  explicit ProcessHandle(transport::UniqueFd pidfd)
      : pidfd_(std::make_shared<transport::UniqueFd>(std::move(pidfd))) {}
  /// The one that this process has of `process` already, and `pidfd` is closed; else a new one.
  /// REQUIRES: `pidfd` comes from that process itself, which so named itself. Any thread.
  static ProcessHandle share(const ProcessId& process, transport::UniqueFd pidfd);

  int get() const { return pidfd_ ? pidfd_->get() : -1; }
  bool valid() const { return get() >= 0; }

 private:
  std::shared_ptr<const transport::UniqueFd> pidfd_;
};

}  // namespace rondo::comm
