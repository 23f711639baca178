// Work: what a caller does with an asynchronous operation.
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>
#include <utility>

#include "comm/base/guarded.hpp"
#include "comm/base/refuse.hpp"
#include "comm/base/wait_callback.hpp"
#include "comm/engine/operation.hpp"
#include "comm/host/wait.hpp"
#include "rondo/communicator.hpp"
#include "rondo/log.hpp"

namespace rondo {

namespace {

// As long as std::atomic's wait, which cannot end early for a callback, spins and yields.
constexpr int kSpins = 12, kYields = 4;

}  // namespace

void set_wait_callback(void (*callback)(void*), void* context) {
  base::wait_callback = {
      .call = callback, .context = context, .due_ns = base::wait_callback.due_ns};
}

void Work::State::sleep() {
  for (int i = 0; i < kSpins + kYields; ++i) {
    if (ended.load(std::memory_order_acquire) != 0) return;
    if (i < kSpins) {
      engine::cpu_pause();
    } else {
      sched_yield();
    }
  }
  const timespec limit{0, base::kWaitCallbackEveryNs};
  // Sequentially consistent, as in end(): one of both sees the other.
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  if (ended.load(std::memory_order_seq_cst) == 0) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&ended), FUTEX_WAIT_PRIVATE, 0,
            base::wait_callback.call != nullptr ? &limit : nullptr, nullptr, 0);
  }
  sleepers.fetch_sub(1, std::memory_order_relaxed);
  base::call_back_if_due();
}

void Work::State::wake() {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&ended), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr,
          nullptr, 0);
}

// Without a state: there was no memory for one.
Status Work::wait() {
  if (!test()) {
    if (state_->is_unbegun()) {
      return comm::refuse(
          "wait: the operation is part of an open group and begins with it: call group_end() "
          "first");
    }
    const engine::CallerWaits here;
    while (!test()) state_->sleep();
  }
  return status();
}
bool Work::test() const {
  return !state_ || state_->ended.load(std::memory_order_acquire) || state_->is_orphaned();
}
Status Work::status() const {
  if (!state_) return base::kOutOfMemory;
  if (state_->is_orphaned()) {
    return base::guarded([this] { return comm::refuse_copy("Work", state_->process); });
  }
  return test() ? state_->status : Status();
}
Work::Times Work::times() const {
  if (!state_) return {};
  return {state_->issued_ns.load(std::memory_order_relaxed),
          state_->started_ns.load(std::memory_order_relaxed),
          state_->ended_ns.load(std::memory_order_relaxed)};
}
Envelope Work::envelope() const {
  return state_ && test() && status().ok() ? state_->envelope : Envelope();
}

Status wait_all(std::span<Work> works) {
  Status outcome;
  for (Work& work : works) {
    Status status = work.wait();
    if (outcome.ok()) outcome = std::move(status);
  }
  return outcome;
}

size_t wait_any(std::span<const Work> works) {
  using State = Work::State;
  const auto find_ended = [works] {
    return static_cast<size_t>(
        std::find_if(works.begin(), works.end(),
                     [](const Work& work) {
                       // See State::end().
                       return !work.state_ || work.state_->ended.load(std::memory_order_seq_cst) ||
                              work.state_->is_orphaned();
                     }) -
        works.begin());
  };
  if (const size_t ended = find_ended(); ended < works.size()) return ended;
  if (works.empty()) return 0;
  const auto unbegun = std::find_if(works.begin(), works.end(),
                                    [](const Work& work) { return work.state_->is_unbegun(); });
  if (unbegun != works.end()) return static_cast<size_t>(unbegun - works.begin());
  const engine::CallerWaits here;
  State::waiting_for_any.fetch_add(1, std::memory_order_seq_cst);
  size_t ended = works.size();
  while (true) {
    // Acquire: what ended before this count is seen by the look after it.
    const uint32_t seen = State::ended_meanwhile.load(std::memory_order_acquire);
    ended = find_ended();
    if (ended < works.size()) break;
    State::ended_meanwhile.wait(seen, std::memory_order_acquire);
  }
  State::waiting_for_any.fetch_sub(1, std::memory_order_relaxed);
  return ended;
}

}  // namespace rondo
