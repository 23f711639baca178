// Connections by whose end another host sees that this process has ended. A forked child inherits
// them, and may outlive its parent: a data loader's workers do where the parent is killed.
#pragma once

#include <memory>

#include "transport/memory/unique_fd.hpp"

namespace rondo::comm {

/// As long as it exists, a child that this process forks closes its copy of a descriptor at once.
/// The descriptor must not be closed before. Any thread.
class ClosedInChildren {
 public:
  explicit ClosedInChildren(int fd);
  ~ClosedInChildren() { end(); }
  ClosedInChildren(ClosedInChildren&& other) noexcept;
  ClosedInChildren& operator=(ClosedInChildren&& other) noexcept;

  void end();

 private:
  int fd_;
};

/// The descriptor, which children close as long as it is open.
std::shared_ptr<const transport::UniqueFd> share_closed_in_children(transport::UniqueFd fd);

}  // namespace rondo::comm
