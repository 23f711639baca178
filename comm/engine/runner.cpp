#include "comm/engine/runner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <ctime>

#include "comm/recorder/clock.hpp"
#include "kernels/floating_point.hpp"

namespace rondo::engine {

namespace {
// How long a rank that fails waits for the others to let go of its buffers. Those that live answer
// within moments; a process that is stopped never does. Threads of one process are not stopped
// apart, and what they touch too late may be unmapped.
constexpr int64_t kLetGoNs = 200'000'000;
constexpr int64_t kLetGoOfAddressesNs = 10'000'000'000;
constexpr timespec kLetGoPause{0, 100'000};

// Whether a peer's buffer is reached by the kernel's copies only. A peer that offers it so although
// this rank would not has another shape of call, or nonsense: its buffer counts as not offered.
bool is_elsewhere(const Operation& operation, const transport::Reference& offered) {
  return operation.prepared->by_process_copy && offered.kind == transport::Reference::kProcess;
}
}  // namespace

Offers offers_of(Collective collective, Algorithm algorithm, int root, int rank) {
  switch (base_of(collective)) {
    case Collective::kAllReduce:
      return {.in = true, .out = algorithm == Algorithm::kTwoShotDirect};
    case Collective::kReduceScatter:
      return {.in = true, .out = false};
    case Collective::kAllGather:
      return {.in = false, .out = true};
    case Collective::kBroadcast:
      return {.in = rank == root, .out = false};
    case Collective::kReduce:
      return {.in = true, .out = rank == root};
    case Collective::kGather:
      return {.in = false, .out = rank == root};
    case Collective::kScatter:
      return {.in = rank == root, .out = false};
    case Collective::kAllToAll:
      return {.in = false, .out = true};
    default:  // barrier
      return {.in = false, .out = false};
  }
}

Runner::Runner(transport::Transport& transport, recorder::Board& board, recorder::Watch& watch,
               const RunnerOptions& options)
    : transport_(transport),
      board_(board),
      watch_(watch),
      options_(options),
      references_(transport.capabilities().references),
      lanes_(transport, board, options.channels, options.cache_bytes) {
  peers_.in.resize(static_cast<size_t>(board.ranks()));
  peers_.out.resize(static_cast<size_t>(board.ranks()));
  peers_.in_elsewhere.resize(static_cast<size_t>(board.ranks()));
  peers_.out_elsewhere.resize(static_cast<size_t>(board.ranks()));
  peers_.factors.resize(static_cast<size_t>(board.ranks()), 1);
  for (int channel = 0; channel < options.channels; ++channel) {
    engines_.push_back(std::make_unique<HostEngine>(transport, board, peers_, channel));
  }
  if (options.channels > 1) workers_ = std::make_unique<Workers>(engines_, board, options.blocking);
}

uint64_t Runner::bytes_sent() const {
  uint64_t sum = lanes_.bytes_sent();
  for (const auto& engine : engines_) sum += engine->bytes_sent();
  return sum;
}

uint64_t Runner::post(const Prepared& prepared) {
  const recorder::Call& call = prepared.call;
  const uint64_t sequence = sequence_.load(std::memory_order_relaxed) + 1;
  sequence_.store(sequence, std::memory_order_relaxed);  // as in begin()
  history_ = (history_ ^ call.hash()) * 0x9e3779b97f4a7c15u + sequence;
  if (call.collective == Collective::kAllToAllV) {
    board_.post_counts(sequence, prepared.layout.in_counts, prepared.layout.out_counts);
  }
  board_.post(sequence, call, {}, {});
  board_.finish(sequence);
  return sequence;
}

void Runner::begin(Operation& operation) {
  const uint64_t sequence = sequence_.load(std::memory_order_relaxed) + 1;
  sequence_.store(sequence,
                  std::memory_order_relaxed);  // one writer at a time; read by stats() only
  operation.sequence = sequence;
  current_ = &operation;
  // Over all calls so far: a disagreement that went unnoticed (two roots that both only send) is
  // found by the next operation.
  history_ = (history_ ^ operation.prepared->hash) * 0x9e3779b97f4a7c15u + sequence;
  operation.tag = history_;
  operation.in_reference = {};
  operation.out_reference = {};
  operation.too_late = false;
  deciding_on_ = -1;
  operation.asked_peer = 0;
  const bool counts = operation.prepared->call.collective == Collective::kAllToAllV;
  if (const uint64_t needed = board_.needed_before_post(sequence, counts); needed > begun_by_all_) {
    operation.needed = needed;
    operation.phase = Phase::kPosting;
  } else {
    post(operation);
  }
}

// A rank that only sends could be any number of operations ahead of one that does not come, and
// then nobody would know any more what it was that it sent. So it stays as near as the board
// remembers.
[[gnu::noinline]] Progress Runner::let_follow(Operation& operation) {
  uint64_t slowest = operation.sequence;
  for (; operation.asked_peer < board_.ranks(); ++operation.asked_peer) {
    const int peer = operation.asked_peer;
    if (peer == board_.rank()) continue;
    const uint64_t begun = board_.last_begun(peer);
    slowest = std::min(slowest, begun);
    if (begun >= operation.needed) continue;
    deciding_on_ = peer;
    return Progress::kBlocked;
  }
  // Mostly they are nearer than they have to be, and need not be asked again so soon. Who was asked
  // before a wait is as far as `needed` at least.
  begun_by_all_ = deciding_on_ < 0 ? slowest : operation.needed;
  deciding_on_ = -1;
  operation.asked_peer = 0;
  post(operation);
  return Progress::kProgressed;
}

void Runner::post(Operation& operation) {
  const uint64_t sequence = operation.sequence;
  const Prepared& prepared = *operation.prepared;
  if (prepared.shows) show(operation);
  board_.post(sequence, prepared.call, operation.in_reference, operation.out_reference,
              operation.factor);
  if (prepared.shows && board_.is_too_late(sequence)) {
    operation.too_late = true;
    return;
  }
  if (prepared.shows || sequence % recorder::kAskEvery == 0) {  // somebody may wait for this post
    for (int peer = 0; peer < board_.ranks(); ++peer) board_.ring(peer);
  }
  if (prepared.direct != nullptr) {
    operation.phase = Phase::kDeciding;
  } else {
    (void)choose(operation, &prepared.staged);
  }
}

// What peers are to know of the buffers. Referring costs a look at the arena: only where references
// may be used.
[[gnu::noinline]] void Runner::show(Operation& operation) {
  using transport::Reference;
  const Prepared& prepared = *operation.prepared;
  const bool sends_references =
      references_ && !prepared.scaled && !prepared.in_place && prepared.in_bytes >= kReferenceBytes;
  const bool offers = prepared.direct != nullptr && prepared.offers;
  if (sends_references || offers) {
    if (operation.in != nullptr)
      operation.in_reference = transport_.refer(operation.in, prepared.in_bytes);
    if (operation.out != nullptr)
      operation.out_reference = transport_.refer(operation.out, prepared.out_bytes);
  }
  if (offers && prepared.by_process_copy) {
    const auto refer = [](const std::byte* buffer, Reference& reference) {
      if (buffer == nullptr || reference.kind != Reference::kNone) return;
      reference = {
          .kind = Reference::kProcess, .arena = 0, .offset = reinterpret_cast<uint64_t>(buffer)};
    };
    refer(operation.in, operation.in_reference);
    refer(operation.out, operation.out_reference);
  }
  if (prepared.call.collective == Collective::kAllToAllV) {
    board_.post_counts(operation.sequence, prepared.layout.in_counts, prepared.layout.out_counts);
  }
}

Progress Runner::choose(Operation& operation, const Plan* plan) {
  operation.plan = plan;
  operation.phase = Phase::kRunning;
  deciding_on_ = -1;
  for (auto& engine : engines_) engine->start(operation);
  if (workers_ && plan->program.channels[1].rounds > 0) workers_->start();
  return Progress::kProgressed;
}

// Whether all ranks' buffers can be touched in place: every rank reads the same offers and so
// decides the same. A rank that cannot offer its own needs nobody else's word: it goes through
// slots at once, and the others follow its post.
[[gnu::noinline]] Progress Runner::decide(Operation& operation) {
  const recorder::Call& call = operation.prepared->call;
  if (operation.asked_peer == 0) peers_.any_elsewhere = false;
  const auto fall_back = [&](int peer) {
    if (!operation.prepared->direct_only) return choose(operation, &operation.prepared->staged);
    // On every rank alike, and nothing has moved: the communicator stays usable.
    board_.finish(operation.sequence);
    current_ = nullptr;
    failure_ = {Code::kUnavailable,
                fmt::format("{} needs buffers from rondo::alloc on every rank; rank {}'s are not",
                            name(operation.prepared->direct->algorithm), peer)};
    return Progress::kFailed;
  };
  for (; operation.asked_peer < board_.ranks(); ++operation.asked_peer) {
    // This rank first, then the others.
    const int peer = (board_.rank() + operation.asked_peer) % board_.ranks();
    const auto p = static_cast<size_t>(peer);
    const Offers needed =
        offers_of(call.collective, operation.prepared->direct->algorithm, call.root, peer);
    if (peer == board_.rank()) {
      if (!operation.prepared->offers ||
          (needed.in && operation.in_reference.kind == transport::Reference::kNone) ||
          (needed.out && operation.out_reference.kind == transport::Reference::kNone)) {
        return fall_back(peer);
      }
      peers_.in[p] = const_cast<std::byte*>(operation.in);
      peers_.out[p] = operation.out;
      peers_.factors[p] = operation.factor;
      continue;
    }
    if (!needed.in && !needed.out) continue;
    if (!board_.has_posted(peer, operation.sequence)) {
      deciding_on_ = peer;
      return Progress::kBlocked;
    }
    const auto posted = board_.read(peer, operation.sequence);
    // Already past it: only a rank that went through slots can be.
    if (!posted) return fall_back(peer);
    if (posted->call != call) return fail(watch_.mismatch(peer, operation.sequence, call));
    peers_.factors[p] = posted->factor;
    const bool in_elsewhere = is_elsewhere(operation, posted->in);
    const bool out_elsewhere = is_elsewhere(operation, posted->out);
    if (needed.in) {
      peers_.in[p] = in_elsewhere
                         ? reinterpret_cast<std::byte*>(posted->in.offset)
                         : transport_.resolve(peer, posted->in, operation.prepared->in_bytes);
      peers_.in_elsewhere[p] = in_elsewhere;
    }
    if (needed.out) {
      peers_.out[p] = out_elsewhere
                          ? reinterpret_cast<std::byte*>(posted->out.offset)
                          : transport_.resolve(peer, posted->out, operation.prepared->out_bytes);
      peers_.out_elsewhere[p] = out_elsewhere;
    }
    if ((needed.in && peers_.in[p] == nullptr) || (needed.out && peers_.out[p] == nullptr)) {
      return fall_back(peer);
    }
    peers_.any_elsewhere =
        peers_.any_elsewhere || (needed.in && in_elsewhere) || (needed.out && out_elsewhere);
  }
  return choose(operation, operation.prepared->direct.get());
}

[[gnu::noinline]] Progress Runner::fail(Status status) {
  failure_ = std::move(status);
  if (workers_) workers_->stop();
  board_.give_up();
  failed_ns_ = recorder::now_ns();
  return Progress::kFailed;
}

// Peers may be inside a move that reads or writes this rank's buffers. They look for an error
// before every move, which is a slice, and give up; then the caller can have its buffers back.
bool Runner::is_let_go() {
  using transport::Reference;
  const uint32_t in = current_ != nullptr ? current_->in_reference.kind : Reference::kNone;
  const uint32_t out = current_ != nullptr ? current_->out_reference.kind : Reference::kNone;
  const bool offers = in != Reference::kNone || out != Reference::kNone;
  const bool addresses = in == Reference::kAddress || out == Reference::kAddress;
  const int64_t waited = recorder::now_ns() - failed_ns_;
  for (int peer = 0; peer < board_.ranks(); ++peer) {
    if (peer == board_.rank()) continue;
    const bool in_operation = offers && board_.may_touch(peer, current_->sequence) &&
                              waited < (addresses ? kLetGoOfAddressesNs : kLetGoNs);
    const bool in_message = lanes_.is_read_by(peer) && !board_.has_given_up(peer) &&
                            !board_.has_left(peer) && waited < kLetGoNs;
    if ((in_operation || in_message) && !watch_.has_ended(peer)) return false;
  }
  current_ = nullptr;
  return true;
}

[[gnu::noinline]] Status Runner::await_peers() {
  while (!is_let_go()) nanosleep(&kLetGoPause, nullptr);
  return failure_;
}

[[gnu::noinline]] Progress Runner::engine_failed(const Operation& operation,
                                                 const HostEngine& engine) {
  const int peer = engine.blocked_on();
  if (Status uneven =
          watch_.find_uneven(board_.rank(), peer, operation.sequence, operation.prepared->call);
      !uneven.ok()) {
    return fail(std::move(uneven));
  }
  if (engine.mismatch()) {
    return fail(watch_.mismatch(peer, operation.sequence, operation.prepared->call));
  }
  if (const int error = engine.copy_error(); error != 0) {
    return fail(board_.raise(
        {Code::kSystem,
         fmt::format("rank {} cannot copy between its buffers and those that rank {} passed to {} "
                     "(operation {}): {}; are all of them as large as the call says? RONDO_CMA=0 "
                     "does without such copies",
                     board_.rank(), peer, operation.prepared->call.to_string(), operation.sequence,
                     std::strerror(error))}));
  }
  const Status status(
      Code::kSystem,
      fmt::format("rank {} received a slot from rank {} that makes no sense in {} (operation {}): "
                  "shared memory was overwritten, or the ranks run different versions of rondo",
                  board_.rank(), peer, operation.prepared->call.to_string(), operation.sequence));
  return fail(board_.raise(status));
}

// Whether a peer has failed that may have had its buffers back while this rank still used them.
bool Runner::gave_up(const Operation& operation) const {
  if (!board_.has_error()) return false;
  // Peers' In counts too, which in a _v collective may be larger than this rank's.
  const size_t bytes = std::max(operation.prepared->in_bytes, operation.prepared->out_bytes);
  return operation.plan->direct || (references_ && bytes >= kReferenceBytes);
}

// Of two ranks that disagree about what passes between them, and have nothing to wait for, the
// later one sees what the other has posted.
[[gnu::noinline]] Status Runner::find_uneven(const Operation& operation) {
  Status uneven;
  for (int peer = 0; uneven.ok() && peer < board_.ranks(); ++peer) {
    uneven = watch_.find_uneven(board_.rank(), peer, operation.sequence, operation.prepared->call);
  }
  return uneven;
}

Progress Runner::finish(Operation& operation) {
  if (gave_up(operation)) return fail(board_.error());
  if (operation.prepared->call.collective == Collective::kAllToAllV) {
    if (Status uneven = find_uneven(operation); !uneven.ok()) return fail(std::move(uneven));
  }
  board_.finish(operation.sequence);
  current_ = nullptr;
  return Progress::kDone;
}

Progress Runner::step(Operation& operation) {
  if (operation.phase == Phase::kPosting) {
    const Progress posted = let_follow(operation);
    if (posted != Progress::kProgressed) return posted;
  }
  if (operation.too_late) return fail(board_.error());
  if (operation.phase == Phase::kDeciding) {
    const Progress decided = decide(operation);
    if (decided != Progress::kProgressed) return decided;
  }
  if (operation.phase == Phase::kRunning) {
    if (gave_up(operation)) return fail(board_.error());
    const Progress walked = engines_[0]->advance();
    if (walked == Progress::kFailed) return engine_failed(operation, *engines_[0]);
    if (walked == Progress::kProgressed) {
      board_.progressed();
      return walked;
    }
    if (workers_) {  // also while this channel waits, be it because another has failed
      if (const int channel = workers_->failed_channel(); channel > 0) {
        return engine_failed(operation, *engines_[static_cast<size_t>(channel)]);
      }
    }
    if (walked == Progress::kBlocked) return walked;
    if (workers_ && workers_->running() > 0) return Progress::kBlocked;
    operation.phase = Phase::kDraining;
  }
  for (auto& engine : engines_) {
    if (!engine->drained()) return Progress::kBlocked;
  }
  return finish(operation);
}

Progress Runner::step_lanes() {
  // Before anything moves: what peers refer to may be theirs again.
  if (!lanes_.empty() && board_.has_error()) return fail(board_.error());
  const Progress progress = lanes_.advance();
  if (progress == Progress::kFailed) return fail(board_.raise(lanes_.failure()));
  if (progress == Progress::kProgressed) board_.progressed();
  return progress;
}

// A message that waits for a rank that has left will wait for ever, unless all it needs lies in
// slots already: so once more, after the rank has been seen to be gone.
Status Runner::find_abandoned(bool* moved) {
  const auto has_left = [this](int peer) { return board_.has_left(peer); };
  if (lanes_.find_waiting_for(has_left) == nullptr) return {};
  const Progress progress = step_lanes();
  if (progress == Progress::kFailed) return failure_;
  *moved = progress != Progress::kBlocked;
  const Transfer* const waiting = *moved ? nullptr : lanes_.find_waiting_for(has_left);
  return waiting == nullptr ? Status() : watch_.abandoned(waiting->peer, waiting->to_string());
}

[[gnu::noinline]] bool Runner::wait_a_little(const Operation* operation, Waiter& waiter,
                                             bool may_sleep) {
  const HostEngine& engine = *engines_[0];
  const bool lanes = !lanes_.empty();
  RONDO_CHECK(operation != nullptr || lanes, "nothing to wait for on rank %d", board_.rank());
  while (waiter.spin()) {
    if (!may_sleep || lanes || engine.may_go_on()) return true;
  }
  int64_t ready_at_ns = operation != nullptr ? engine.ready_at_ns() : lanes_.ready_at_ns();
  if (operation != nullptr && lanes) ready_at_ns = 0;  // either may be first
  if (!waiter.idle(ready_at_ns, may_sleep)) return true;
  recorder::Wait wait{.sequence = recorder::kNoSequence,
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
                    recorder::now_ns() - waiter.start_ns() > message->timeout_ns;
  if (operation != nullptr && !late) {
    wait.sequence = operation->sequence;
    wait.call = &operation->prepared->call;
    if (operation->phase >= Phase::kRunning) wait.algorithm = operation->plan->algorithm;
    wait.peer = blocked_on();
    wait.step = engine.cursor().step;
    wait.round = engine.cursor().round;
    wait.timeout_ns = operation->timeout_ns;
  } else {
    wait.transfer = message->to_string();
    wait.peer = message->peer;
    wait.timeout_ns = message->timeout_ns;
  }
  bool moved = false;
  Status status = watch_.check(wait);
  if (status.ok() && lanes) status = find_abandoned(&moved);
  if (moved) this->moved(waiter);
  if (status.ok()) return true;
  if (!board_.has_given_up(board_.rank())) (void)fail(std::move(status));
  return false;
}

// The peer that has to act: as the decision, channel 0, or else a worker says.
int Runner::blocked_on() const {
  if (deciding_on_ >= 0) return deciding_on_;
  for (const auto& engine : engines_) {
    if (engine->blocked_on() >= 0) return engine->blocked_on();
  }
  return -1;
}

void Runner::moved(Waiter& waiter) {
  if (waiter.start_ns() != 0) watch_.done();
  waiter.reset();
}

// Flattened, as HostEngine::advance is.
[[gnu::flatten]] Status Runner::run(Operation& operation) {
  const kernels::FloatingPointMode guard;
  begin(operation);
  Waiter waiter(options_.blocking, board_);
  while (true) {
    switch (step(operation)) {
      case Progress::kDone:
        moved(waiter);
        return {};
      case Progress::kFailed:
        return await_peers();
      case Progress::kProgressed:
        moved(waiter);
        break;
      case Progress::kBlocked:
        if (!wait_a_little(&operation, waiter, true)) return await_peers();
        break;
    }
  }
}

Status Runner::run(std::span<const std::unique_ptr<Operation>> operations) {
  const kernels::FloatingPointMode guard;
  Waiter waiter(options_.blocking, board_);
  size_t next = 0;
  bool begun = false, failed = false;
  Status refused;  // what failed without being the communicator's failure (decide)
  while (!failed) {
    const Progress lanes = step_lanes();
    Operation* const operation = next < operations.size() ? operations[next].get() : nullptr;
    if (operation == nullptr && lanes == Progress::kDone) break;
    Progress stepped = Progress::kBlocked;
    if (operation != nullptr && lanes != Progress::kFailed) {
      if (!begun) begin(*operation);
      stepped = step(*operation);
      begun = stepped != Progress::kDone;
      if (stepped == Progress::kDone) ++next;
    }
    if (stepped == Progress::kFailed && !board_.has_error()) {
      if (refused.ok()) refused = failure_;
      ++next;
      begun = false;
    } else if (lanes == Progress::kFailed || stepped == Progress::kFailed) {
      failed = true;
    } else if (lanes == Progress::kProgressed || stepped != Progress::kBlocked) {
      moved(waiter);
    } else {
      failed = !wait_a_little(operation, waiter, true);
    }
  }
  if (failed) (void)await_peers();
  (void)lanes_.take_ended();
  (void)lanes_.take_pending();
  if (failed) return failure_;
  moved(waiter);
  return refused;
}

}  // namespace rondo::engine
