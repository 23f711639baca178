// How a runner fails: it stops, then finds out what the error is called, and when the caller has its
// buffers back. Only await_settled() waits for other ranks, because the thread may serve other communicators.
// withdraw() waits until this rank's own workers have ended a slice.
// Nothing here runs while all goes well; a flattened step() must not take it in.
#include <fmt/format.h>

#include <cstring>
#include <ctime>

#include "comm/base/clock.hpp"
#include "comm/base/guarded.hpp"
#include "comm/base/wait_callback.hpp"
#include "comm/host/runner.hpp"

namespace rondo::engine {

namespace {
// How long a rank that fails waits until the others have withdrawn from its buffers. Those that live
// do so within moments; a process that is stopped never does. Threads of one process are not stopped
// apart, and what they touch too late may be unmapped.
constexpr int64_t kReleaseNs = 200'000'000;
constexpr int64_t kReleaseOfAddressesNs = 10'000'000'000;
constexpr timespec kSettlePause{0, 100'000};
// What a rank sent before it left may still be on a wire for so long.
constexpr int64_t kLastArrivalsNs = 2'000'000'000;
}  // namespace

/// `error` is on the board already, or becomes the one that holds.
[[gnu::noinline]] Progress Runner::fail(const Status& error) {
  board_.propose(error);
  return withdraw();
}

[[gnu::noinline]] Progress Runner::found(FoundFailure finding) {
  finding_.emplace(std::move(finding));
  return withdraw();
}

[[gnu::noinline]] Progress Runner::withdraw() {
  if (workers_) workers_->stop();
  board_.withdraw();
  return Progress::kFailed;
}

// Peers may be inside a move that reads or writes this rank's buffers. They look for an error
// before every move, which is a slice, and withdraw; then the caller can have its buffers back.
bool Runner::is_released() {
  using transport::Reference;
  const uint32_t in = current_ != nullptr ? current_->in_reference.kind : Reference::kNone;
  const uint32_t out = current_ != nullptr ? current_->out_reference.kind : Reference::kNone;
  const bool shares = in != Reference::kNone || out != Reference::kNone;
  const bool addresses = in == Reference::kAddress || out == Reference::kAddress;
  if (release_began_ns_ == 0) release_began_ns_ = base::now_ns();
  const int64_t waited = base::now_ns() - release_began_ns_;
  for (int peer = 0; peer < board_.ranks(); ++peer) {
    if (peer == board_.rank() || !board_.is_local(peer)) continue;
    const bool in_operation = shares && board_.may_touch(peer, current_->sequence) &&
                              waited < (addresses ? kReleaseOfAddressesNs : kReleaseNs);
    const bool in_message = lanes_.is_read_by(peer) && !board_.has_withdrawn(peer) &&
                            !board_.has_left(peer) && waited < kReleaseNs;
    if ((in_operation || in_message) && !watch_.has_ended(peer)) return false;
  }
  current_ = nullptr;
  watch_.done();
  return true;
}

// Peers stop when they see the error, so it comes before the release.
bool Runner::settle() {
  if (finding_ && !board_.has_error() && !explain(*finding_)) return false;
  finding_.reset();
  const bool released = is_released();  // both begin at once
  return board_.has_verdict() && released;
}

[[gnu::noinline]] Status Runner::await_settled() {
  const auto settles = [this] {
    try {
      return settle();
    } catch (...) {  // no memory to name the failure; the next step needs none
      board_.propose(base::caught());
      return false;
    }
  };
  while (!settles()) {
    nanosleep(&kSettlePause, nullptr);
    base::call_back_if_due();
  }
  return board_.error();
}

[[gnu::noinline]] Progress Runner::engine_failed(const Operation& operation,
                                                 const HostEngine& engine) {
  return found({.operation = &operation,
                .engine = &engine,
                .link = engine.link_error(),
                .what = operation.prepared->call.to_string(),
                .peer = engine.blocked_on()});
}

/// True: the error is on the board.
bool Runner::explain(FoundFailure& finding) {
  if (!finding.link.ok()) {
    return watch_.explain_link(finding.link, finding.what, finding.peer, finding.news);
  }
  if (!watch_.has_row(finding.peer, finding.operation->sequence, finding.news)) return false;
  explain_engine(*finding.operation, *finding.engine);
  return true;
}

void Runner::explain_engine(const Operation& operation, const HostEngine& engine) {
  const int peer = engine.blocked_on();
  const board::Fingerprint& call = operation.prepared->call;
  if (!watch_.find_uneven(peer, operation.sequence, call).ok()) return;
  if (engine.mismatch()) {
    (void)watch_.mismatch(peer, operation.sequence, call);
  } else if (const int error = engine.copy_error(); error != 0) {
    board_.propose(
        {Code::kSystem,
         fmt::format("rank {} cannot copy between its buffers and those that rank {} passed to {} "
                     "(operation {}): {}; are all of them as large as the call says? RONDO_CMA=0 "
                     "does without such copies",
                     board_.rank(), peer, call.to_string(), operation.sequence,
                     std::strerror(error))});
  } else {
    board_.propose(
        {Code::kSystem,
         fmt::format("rank {} received a slot from rank {} that makes no sense in {} (operation "
                     "{}): shared memory was overwritten, or the ranks run different versions of "
                     "rondo",
                     board_.rank(), peer, call.to_string(), operation.sequence)});
  }
}

// Of two ranks that disagree about what passes between them, and have nothing to wait for, the
// later one sees what the other has posted.
[[gnu::noinline]] Status Runner::find_uneven(const Operation& operation) {
  Status uneven;
  for (int peer = 0; uneven.ok() && peer < board_.ranks(); ++peer) {
    uneven = watch_.find_uneven(peer, operation.sequence, operation.prepared->call);
  }
  return uneven;
}

// A message that waits for a rank that has left will wait for ever, unless all it needs lies in
// slots already (or is on its way, on a wire): the lanes are stepped once more, after the rank has
// been seen to be gone.
Progress Runner::find_abandoned() {
  const auto has_left = [this](int peer) { return board_.has_left(peer); };
  if (lanes_.find_waiting_for(has_left) == nullptr) return Progress::kBlocked;
  const Progress progress = step_lanes();
  if (progress == Progress::kFailed) return progress;
  if (progress != Progress::kBlocked) return Progress::kProgressed;
  const Transfer* const waiting = lanes_.find_waiting_for(has_left);
  if (waiting == nullptr) return Progress::kBlocked;
  if (left_ns_ == 0) left_ns_ = base::now_ns();
  if (needs_progress_ && base::now_ns() - left_ns_ < kLastArrivalsNs) return Progress::kBlocked;
  return fail(watch_.abandoned(waiting->peer, waiting->to_string()));
}

}  // namespace rondo::engine
