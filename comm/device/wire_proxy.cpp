#include "comm/device/wire_proxy.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <chrono>
#include <cstdlib>
#include <system_error>
#include <utility>

#include "comm/base/clock.hpp"
#include "comm/base/guarded.hpp"
#include "transport/memory/across_fork.hpp"

namespace rondo::device {
namespace {

using transport::cuda_ipc::InboxLine;
using transport::cuda_ipc::OutboxLine;
using transport::cuda_ipc::SegmentLayout;
using transport::cuda_ipc::SlotHeader;

// So long after the last movement it only yields; then it sleeps, as an idle communicator must not
// take a core, and longer if that goes on.
constexpr int64_t kSpinNs = 1'000'000;
constexpr int64_t kShortlyNs = 100'000'000, kLongNs = 1'000'000'000;
constexpr std::chrono::microseconds kShortRest{50}, kRest{500}, kLongRest{2000};
// How long others still get their last slots from a rank that leaves and has lost a peer.
constexpr int64_t kAfterLossNs = 1'000'000'000;
constexpr int64_t kBetweenCheckNs = 1'000'000;

uint64_t load(const uint64_t& word) {
  return std::atomic_ref(const_cast<uint64_t&>(word)).load(std::memory_order_acquire);
}
void store(uint64_t& word, uint64_t value) {
  std::atomic_ref(word).store(value, std::memory_order_release);
}

template <class Line>
Line* line(std::byte* segment, size_t offset) {
  return reinterpret_cast<Line*>(segment + offset);
}

struct Running {
  std::mutex mutex;
  std::vector<WireProxy*> all;
  void begin_child() { all.clear(); }  // which has none of their threads
};
Running& running() { return transport::across_fork<Running>(); }

}  // namespace

transport::ucx::SlotPlaces WireProxy::slot_places(const transport::cuda_ipc::SegmentSizes& shape,
                                                  std::byte* inbound, std::byte* outbound) {
  static_assert(kGap >= transport::ucx::SlotPlaces::kGap);
  const SegmentLayout layout(shape);
  return {.first =
              [=](int channel, int peer, bool is_inbound) {
                return (is_inbound ? inbound : outbound) +
                       layout.slot(static_cast<size_t>(channel), static_cast<size_t>(peer), 0);
              },
          .stride = layout.slot_stride()};
}

WireProxy::WireProxy(ProxySettings settings) : settings_(std::move(settings)) {
  const SegmentLayout layout(settings_.shape);
  for (uint32_t channel = 0; channel < settings_.shape.channels; ++channel) {
    for (const int peer : settings_.far) {
      const auto number = static_cast<int>(channel);
      const size_t inbox = layout.inbox(channel, static_cast<size_t>(peer));
      const size_t outbox = layout.outbox(channel, static_cast<size_t>(peer));
      links_.push_back({.sender = &settings_.transport->sender(number, peer),
                        .receiver = &settings_.transport->receiver(number, peer),
                        .filled = line<InboxLine>(settings_.outbound, inbox),
                        .emptied = line<OutboxLine>(settings_.outbound, outbox),
                        .come = line<InboxLine>(settings_.inbound, inbox),
                        .freed = line<OutboxLine>(settings_.inbound, outbox)});
    }
  }
}

Result<std::unique_ptr<WireProxy>> WireProxy::start(ProxySettings settings) {
  std::unique_ptr<WireProxy> made(new WireProxy(std::move(settings)));
  try {
    static const int kAtExit = std::atexit([] { halt_all(); });
    (void)kAtExit;
    const std::lock_guard lock(running().mutex);
    made->thread_ = std::thread([proxy = made.get()] { proxy->work(); });
    running().all.push_back(made.get());
  } catch (const std::system_error& error) {
    return Status(Code::kResourceExhausted,
                  fmt::format("no thread to carry data between hosts: {}", error.what()));
  }
  return made;
}

WireProxy::~WireProxy() {
  {
    const std::lock_guard lock(running().mutex);
    std::erase(running().all, this);
  }
  halt();
}

void WireProxy::halt() {
  halted_.store(true, std::memory_order_relaxed);
  wake();
  await_end();
}

/// By several threads, perhaps: one that destroys the communicator, and one that exits.
void WireProxy::await_end() {
  const std::lock_guard lock(ending_);
  if (thread_.joinable()) thread_.join();
}

// CUDA unmaps pinned memory when a program exits, and UCX frees its workers: a communicator that was
// not destroyed must not use them any more. Handlers run in reverse order, so this one, registered
// after those, comes first.
void WireProxy::halt_all() {
  const std::lock_guard lock(running().mutex);
  for (WireProxy* proxy : running().all) proxy->halt();
}

void WireProxy::finish(int64_t longest_ns) {
  // Release: after all that kernels have written.
  ends_ns_.store(base::now_ns() + longest_ns, std::memory_order_release);
  wake();
  await_end();
}

void WireProxy::wake() {
  woken_.store(true, std::memory_order_relaxed);
  { const std::lock_guard lock(mutex_); }  // the thread is before its look at the word, or waits
  changed_.notify_one();
}

void WireProxy::work() {
  const Status failed = base::guarded([&]() -> Status {
    if (settings_.cuda == nullptr) return carry_on(), Status();
    // UCX takes the thread's context, which a new thread does not have, not even of device 0. And an
    // application's capture must not be ended by what UCX calls.
    const OutsideCapture outside(*settings_.cuda);
    RONDO_TRY(outside.status());
    RONDO_TRY(settings_.cuda->enter_device(settings_.device));
    carry_on();
    return settings_.cuda->leave_device();
  });
  if (!failed.ok()) (void)base::guarded([&] { return note(failed), Status(); });
}

void WireProxy::carry_on() {
  int64_t moved_ns = base::now_ns(), looked_ns = moved_ns;
  while (!halted_.load(std::memory_order_relaxed)) {
    const int64_t ends_ns = ends_ns_.load(std::memory_order_acquire);
    const bool moved = carry();
    const int64_t now = base::now_ns();
    if (moved || woken_.exchange(false, std::memory_order_relaxed)) moved_ns = now;
    const bool is_vain = !lost_.ok() && now - lost_ns_ > kAfterLossNs;
    if (ends_ns != 0 && (now > ends_ns || is_vain || !owes())) return;
    if (!lost_.ok() && lost_.code() != Code::kPeerDied) return;
    if (now - looked_ns > kBetweenCheckNs) {
      looked_ns = now;
      if (!settings_.look().ok()) return;
    }
    if (!moved) rest(now - moved_ns);
  }
}

/// Whether something has moved.
bool WireProxy::carry() {
  bool moved = false;
  for (WireLink& link : links_) {
    const bool out = carry_out(link, settings_.shape.depth);
    moved = carry_in(link, settings_.shape.depth) || out || moved;
  }
  for (uint32_t channel = 0; channel < settings_.shape.channels; ++channel) {
    const Status status = settings_.transport->progress(static_cast<int>(channel));
    if (!status.ok()) note(status);
  }
  return moved;
}

void WireProxy::note(const Status& failed) {
  if (!lost_.ok()) return;
  lost_ = failed;
  lost_ns_ = base::now_ns();
  settings_.lose(failed);
}

bool WireProxy::carry_out(WireLink& link, uint32_t depth) {
  bool moved = false;
  const uint64_t filled = load(link.filled->sent);
  const auto* const headers = reinterpret_cast<const SlotHeader*>(link.filled + 1);
  for (; link.published < filled; ++link.published) {
    const SlotHeader told = headers[link.published % depth];
    // Null: the link has failed, as progress() will say.
    if (link.sender->try_acquire(told.bytes) == nullptr) break;
    if (!link.sender->try_publish(told.bytes, told.tag)) break;
    moved = true;
  }
  if (link.reusable == link.published) return moved;
  const uint64_t reusable = link.sender->reusable();
  if (reusable == link.reusable) return moved;
  link.reusable = reusable;
  store(link.freed->freed, reusable);
  return true;
}

bool WireProxy::carry_in(WireLink& link, uint32_t depth) {
  if (!link.reads) {
    if (load(link.filled->taken) == 0) return false;
    link.reads = true;
  }
  bool moved = false;
  for (const uint64_t emptied = load(link.emptied->freed); link.released < emptied;
       ++link.released) {
    link.receiver->release();
    moved = true;
  }
  auto* const headers = reinterpret_cast<SlotHeader*>(link.come + 1);
  transport::Delivery came{};
  uint64_t arrived = link.arrived;
  bool has_payload = false;
  for (; link.receiver->try_peek_ahead(arrived - link.released, &came); ++arrived) {
    // What makes no sense is of no operation: the kernel says so, with the rank and the call.
    headers[arrived % depth] = came.data == nullptr
                                   ? SlotHeader{.tag = 0, .bytes = ~uint64_t{0}}
                                   : SlotHeader{.tag = came.tag, .bytes = came.bytes};
    has_payload = has_payload || came.bytes > 0;
  }
  if (arrived == link.arrived) return moved;
  if (has_payload && settings_.flushes) {
    if (const Status flushed = settings_.cuda->flush_remote_writes(); !flushed.ok()) {
      note(flushed);
      return moved;
    }
  }
  store(link.come->sent, link.arrived = arrived);
  return true;
}

/// Whether a peer still needs this rank for what kernels have left.
bool WireProxy::owes() {
  for (WireLink& link : links_) {
    if (link.published < load(link.filled->sent)) return true;
    if (link.released < load(link.emptied->freed)) return true;
    if (!link.sender->flushed() || !link.receiver->flushed()) return true;
  }
  return false;
}

void WireProxy::rest(int64_t idle_ns) {
  if (idle_ns < kSpinNs) {
    ::sched_yield();
    return;
  }
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock,
                    idle_ns < kShortlyNs ? kShortRest
                    : idle_ns < kLongNs  ? kRest
                                         : kLongRest,
                    [this] { return woken_.load(std::memory_order_relaxed); });
}

}  // namespace rondo::device
