// A rank on a GPU whose peers are on several hosts: what its kernels and the proxy share.
#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "comm/device/device_runner.hpp"

namespace rondo::device {

// Two segments in pinned memory, which this rank's GPU maps; their slots are those of the links to
// ranks of other hosts.
Status DeviceRunner::connect_hosts(const DeviceSettings& setup) {
  const size_t bytes = transport::cuda_ipc::SegmentLayout(shape_).bytes();
  for (std::byte** segment : {&inbound_, &outbound_}) {
    std::byte* const memory = RONDO_TRY(cuda_.allocate_mapped(bytes));
    *segment = memory;
    std::memset(memory, 0, bytes);
  }
  auto transport = RONDO_TRY(
      setup.connect_hosts({.channels = static_cast<int>(shape_.channels),
                           .depth = profile_.slots,
                           .slot_bytes = shape_.slot_bytes,
                           .places = WireProxy::slot_places(shape_, inbound_, outbound_)}));
  proxy_ = RONDO_TRY(WireProxy::start({.shape = shape_,
                                       .far = far_,
                                       .inbound = inbound_,
                                       .outbound = outbound_,
                                       .transport = std::move(transport),
                                       .look = [this] { return look_after_wire(); },
                                       .lose = [this](const Status& why) { lose_wire(why); }}));
  return {};
}

Status DeviceRunner::look_after_wire() {
  RONDO_TRY(check(false));
  if (!has_lost_.load(std::memory_order_seq_cst)) return {};
  // Only here the proxy calls CUDA, which a thread of the application's may hold up: until kernels
  // lose their patience.
  const Result<bool> idle = is_idle();
  const bool needs_nobody = idle.ok() && *idle && !has_captured_.load(std::memory_order_relaxed);
  return needs_nobody ? Status() : explain_lost();
}

void DeviceRunner::lose_wire(const Status& why) {
  lost_ = why;
  // Whoever launches after this finds it, and whoever has launched before is not idle.
  has_lost_.store(true, std::memory_order_seq_cst);
  // A peer that has ended may have done its part of everything.
  if (why.code() != Code::kPeerDied || !has_launched_.load(std::memory_order_relaxed)) {
    (void)explain_lost();
  }
}

Status DeviceRunner::explain_lost() {
  const uint64_t sequence = sequence_.load(std::memory_order_relaxed);
  const auto posted = board_.read(board_.rank(), sequence);
  (void)watch_.link_failed(lost_, posted ? posted->call.to_string() : "a collective", -1);
  memory_->raise_aborts();
  return board_.error();
}

}  // namespace rondo::device
