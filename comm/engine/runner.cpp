#include "comm/engine/runner.hpp"

#include <fmt/format.h>

#include <ctime>

#include "comm/recorder/clock.hpp"
#include "kernels/floating_point.hpp"

namespace rondo::engine {

namespace {
// How long a rank that fails waits for the others to let go of its buffers. Those that live answer
// within moments; one that is stopped never does.
constexpr int64_t kLetGoNs = 200'000'000;
// A peer that has just looked for an error may be on its way into the operation.
constexpr timespec kLetGoPause{0, 1'000'000};
}  // namespace

Offers offers_of(Collective collective, Algorithm algorithm, int root, int rank) {
  switch (collective) {
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
    case Collective::kBarrier:
      return {.in = false, .out = false};
  }
  return {};
}

Runner::Runner(transport::Transport& transport, recorder::Board& board, recorder::Watch& watch,
               const RunnerOptions& options)
    : transport_(transport),
      board_(board),
      watch_(watch),
      options_(options),
      references_(transport.capabilities().references) {
  peers_.in.resize(static_cast<size_t>(board.ranks()));
  peers_.out.resize(static_cast<size_t>(board.ranks()));
  for (int channel = 0; channel < options.channels; ++channel) {
    engines_.push_back(std::make_unique<HostEngine>(transport, board, peers_, channel));
  }
  if (options.channels > 1) workers_ = std::make_unique<Workers>(engines_, board, options.blocking);
}

uint64_t Runner::bytes_sent() const {
  uint64_t sum = 0;
  for (const auto& engine : engines_) sum += engine->bytes_sent();
  return sum;
}

void Runner::begin(Operation& operation) {
  const uint64_t sequence = sequence_.load(std::memory_order_relaxed) + 1;
  sequence_.store(sequence,
                  std::memory_order_relaxed);  // one writer at a time; read by stats() only
  operation.sequence = sequence;
  // Over all calls so far: a disagreement that went unnoticed (two roots that both only send) is
  // found by the next operation.
  history_ = (history_ ^ operation.prepared->hash) * 0x9e3779b97f4a7c15u + sequence;
  operation.tag = history_;
  operation.in_reference = {};
  operation.out_reference = {};
  // Referring costs a look at the arena: only where references may be used.
  const bool large =
      operation.prepared->in_bytes >= kReferenceBytes && references_ && !operation.prepared->scaled;
  if (large || operation.prepared->direct != nullptr) {
    if (operation.in != nullptr)
      operation.in_reference = transport_.refer(operation.in, operation.prepared->in_bytes);
    if (operation.out != nullptr)
      operation.out_reference = transport_.refer(operation.out, operation.prepared->out_bytes);
  }
  board_.post(sequence, operation.prepared->call, operation.in_reference, operation.out_reference);
  deciding_on_ = -1;
  if (operation.prepared->direct != nullptr) {
    operation.phase = Phase::kDeciding;
    operation.deciding_peer = 0;
    for (int peer = 0; peer < board_.ranks(); ++peer) board_.ring(peer);
  } else {
    (void)choose(operation, &operation.prepared->staged);
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
Progress Runner::decide(Operation& operation) {
  const recorder::Call& call = operation.prepared->call;
  const auto fall_back = [&](int peer) {
    if (!operation.prepared->direct_only) return choose(operation, &operation.prepared->staged);
    // On every rank alike, and nothing has moved: the communicator stays usable.
    board_.finish(operation.sequence);
    failure_ = {Code::kUnavailable,
                fmt::format("{} needs buffers from rondo::alloc on every rank; rank {}'s are not",
                            name(operation.prepared->direct->algorithm), peer)};
    return Progress::kFailed;
  };
  for (; operation.deciding_peer < board_.ranks(); ++operation.deciding_peer) {
    // This rank first, then the others.
    const int peer = (board_.rank() + operation.deciding_peer) % board_.ranks();
    const auto p = static_cast<size_t>(peer);
    const Offers needed =
        offers_of(call.collective, operation.prepared->direct->algorithm, call.root, peer);
    if (peer == board_.rank()) {
      if ((needed.in && operation.in_reference.kind == transport::Reference::kNone) ||
          (needed.out && operation.out_reference.kind == transport::Reference::kNone)) {
        return fall_back(peer);
      }
      peers_.in[p] = const_cast<std::byte*>(operation.in);
      peers_.out[p] = operation.out;
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
    if (posted->call != call)
      return fail(operation, watch_.mismatch(peer, operation.sequence, call));
    if (needed.in)
      peers_.in[p] = transport_.resolve(peer, posted->in, operation.prepared->in_bytes);
    if (needed.out)
      peers_.out[p] = transport_.resolve(peer, posted->out, operation.prepared->out_bytes);
    if ((needed.in && peers_.in[p] == nullptr) || (needed.out && peers_.out[p] == nullptr)) {
      return fall_back(peer);
    }
  }
  return choose(operation, operation.prepared->direct.get());
}

Progress Runner::fail(const Operation& operation, Status status) {
  failure_ = std::move(status);
  if (workers_) workers_->stop();
  board_.give_up();
  await_peers(operation);
  return Progress::kFailed;
}

// Peers may be inside a move that reads or writes this rank's buffers. They look for an error
// between moves, which are slices, and give up; then the caller can have its buffers back.
void Runner::await_peers(const Operation& operation) {
  if (operation.in_reference.kind == transport::Reference::kNone &&
      operation.out_reference.kind == transport::Reference::kNone) {
    return;
  }
  const int64_t until = recorder::now_ns() + kLetGoNs;
  nanosleep(&kLetGoPause, nullptr);
  for (int peer = 0; peer < board_.ranks(); ++peer) {
    while (peer != board_.rank() && board_.may_touch(peer, operation.sequence) &&
           !watch_.has_ended(peer) && recorder::now_ns() < until) {
      nanosleep(&kLetGoPause, nullptr);
    }
  }
}

Progress Runner::engine_failed(const Operation& operation, const HostEngine& engine) {
  const int peer = engine.blocked_on();
  if (engine.mismatch()) {
    return fail(operation, watch_.mismatch(peer, operation.sequence, operation.prepared->call));
  }
  const Status status(
      Code::kSystem,
      fmt::format("rank {} received a slot from rank {} that makes no sense in {} (operation {}): "
                  "shared memory was overwritten, or the ranks run different versions of rondo",
                  board_.rank(), peer, operation.prepared->call.to_string(), operation.sequence));
  return fail(operation, board_.raise(status));
}

// Whether a peer has failed that may have had its buffers back while this rank still used them.
bool Runner::gave_up(const Operation& operation) const {
  const bool large = references_ && operation.prepared->in_bytes >= kReferenceBytes;
  return (large || operation.plan->direct) && board_.has_error();
}

Progress Runner::finish(Operation& operation) {
  if (gave_up(operation)) return fail(operation, board_.error());
  board_.finish(operation.sequence);
  return Progress::kDone;
}

Progress Runner::step(Operation& operation) {
  if (operation.phase == Phase::kDeciding) {
    const Progress decided = decide(operation);
    if (decided != Progress::kProgressed) return decided;
  }
  if (operation.phase == Phase::kRunning) {
    const Progress walked = engines_[0]->advance();
    if (walked == Progress::kFailed) return engine_failed(operation, *engines_[0]);
    if (walked == Progress::kProgressed) {
      board_.progressed();
      return gave_up(operation) ? fail(operation, board_.error()) : walked;
    }
    if (walked == Progress::kBlocked) return walked;
    if (workers_) {
      if (const int channel = workers_->failed_channel(); channel > 0) {
        return engine_failed(operation, *engines_[static_cast<size_t>(channel)]);
      }
      if (workers_->running() > 0) return Progress::kBlocked;
    }
    operation.phase = Phase::kDraining;
  }
  for (auto& engine : engines_) {
    if (!engine->drained()) return Progress::kBlocked;
  }
  return finish(operation);
}

bool Runner::wait_a_little(const Operation& operation, Waiter& waiter, bool may_sleep) {
  const HostEngine& engine = *engines_[0];
  while (waiter.spin()) {
    if (!may_sleep || engine.may_go_on()) return true;
  }
  if (!waiter.idle(engine.ready_at_ns(), may_sleep)) return true;
  const recorder::Wait wait{.sequence = operation.sequence,
                            .call = &operation.prepared->call,
                            .algorithm = operation.phase == Phase::kDeciding
                                             ? Algorithm::kAuto
                                             : operation.plan->algorithm,
                            .peer = blocked_on(),
                            .step = engine.cursor().step,
                            .round = engine.cursor().round,
                            .since_ns = waiter.start_ns(),
                            .timeout_ns = operation.timeout_ns};
  Status status = watch_.check(wait);
  if (status.ok()) return true;
  (void)fail(operation, std::move(status));
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

Status Runner::run(Operation& operation) {
  const kernels::FloatingPointMode guard;
  begin(operation);
  Waiter waiter(options_.blocking, board_);
  while (true) {
    switch (step(operation)) {
      case Progress::kDone:
        moved(waiter);
        return {};
      case Progress::kFailed:
        return failure_;
      case Progress::kProgressed:
        moved(waiter);
        break;
      case Progress::kBlocked:
        if (!wait_a_little(operation, waiter, true)) return failure_;
        break;
    }
  }
}

}  // namespace rondo::engine
