// Watches a process's end: one pidfd per process, however many communicators have ranks in it.
#pragma once

#include <memory>

#include "comm/bootstrap/connection/wire.hpp"
#include "transport/memory/unique_fd.hpp"

namespace rondo::comm {

/// A pidfd, readable once the process has ended; or none. Copies share it.
class ProcessHandle {
 public:
  ProcessHandle() = default;
  /// A handle that is not shared.
  explicit ProcessHandle(transport::UniqueFd pidfd)
      : pidfd_(std::make_shared<transport::UniqueFd>(std::move(pidfd))) {}
  /// This process's existing handle of `process`, and closes `pidfd`; else a new one. REQUIRES:
  /// that process itself opened `pidfd` and sent its ProcessId. Any thread.
  static ProcessHandle share(const ProcessId& process, transport::UniqueFd pidfd);

  int get() const { return pidfd_ ? pidfd_->get() : -1; }
  bool valid() const { return get() >= 0; }
  const std::shared_ptr<const transport::UniqueFd>& shared() const { return pidfd_; }

 private:
  std::shared_ptr<const transport::UniqueFd> pidfd_;
};

}  // namespace rondo::comm
