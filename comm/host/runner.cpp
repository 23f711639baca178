#include "comm/host/runner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "comm/base/clock.hpp"
#include "comm/base/guarded.hpp"
#include "comm/base/wait_callback.hpp"
#include "kernels/floating_point.hpp"

namespace rondo::engine {

Runner::Runner(transport::Transport& transport, board::Board& board, board::Watch& watch,
               const RunnerOptions& options)
    : transport_(transport),
      board_(board),
      watch_(watch),
      options_(options),
      lanes_(transport, board, options.channels, options.cache_bytes) {
  peers_.in.resize(static_cast<size_t>(board.ranks()));
  peers_.out.resize(static_cast<size_t>(board.ranks()));
  peers_.in_elsewhere.resize(static_cast<size_t>(board.ranks()));
  peers_.out_elsewhere.resize(static_cast<size_t>(board.ranks()));
  peers_.factors.resize(static_cast<size_t>(board.ranks()), 1);
  for (int channel = 0; channel < options.channels; ++channel) {
    engines_.push_back(std::make_unique<HostEngine>(transport, board, peers_, channel));
  }
  needs_progress_ = engines_[0]->needs_progress();
  if (options.channels > 1) workers_ = std::make_unique<Workers>(engines_, board, options.blocking);
}

uint64_t Runner::bytes_sent() const {
  uint64_t sum = lanes_.bytes_sent();
  for (const auto& engine : engines_) sum += engine->bytes_sent();
  return sum;
}

// Over all calls so far goes what travels with every slot: a disagreement that went unnoticed (two
// roots that both only send) is found by the next operation, or at the end (Watch::compare_calls).
uint64_t Runner::begin(const Prepared& prepared) {
  const uint64_t sequence = sequence_.load(std::memory_order_relaxed) + 1;
  sequence_.store(sequence, std::memory_order_relaxed);  // one writer; read by stats() only
  history_ = (history_ ^ prepared.hash) * 0x9e3779b97f4a7c15u + sequence;
  return sequence;
}

uint64_t Runner::record(const Prepared& prepared) {
  const uint64_t sequence = record_begin(prepared);
  record_end(sequence);
  return sequence;
}

uint64_t Runner::record_begin(const Prepared& prepared) {
  const uint64_t sequence = begin(prepared);
  if (prepared.call.collective == Collective::kAllToAllV) {
    board_.post_counts(sequence, prepared.layout.in_counts, prepared.layout.out_counts);
  }
  board_.post(sequence, prepared.call, {}, {});
  return sequence;
}

void Runner::record_end(uint64_t sequence) { board_.finish(sequence); }

// Where an operation is posted, decided and begun.
Progress Runner::start(Operation& operation) {
  const Prepared& prepared = *operation.prepared;
  if (operation.phase == Phase::kNew) {
    operation.sequence = begin(prepared);
    operation.tag = history_;
    operation.in_reference = operation.out_reference = {};
    operation.asked_peer = 0;
    operation.needed = board_.needed_before_post(
        operation.sequence, prepared.call.collective == Collective::kAllToAllV);
    operation.phase = Phase::kPosting;
    current_ = &operation;
  }
  if (operation.phase == Phase::kPosting) {
    const uint64_t sequence = operation.sequence;
    if (operation.needed > begun_by_all_ && !may_post(operation)) return Progress::kBlocked;
    const bool shares = prepared.sharing != Sharing::kSlots;
    if (shares) refer_to_buffers(operation);
    if (prepared.call.collective == Collective::kAllToAllV) {
      board_.post_counts(sequence, prepared.layout.in_counts, prepared.layout.out_counts);
    }
    board_.post(sequence, prepared.call, operation.in_reference, operation.out_reference,
                operation.factor);
    if (shares && board_.is_posted_after_error(sequence)) return withdraw();
    if (shares || sequence % board::kAskEvery == 0) {  // somebody may wait for this post
      for (int peer = 0; peer < board_.ranks(); ++peer) board_.ring(peer);
    }
    operation.phase = Phase::kDeciding;
  }
  if (prepared.direct != nullptr) return decide(operation);
  return walk(operation, prepared.staged, prepared.sharing);
}

// A rank that only sends could be any number of operations ahead of one that does not come, and
// then nobody would know any more what it was that it sent. So it stays as near as the board
// remembers.
[[gnu::noinline]] bool Runner::may_post(Operation& operation) {
  // Peers that were asked before a wait have begun `needed` at least.
  uint64_t slowest = operation.asked_peer == 0 ? operation.sequence : operation.needed;
  for (; operation.asked_peer < board_.ranks(); ++operation.asked_peer) {
    // This rank, and those that only have a copy of its rows, which may be old: what a disagreement
    // was about is then less well known (Watch::mismatch).
    if (!board_.is_local(asked(operation)) || operation.asked_peer == 0) continue;
    const uint64_t begun = board_.last_begun(asked(operation));
    if (begun < operation.needed) return false;
    slowest = std::min(slowest, begun);
  }
  begun_by_all_ = slowest;  // mostly nearer than needed, so that the next posts need not ask
  operation.asked_peer = 0;
  return true;
}

// Referring costs a look at the arena: only where peers may use it.
[[gnu::noinline]] void Runner::refer_to_buffers(Operation& operation) {
  using transport::Reference;
  const Prepared& prepared = *operation.prepared;
  const bool offers = prepared.direct != nullptr && !prepared.withheld;
  const bool sends_references = prepared.sharing == Sharing::kReferences && !prepared.in_place &&
                                prepared.in_bytes >= kReferenceBytes;
  const auto refer = [&](const std::byte* buffer, size_t bytes, Reference& reference) {
    if (buffer == nullptr) return;
    reference = transport_.refer(buffer, bytes);
    if (prepared.sharing != Sharing::kCopied || reference.kind != Reference::kNone) return;
    reference = {
        .kind = Reference::kProcess, .arena = 0, .offset = reinterpret_cast<uint64_t>(buffer)};
  };
  if (offers || sends_references) refer(operation.in, prepared.in_bytes, operation.in_reference);
  if (offers) refer(operation.out, prepared.out_bytes, operation.out_reference);
}

// Whether all ranks' buffers can be touched in place: every rank reads the same offers and so
// decides the same. A rank that cannot offer its own does not wait for the others: it goes through
// slots at once, and the others follow its post.
[[gnu::noinline]] Progress Runner::decide(Operation& operation) {
  const Prepared& prepared = *operation.prepared;
  if (operation.asked_peer == 0) operation.sharing = Sharing::kMapped;
  for (; operation.asked_peer < board_.ranks(); ++operation.asked_peer) {
    const int peer = asked(operation);
    switch (find_buffers(operation, peer)) {
      case Lookup::kFound:
        break;
      case Lookup::kAwaited:
        return Progress::kBlocked;
      case Lookup::kMismatch:
        return fail(watch_.mismatch(peer, operation.sequence, prepared.call));
      case Lookup::kNone:
        if (prepared.required) return refuse(operation, peer);
        return walk(operation, prepared.staged, Sharing::kReferences);
    }
  }
  return walk(operation, *prepared.direct, operation.sharing);
}

Runner::Lookup Runner::find_buffers(Operation& operation, int peer) {
  using transport::Reference;
  const Prepared& prepared = *operation.prepared;
  const board::Fingerprint& call = prepared.call;
  const auto p = static_cast<size_t>(peer);
  const bool needs_in = is_touched(prepared.direct->touched_in, peer, call.root);
  const bool needs_out = is_touched(prepared.direct->touched_out, peer, call.root);
  if (peer == board_.rank()) {
    peers_.in[p] = const_cast<std::byte*>(operation.in);
    peers_.out[p] = operation.out;
    peers_.factors[p] = operation.factor;
    const bool lacks = (needs_in && operation.in_reference.kind == Reference::kNone) ||
                       (needs_out && operation.out_reference.kind == Reference::kNone);
    return prepared.withheld || lacks ? Lookup::kNone : Lookup::kFound;
  }
  if (!needs_in && !needs_out) return Lookup::kFound;
  if (!board_.has_posted(peer, operation.sequence)) return Lookup::kAwaited;
  const auto posted = board_.read(peer, operation.sequence);
  if (!posted) return Lookup::kNone;  // already past it: only a rank that went through slots can be
  if (posted->call != call) return Lookup::kMismatch;
  peers_.factors[p] = posted->factor;
  const auto find = [&](const Reference& offered, size_t bytes, std::vector<std::byte*>& found,
                        std::vector<bool>& elsewhere) {
    // A peer that offers an address although this rank would not has another shape of call, or
    // nonsense: its buffer counts as not offered.
    elsewhere[p] = prepared.sharing == Sharing::kCopied && offered.kind == Reference::kProcess;
    if (elsewhere[p]) operation.sharing = Sharing::kCopied;
    found[p] = elsewhere[p] ? reinterpret_cast<std::byte*>(offered.offset)
                            : transport_.resolve(peer, offered, bytes);
    return found[p] != nullptr;
  };
  const bool found =
      (!needs_in || find(posted->in, prepared.in_bytes, peers_.in, peers_.in_elsewhere)) &&
      (!needs_out || find(posted->out, prepared.out_bytes, peers_.out, peers_.out_elsewhere));
  return found ? Lookup::kFound : Lookup::kNone;
}

// On every rank alike, and nothing has moved: the communicator stays usable.
Progress Runner::refuse(Operation& operation, int peer) {
  operation.outcome = {
      Code::kUnavailable,
      fmt::format("{} needs buffers from rondo::alloc on every rank; rank {}'s are not",
                  name(operation.prepared->direct->algorithm), peer)};
  return finish(operation);
}

Progress Runner::walk(Operation& operation, const ExecutionPlan& plan, Sharing sharing) {
  operation.plan = &plan;
  operation.sharing = sharing;
  operation.phase = Phase::kRunning;
  for (auto& engine : engines_) engine->start(operation);
  if (workers_ && plan.program.channels[1].rounds > 0) workers_->start();
  return Progress::kProgressed;
}

Progress Runner::finish(Operation& operation) {
  board_.finish(operation.sequence);
  operation.phase = Phase::kNew;
  current_ = nullptr;
  return Progress::kDone;
}

// Whether a peer has failed that may have had its buffers back while this rank still used them.
bool Runner::must_withdraw(const Operation& operation) const {
  return board_.has_error() && operation.sharing != Sharing::kSlots;
}

Progress Runner::step(Operation& operation) {
  if (operation.phase < Phase::kRunning) {
    const Progress started = start(operation);
    if (started != Progress::kProgressed) return started;
  }
  if (must_withdraw(operation)) return withdraw();
  const Progress walked = engines_[0]->advance();
  if (walked == Progress::kFailed) return engine_failed(operation, *engines_[0]);
  if (walked == Progress::kProgressed) {
    board_.progressed();
    return walked;
  }
  if (workers_) {  // also while this channel waits: perhaps for one that has failed
    if (const int channel = workers_->failed_channel(); channel > 0) {
      return engine_failed(operation, *engines_[static_cast<size_t>(channel)]);
    }
  }
  if (walked == Progress::kBlocked || (workers_ && workers_->running() > 0)) {
    return Progress::kBlocked;
  }
  if (must_withdraw(operation)) return withdraw();
  if (operation.prepared->call.collective == Collective::kAllToAllV) {
    if (const Status uneven = find_uneven(operation); !uneven.ok()) return fail(uneven);
  }
  return finish(operation);
}

Progress Runner::step_lanes() {
  // Before anything moves: what peers refer to may be theirs again.
  if (!lanes_.empty() && board_.has_error()) return withdraw();
  if (needs_progress_ && !lanes_.empty()) {
    if (const Status link = transport_.progress(options_.channels); !link.ok()) {
      const Transfer& waiting = lanes_.most_urgent();
      return found({.link = link, .what = waiting.to_string(), .peer = waiting.peer});
    }
  }
  const Progress progress = lanes_.advance();
  if (progress == Progress::kFailed) return fail(lanes_.failure());
  if (progress == Progress::kProgressed) board_.progressed();
  return progress;
}

// A peer's first messages need this rank's progress, also on channels on which it waits for nothing. What
// fails there is for who uses them.
void Runner::push_idle_channels(bool operates, bool has_messages) {
  for (int channel = 0; !operates && channel < options_.channels; ++channel) {
    (void)transport_.progress(channel);
  }
  if (!has_messages) (void)transport_.progress(options_.channels);
}

namespace {

// 0: unknown.
int64_t earlier(int64_t a, int64_t b) { return a == 0 || b == 0 ? std::max(a, b) : std::min(a, b); }

}  // namespace

[[gnu::noinline]] bool Runner::wait_a_little(const Operation* operation, Waiter& waiter,
                                             bool may_sleep) {
  const HostEngine& engine = *engines_[0];
  const bool lanes = !lanes_.empty();
  may_sleep = may_sleep && !needs_progress_;  // links, too, need this thread
  RONDO_CHECK(operation != nullptr || lanes, "nothing to wait for on rank %d", board_.rank());
  while (waiter.spin()) {
    if (!may_sleep || lanes || engine.may_go_on()) return true;
  }
  int64_t ready_at_ns = operation != nullptr ? engine.ready_at_ns() : 0;
  if (lanes) ready_at_ns = earlier(ready_at_ns, lanes_.ready_at_ns());
  if (needs_progress_) push_idle_channels(operation != nullptr, lanes);
  if (!waiter.idle(ready_at_ns, may_sleep)) return true;
  base::call_back_if_due();
  board::Wait wait{.sequence = board::kNoSequence,
                   .call = nullptr,
                   .algorithm = Algorithm::kAuto,
                   .peer = -1,
                   .step = 0,
                   .round = 0,
                   .since_ns = waiter.start_ns(),
                   .timeout_ns = 0};
  const Transfer* const message = lanes ? &lanes_.most_urgent() : nullptr;
  // Of both, what is late.
  const bool late = message != nullptr && operation != nullptr &&
                    message->timeout_ns < operation->timeout_ns &&
                    base::now_ns() - waiter.start_ns() > message->timeout_ns;
  if (operation != nullptr && !late) {
    wait.sequence = operation->sequence;
    wait.call = &operation->prepared->call;
    if (operation->phase >= Phase::kRunning) wait.algorithm = operation->plan->algorithm;
    wait.peer = blocked_on(*operation);
    wait.step = engine.cursor().step;
    wait.round = engine.cursor().round;
    wait.timeout_ns = operation->timeout_ns;
    // However long a pace delays bytes, neither this rank nor one that waits for it has stalled.
    wait.since_ns = std::max(wait.since_ns, engine.arriving_ns());
    if (engine.arriving_ns() > base::now_ns()) board_.progressed();
  } else {
    wait.transfer = lanes_.describe(*message);
    wait.peer = message->peer;
    wait.timeout_ns = message->timeout_ns;
  }
  if (const Status status = watch_.check(wait); !status.ok()) {
    (void)fail(status);
    return false;
  }
  const Progress looked = lanes ? find_abandoned() : Progress::kBlocked;
  if (looked == Progress::kProgressed) moved(waiter);
  return looked != Progress::kFailed;
}

// The peer that has to act: the one asked, or as channel 0, or else a worker says.
int Runner::blocked_on(const Operation& operation) const {
  if (operation.phase < Phase::kRunning) return asked(operation);
  for (const auto& engine : engines_) {
    if (engine->blocked_on() >= 0) return engine->blocked_on();
  }
  return -1;
}

void Runner::moved(Waiter& waiter) {
  if (waiter.start_ns() != 0) {
    watch_.done();
    left_ns_ = 0;
  }
  waiter.reset();
}

// Flattened, as HostEngine::advance is.
[[gnu::flatten]] Status Runner::run(Operation& operation) {
  const kernels::FloatingPointMode guard;
  std::optional<Waiter> waiter;  // from the first wait on: often the others are there already
  try {
    while (true) {
      const Progress stepped = step(operation);
      if (stepped == Progress::kBlocked) {
        if (!waiter) waiter.emplace(options_.blocking, board_);
        if (!wait_a_little(&operation, *waiter, true)) break;
        continue;
      }
      if (stepped == Progress::kFailed) break;
      if (waiter) moved(*waiter);
      if (stepped == Progress::kDone) return std::move(operation.outcome);
      if (waiter) base::call_back_if_due();  // much to move, and never a long wait
    }
  } catch (...) {
    (void)fail(base::caught());
  }
  return await_settled();
}

Status Runner::run(std::list<Operation>& operations) {
  const kernels::FloatingPointMode guard;
  Waiter waiter(options_.blocking, board_);
  auto next = operations.begin();
  Status outcome;  // the first that is not ok
  bool failed = false;
  try {
    while (!failed) {
      const Progress lanes = step_lanes();
      Operation* const operation = next != operations.end() ? &*next : nullptr;
      if (operation == nullptr && lanes == Progress::kDone) break;
      const bool steps = operation != nullptr && lanes != Progress::kFailed;
      const Progress stepped = steps ? step(*operation) : Progress::kBlocked;
      if (stepped == Progress::kDone) {
        if (outcome.ok()) outcome = operation->outcome;
        ++next;
      }
      if (lanes == Progress::kFailed || stepped == Progress::kFailed) {
        failed = true;
      } else if (lanes == Progress::kProgressed || stepped != Progress::kBlocked) {
        moved(waiter);
        base::call_back_if_due();
      } else {
        failed = !wait_a_little(operation, waiter, true);
      }
    }
  } catch (...) {
    (void)fail(base::caught());
    failed = true;
  }
  if (failed) outcome = await_settled();
  (void)lanes_.take_ended();
  (void)lanes_.take_pending();
  if (!failed) moved(waiter);
  return outcome;
}

}  // namespace rondo::engine
