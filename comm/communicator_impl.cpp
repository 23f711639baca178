// The way of a call into the communicator: it is resolved, and the executor runs it, or it is kept for
// the group's end. Nothing here knows how an operation is carried out.
#include "comm/communicator_impl.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <thread>
#include <utility>

#include "comm/base/clock.hpp"
#include "comm/base/guarded.hpp"
#include "comm/base/refuse.hpp"
#include "comm/check_call.hpp"
#include "rondo/log.hpp"

namespace rondo {

using comm::refuse;
using comm::WorkState;
using engine::Operation;
using engine::Transfer;

Communicator::Impl::Impl(comm::Bootstrap bootstrap) : bootstrap_(std::move(bootstrap)) {}

// Part of each blocking call: a call of it would cost a fifth more than it does.
[[gnu::always_inline]] inline bool Communicator::Impl::repeats_last(
    const Call& call, const CallOptions& options) const {
  const auto& [c, o, operation] = last_;
  return operation.prepared != nullptr && c.collective == call.collective && c.in == call.in &&
         c.out == call.out && c.count == call.count && c.type == call.type && c.op == call.op &&
         c.root == call.root && o.algorithm == options.algorithm &&
         o.stall_timeout.count() == options.stall_timeout.count() && o.stream == options.stream &&
         o.layout == options.layout &&
         std::bit_cast<uint64_t>(o.factor) == std::bit_cast<uint64_t>(options.factor) &&
         (!is_varying(call.collective) || comm::layout_of(call) == operation.prepared->layout);
}

Status Communicator::Impl::submit(const Call& call, const CallOptions& options,
                                  const WorkState* work) {
  RONDO_TRY(check_process());
  if (group_ || work != nullptr || host_->is_queued()) return hand_over(call, options, work);
  if (board_->has_error()) RONDO_TRY(failure());
  if (!repeats_last(call, options)) RONDO_TRY(resolve(call, options));
  return executor_->run(last_.operation);
}

Status Communicator::run(const Call& call, const CallOptions& options) {
  return impl_->guarded([&] { return impl_->submit(call, options); });
}

Status Communicator::Impl::submit(Transfer transfer, const CallOptions& options,
                                  const WorkState* work) {
  RONDO_TRY(check_process());
  return hand_over(std::move(transfer), options, work);
}

// A call that does not go straight to the runner is a group of one, or part of the open group.
template <class CallOrMessage>
Status Communicator::Impl::hand_over(CallOrMessage&& what, const CallOptions& options,
                                     const WorkState* work) {
  comm::Group alone;
  comm::Group& group = group_ ? *group_ : alone;
  Status refused = failure();
  if (refused.ok()) refused = add(std::forward<CallOrMessage>(what), options, work, group);
  if (refused.ok() && group_) {
    if (work != nullptr) (*work)->collected = true;
    return {};
  }
  if (refused.ok()) return carry_out(alone);
  if (work != nullptr) (*work)->end(refused, base::now_ns());
  return group.refuse(refused);
}

Status Communicator::Impl::refuse_call(const Status& why) {
  RONDO_TRY(failure());
  return group_ ? group_->refuse(why) : why;
}

Status Communicator::Impl::add(const Call& call, const CallOptions& options, const WorkState* work,
                               comm::Group& group) {
  RONDO_TRY(executor_->refusal(name(call.collective), options, work != nullptr));
  if (!repeats_last(call, options)) RONDO_TRY(resolve(call, options));
  Operation& operation = group.operations.emplace_back(last_.operation);
  if (work != nullptr) operation.work = *work;
  group.asynchronous = group.asynchronous || work != nullptr;
  return {};
}

Status Communicator::Impl::add(Transfer transfer, const CallOptions& options, const WorkState* work,
                               comm::Group& group) {
  const char* const word = comm::word_for(transfer);
  RONDO_TRY(executor_->refusal(word, options, work != nullptr));
  RONDO_TRY(comm::check(transfer, options, size()));
  RONDO_TRY(executor_->refusal(transfer));
  RONDO_TRY(check_place(transfer, work != nullptr));
  transfer.timeout_ns = executor_->timeout_of(options);
  transfer.stream = options.stream;
  if (work != nullptr) {
    transfer.work = *work;
    if (!transfer.sends) transfer.envelope = &(*work)->envelope;
  }
  group.asynchronous = group.asynchronous || work != nullptr;
  group.transfers.push_back(std::move(transfer));
  return {};
}

Status Communicator::Impl::check_place(const Transfer& transfer, bool asynchronous) const {
  if (group_ && transfer.probes) {
    return refuse("probe: a group's calls begin at its end, and a probe returns before");
  }
  const bool from_itself = transfer.peer == rank() || (transfer.peer == kAnySource && size() == 1);
  // This rank's asynchronous calls may be the other end.
  if (!from_itself || group_ || asynchronous || transfer.once || host_->is_queued()) return {};
  return refuse(
      fmt::format("a rank that waits for its {} itself waits for ever: put the send and "
                  "the recv into one group, or use the asynchronous calls",
                  transfer.sends    ? "send to"
                  : transfer.probes ? "probe of"
                                    : "recv from"));
}

Status Communicator::Impl::check_senders(int peer) {
  const int64_t now = base::now_ns();
  if (now - senders_checked_ns_ < 1'000'000) return {};
  senders_checked_ns_ = now;
  std::vector<int> others;
  for (int r = 0; r < size(); ++r) {
    if (r != rank()) others.push_back(r);
  }
  Status raised = watch_->check_alive(others, "during try_probe");
  const auto has_left = [this](int r) { return board_->has_left(r); };
  const bool none_comes =
      peer == kAnySource ? !others.empty() && std::all_of(others.begin(), others.end(), has_left)
                         : peer != rank() && has_left(peer);
  if (raised.ok() && none_comes) raised = watch_->abandoned(peer, "try_probe");
  return raised.ok() ? raised : board_->error();
}

Status Communicator::Impl::resolve(const Call& call, const CallOptions& options) {
  RONDO_TRY(failure());
  RONDO_TRY(executor_->refusal(name(call.collective), options, false));
  Operation operation = RONDO_TRY(executor_->resolve(call, options));
  last_ = {.call = call, .options = options, .operation = std::move(operation)};
  last_.call.blocks = nullptr;  // the caller's; the operation has a copy
  return {};
}

Status Communicator::Impl::register_memory(void* pointer, size_t bytes) {
  RONDO_TRY(check_process());
  if (group_) return refuse("register_device_memory inside a group: call group_end first");
  last_ = {};  // plans may change
  return executor_->register_memory(pointer, bytes);
}

Status Communicator::Impl::unregister_memory(void* pointer) {
  RONDO_TRY(check_process());
  if (group_) return refuse("unregister_device_memory inside a group: call group_end first");
  return executor_->unregister_memory(pointer);
}

Status Communicator::Impl::refuse_copy() const {
  return comm::refuse_copy("communicator", process_);
}

Status Communicator::Impl::status() const {
  RONDO_TRY(check_process());
  return executor_->error(true);
}

// A call has thrown: it may be half done, and peers may wait for the rest.
Status Communicator::Impl::broken_off() noexcept {
  const Status thrown = base::caught();
  if (is_copy()) return thrown;  // the board is the parent's
  board_->propose(thrown);
  Status error = executor_->withdraw();
  if (group_) (void)group_->refuse(error);
  return error;
}

std::vector<int> Communicator::Impl::hosts() const {
  const base::HostMap& map = host_->plans().limits().hosts;
  std::vector<int> hosts;
  for (int rank = 0; rank < map.ranks(); ++rank) hosts.push_back(map.host_of(rank));
  return hosts;
}

Result<Plan> Communicator::Impl::plan(Collective collective, size_t count, DataType type,
                                      bool direct, Algorithm algorithm, ReduceOp op) const {
  const Call call =
      comm::without_unused({.collective = collective, .count = count, .type = type, .op = op});
  const CallOptions options{.algorithm = algorithm};
  RONDO_TRY(comm::check_values(call, options, size()));
  schedule::BlockLayout layout;
  if (is_varying(collective)) layout = schedule::equal_layout(collective, size(), count);
  comm::Shape shape = comm::shape_of(call, std::move(layout), options, rank());
  shape.in_place = false;
  const comm::Plans& plans = executor_->plans();
  auto made = plans.prepare(shape);
  if (!made.ok()) return made.status();
  const engine::Prepared& prepared = **made;
  const bool registered = direct;
  direct = executor_->reaches_buffers(direct);
  const bool by_copies =
      prepared.direct && algorithms::traits_of(prepared.direct->algorithm).needs.copies;
  const auto needs_memory = [&] {
    return Status(Code::kUnavailable,
                  fmt::format("{} by {} needs {} memory on every rank", name(collective),
                              name(algorithm), executor_->direct_memory()));
  };
  if (by_copies && !registered) return needs_memory();
  const bool goes_direct =
      prepared.direct && (direct || prepared.sharing == engine::Sharing::kCopied);
  if (prepared.required && !goes_direct) return needs_memory();
  const engine::ExecutionPlan& chosen = goes_direct ? *prepared.direct : prepared.staged;
  auto bytes = plans.most_bytes_moved(shape, chosen.algorithm);
  return Plan{.algorithm = chosen.algorithm,
              .channels = plans.limits().channels,
              .predicted_us = tuner::price({.collective = collective,
                                            .algorithm = chosen.algorithm,
                                            .ranks = plans.limits().ranks,
                                            .bytes = count * size_of(type),
                                            .mapped = direct,
                                            .hosts = &plans.limits().hosts},
                                           plans.limits().profile)
                                  .total_us(),
              .bytes_sent_per_rank = bytes.ok() ? *bytes : 0};
}

Status Communicator::Impl::finish() {
  RONDO_TRY(check_process());
  if (group_)
    return refuse("finish in an open group, whose calls have not begun: call group_end() first");
  executor_->drain();
  RONDO_TRY(failure());
  return compare_calls();
}

Status Communicator::Impl::compare_calls() {
  if (watch_->compare_calls().ok()) return {};
  executor_->abort();
  return board_->error();
}

// A disagreement that no call has reported. With several hosts, their last rows may arrive while this
// host's agent ends. By then all calls are over, so that only the log is left.
void Communicator::Impl::log_disagreement() {
  if (!board_ || !watch_ || board_->has_error()) return;
  const Status found = base::guarded([&] { return watch_->compare_calls(); });
  if (found.code() != Code::kMismatch) return;
  (void)base::guarded([&] {
    log(LogLevel::kError,
        fmt::format("rank {} leaves the communicator: {}", rank(), found.message()));
    return Status();
  });
}

void Communicator::Impl::abort(const std::string& reason) {
  if (is_copy()) return;
  const Status status = base::guarded(
      [&] { return Status(Code::kAborted, fmt::format("rank {} aborted: {}", rank(), reason)); });
  fail(status);
}

void Communicator::Impl::fail(const Status& error) {
  board_->propose(error);
  executor_->abort();
}

Stats Communicator::Impl::stats() const {
  return {host_->runner().operations(), executor_->bytes_sent(),
          board_segment_.bytes() + segment_.bytes()};
}

Communicator::Impl::~Impl() {
  if (is_copy() || process_.pid != getpid()) {  // clone() alone calls no handlers
    // The threads and the place on the board are the parent's, and what waits for threads would wait
    // for ever, so these parts stay.
    static auto* left_alone = new std::vector<std::shared_ptr<const void>>;
    left_alone->push_back(std::move(executor_));
    left_alone->push_back(std::move(host_));
    left_alone->push_back(std::shared_ptr<comm::Agent>(std::move(agent_)));
    left_alone->push_back(std::move(life_port_));
    return;
  }
  if (group_) group_->end(refuse("the communicator was destroyed inside a group"));
  if (host_) host_->drain();
  log_disagreement();
  executor_.reset();  // while the board still says that this rank is there
  if (board_) {
    board_->learn(board_->rank(), board::Life::kGone);
    board_->wake_all();
  }
  if (!agent_) return;
  agent_.reset();  // while everything that it looks at is there
  log_disagreement();
}

}  // namespace rondo
