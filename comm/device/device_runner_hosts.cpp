// A rank on a GPU whose peers are on several hosts: what its kernels and the proxy share.
#include <fmt/format.h>

#include <cstring>
#include <string>
#include <utility>

#include "comm/device/device_runner.hpp"

namespace rondo::device {

// Two segments in pinned memory, which this rank's GPU maps, and there or on the GPU their slots, which
// are those of the links to ranks of other hosts.
Status DeviceRunner::open_wire(comm::WireToHosts& wire, bool gpu_direct) {
  const transport::cuda_ipc::SegmentLayout layout(shape_);
  is_gpu_direct_ = gpu_direct;
  const size_t bytes = is_gpu_direct_ ? layout.slots_begin() : layout.bytes();
  for (std::byte** segment : {&inbound_, &outbound_}) {
    std::byte* const memory = RONDO_TRY(cuda_.allocate_mapped(bytes));
    *segment = memory;
    std::memset(memory, 0, bytes);
  }
  if (is_gpu_direct_) {
    for (std::byte** slots : {&inbound_slots_, &outbound_slots_}) {
      std::byte* const memory = RONDO_TRY(cuda_.allocate(layout.slots_bytes()));
      *slots = memory;
    }
  }
  transport::ucx::SlotPlaces places = WireProxy::slot_places(
      shape_, slots_of(inbound_, inbound_slots_), slots_of(outbound_, outbound_slots_));
  places.on_gpu = is_gpu_direct_;
  return wire.open({.channels = static_cast<int>(shape_.channels),
                    .depth = profile_.slots,
                    .slot_bytes = shape_.slot_bytes,
                    .places = std::move(places)});
}

Status DeviceRunner::start_proxy(std::unique_ptr<transport::Transport> transport) {
  const bool flushes = is_gpu_direct_ && RONDO_TRY(cuda_.remote_writes(device_)) ==
                                             transport::cuda_ipc::RemoteWrites::kFlushed;
  proxy_ = RONDO_TRY(WireProxy::start({.shape = shape_,
                                       .far = far_,
                                       .inbound = inbound_,
                                       .outbound = outbound_,
                                       .transport = std::move(transport),
                                       .cuda = is_gpu_direct_ ? &cuda_ : nullptr,
                                       .device = device_,
                                       .flushes = flushes,
                                       .look = [this] { return look_after_wire(); },
                                       .lose = [this](const Status& why) { lose_wire(why); }}));
  return {};
}

/// A segment's, as if it all lay where they lie.
std::byte* DeviceRunner::slots_of(std::byte* segment, std::byte* slots) const {
  return slots == nullptr ? segment
                          : slots - transport::cuda_ipc::SegmentLayout(shape_).slots_begin();
}

Status DeviceRunner::look_after_wire() {
  RONDO_TRY(check(false));
  if (!has_lost_.load(std::memory_order_seq_cst)) return {};
  // Only here the proxy calls CUDA, which a thread of the application's may hold up: until kernels
  // lose their patience.
  const Result<bool> idle = is_idle();
  if (!idle.ok()) return raise_own(idle.status());
  const bool needs_nobody = *idle && !has_captured_.load(std::memory_order_relaxed);
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

// Kernels stop before this thread waits for news. A thread that reads their reports in the meantime waits
// for the cause that is found here (explain_reports).
Status DeviceRunner::explain_lost() {
  const uint64_t sequence = sequence_.load(std::memory_order_relaxed);
  const auto posted = board_.read(board_.rank(), sequence);
  const std::string what = posted ? posted->call.to_string() : "a collective";
  memory_->raise_aborts();
  board::NewsWait news;
  board::NewsWait::await([&] { return watch_.explain_link(lost_, what, -1, news); });
  return board_.error();
}

}  // namespace rondo::device
