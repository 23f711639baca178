#include "comm/device/residency.hpp"

#include <fmt/format.h>

#include <map>
#include <mutex>
#include <utility>

namespace rondo::device {
namespace {

// Leaked on purpose: communicators may end while static objects are being destroyed.
struct Ledger {
  std::mutex mutex;
  std::map<DeviceId, int> blocks;
};
Ledger& ledger() {
  static auto* const the_ledger = new Ledger;
  return *the_ledger;
}

}  // namespace

Result<Claim> Claim::take(const DeviceId& device, int blocks, int most) {
  const std::lock_guard lock(ledger().mutex);
  int& taken = ledger().blocks[device];
  if (taken + blocks > most) {
    return Status(Code::kUnavailable,
                  fmt::format("this rank's {} thread blocks do not fit: its GPU holds {} at a time "
                              "for this process, and its communicators have claimed {}. Use fewer "
                              "channels, or destroy a communicator first",
                              blocks, most, taken));
  }
  taken += blocks;
  Claim claim;
  claim.device_ = device;
  claim.blocks_ = blocks;
  return claim;
}

Claim::~Claim() {
  if (blocks_ == 0) return;
  const std::lock_guard lock(ledger().mutex);
  ledger().blocks[device_] -= blocks_;
}

Claim::Claim(Claim&& other) noexcept
    : device_(other.device_), blocks_(std::exchange(other.blocks_, 0)) {}

Claim& Claim::operator=(Claim&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(blocks_, other.blocks_);
  return *this;
}

int claimed(const DeviceId& device) {
  const std::lock_guard lock(ledger().mutex);
  const auto found = ledger().blocks.find(device);
  return found == ledger().blocks.end() ? 0 : found->second;
}

}  // namespace rondo::device
