// See closed_in_children.hpp.
#include "comm/control/closed_in_children.hpp"

#include <pthread.h>
#include <unistd.h>

#include <mutex>
#include <utility>
#include <vector>

namespace rondo::comm {
namespace {

/// Leaked on purpose: threads may still leave theirs while static objects are being destroyed.
struct Descriptors {
  std::mutex mutex;
  std::vector<int> all;
};

Descriptors& descriptors() {
  static Descriptors* const the_descriptors = [] {
    ::pthread_atfork([] { descriptors().mutex.lock(); }, [] { descriptors().mutex.unlock(); },
                     [] {
                       for (const int fd : descriptors().all) close(fd);
                       descriptors().all.clear();
                       descriptors().mutex.unlock();
                     });
    return new Descriptors;
  }();
  return *the_descriptors;
}

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

}  // namespace rondo::comm
