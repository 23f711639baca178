// Work: what a caller does with an asynchronous operation.
#include <algorithm>
#include <utility>

#include "comm/base/guarded.hpp"
#include "comm/base/refuse.hpp"
#include "comm/engine/operation.hpp"
#include "comm/host/wait.hpp"
#include "rondo/communicator.hpp"

namespace rondo {

// Without a state: there was no memory for one.
Status Work::wait() {
  if (!test()) {
    if (state_->is_unbegun()) {
      return comm::refuse(
          "wait: the operation is part of an open group and begins with it: call group_end() "
          "first");
    }
    const engine::CallerWaits here;
    while (!test()) state_->ended.wait(false, std::memory_order_acquire);
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
