// See closed_in_children.hpp.
#include "comm/bootstrap/connection/closed_in_children.hpp"

#include <unistd.h>

#include <mutex>
#include <utility>
#include <vector>

#include "transport/memory/across_fork.hpp"

namespace rondo::comm {
namespace {

struct Descriptors {
  std::mutex mutex;
  std::vector<int> all;
  void begin_child() {
    for (const int fd : all) close(fd);
    all.clear();
  }
};

Descriptors& descriptors() { return transport::across_fork<Descriptors>(); }

}  // namespace

ClosedInChildren::ClosedInChildren(int fd) : fd_(fd) {
  const std::lock_guard lock(descriptors().mutex);
  descriptors().all.push_back(fd);
}

ClosedInChildren::ClosedInChildren(ClosedInChildren&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)) {}

ClosedInChildren& ClosedInChildren::operator=(ClosedInChildren&& other) noexcept {
  if (this != &other) {
    end();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void ClosedInChildren::end() {
  if (fd_ < 0) return;
  const std::lock_guard lock(descriptors().mutex);
  std::erase(descriptors().all, std::exchange(fd_, -1));
}

std::shared_ptr<const transport::UniqueFd> share_closed_in_children(transport::UniqueFd fd) {
  struct SharedDescriptor {
    explicit SharedDescriptor(transport::UniqueFd it) : fd(std::move(it)), in_children(fd.get()) {}
    transport::UniqueFd fd;
    ClosedInChildren in_children;  // ends first
  };
  auto kept = std::make_shared<const SharedDescriptor>(std::move(fd));
  return {kept, &kept->fd};
}

}  // namespace rondo::comm
