// The public calls: check the arguments, find the plan, and hand the operation to the runner
// (blocking) or to the progress thread's queue (asynchronous). Nothing here knows how an operation
// is carried out.
#include "rondo/communicator.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "comm/communicator_impl.hpp"
#include "comm/counted.hpp"
#include "comm/recorder/clock.hpp"
#include "comm/refuse.hpp"

namespace rondo {

using comm::issued;
using comm::refuse;

using comm::Request;
using engine::Transfer;
using C = Collective;

namespace {

Status no_asynchronous_calls(std::string_view call) {
  return {Code::kUnavailable,
          fmt::format("{}: a communicator on a device has no asynchronous calls: its blocking ones "
                      "return when the operation is on its stream",
                      call)};
}

/// A Work that has already ended.
Work ended(std::shared_ptr<Work::State> state, Status status) {
  state->end(std::move(status), recorder::now_ns());
  return Work(std::move(state));
}

}  // namespace

namespace comm {

std::shared_ptr<Work::State> issued() {
  auto state = std::make_shared<Work::State>();
  state->issued_ns.store(recorder::now_ns(), std::memory_order_relaxed);
  return state;
}

}  // namespace comm

Status Communicator::Impl::resolve(const Request& request, const CallOptions& options) {
  RONDO_RETURN_IF_ERROR(comm::check(request, options, rank(), size()));
  if (!device_ && options.stream != nullptr) {
    return refuse(fmt::format("{}: CallOptions::stream is for communicators on a device",
                              name(request.collective)));
  }
  auto& plans = device_ ? *device_plans_ : *plans_;
  auto found = plans.find(comm::shape_of(request, options, rank()));
  if (!found.ok()) return found.status();
  engine::Operation operation;
  operation.prepared = found->get();
  operation.keep_alive = *found;
  if (request.collective == Collective::kBarrier) {
    operation.in = &barrier_in_;
    operation.out = &barrier_out_;
  } else {
    if (comm::reads(request, rank())) operation.in = static_cast<const std::byte*>(request.in);
    if (comm::writes(request, rank())) operation.out = static_cast<std::byte*>(request.out);
  }
  operation.factor = options.factor;
  operation.timeout_ns = timeout_of(options);
  operation.stream = options.stream;
  last_ = {.request = request, .options = options, .operation = std::move(operation)};
  return {};
}

int64_t Communicator::Impl::timeout_of(const CallOptions& options) const {
  return options.timeout.count() > 0
             ? std::min(options.timeout, kLongestTimeout).count() * 1'000'000
             : timeout_ns_;
}

Status Communicator::Impl::prepare(const Request& request, const CallOptions& options) {
  if (device_) {
    RONDO_RETURN_IF_ERROR(device_->check(false));
  } else if (board_->has_error()) {
    return board_->error();
  }
  if (!last_.answers(request, options)) RONDO_RETURN_IF_ERROR(resolve(request, options));
  return device_ ? device_->refusal(last_.operation.stream) : Status();
}

Status Communicator::Impl::prepare(Transfer& transfer, const CallOptions& options) const {
  if (device_) {
    RONDO_RETURN_IF_ERROR(device_->check(false));
  } else if (board_->has_error()) {
    return board_->error();
  }
  const char* const word = transfer.sends ? "send" : "recv";
  if (!device_ && options.stream != nullptr) {
    return refuse(fmt::format("{}: CallOptions::stream is for communicators on a device", word));
  }
  if (transfer.peer < 0 || transfer.peer >= size()) {
    return refuse(fmt::format("{}: rank {} is none of {}", word, transfer.peer,
                              comm::counted(size(), "rank")));
  }
  if (static_cast<int>(transfer.type) >= kDataTypes) {
    return refuse(fmt::format("{}: unknown data type {}", word, static_cast<int>(transfer.type)));
  }
  constexpr uint64_t kMostCount = uint64_t{1} << 50;  // counts travel in tags (lanes.cpp)
  if (transfer.count > kMostCount) {
    return refuse(fmt::format("{}: count {} overflows the address space", word, transfer.count));
  }
  if (transfer.buffer == nullptr && transfer.count > 0) {
    return refuse(fmt::format("{}: the buffer is null but count is {}", word, transfer.count));
  }
  if (options.algorithm != Algorithm::kAuto || options.factor != 1) {
    return refuse(fmt::format("{}: algorithms and factors are for collectives", word));
  }
  if (options.timeout.count() < 0) {
    return refuse(fmt::format("{}: timeout of {} ms; pass 0 for the communicator's own", word,
                              options.timeout.count()));
  }
  transfer.timeout_ns = timeout_of(options);
  transfer.stream = options.stream;
  return device_ ? device_->refusal(options.stream) : Status();
}

Result<std::unique_ptr<engine::Operation>> Communicator::Impl::make_operation(
    const Request& request, const CallOptions& options) {
  RONDO_RETURN_IF_ERROR(prepare(request, options));
  return std::make_unique<engine::Operation>(last_.operation);
}

Status Communicator::Impl::need_progress() {
  if (progress_) return {};
  auto thread = engine::ProgressThread::shared();
  if (!thread.ok()) return thread.status();
  progress_ = *thread;
  return {};
}

Status Communicator::Impl::run(const Request& request, const CallOptions& options) {
  if (group_ || device_ || !queue_->empty() || board_->has_error()) {
    return run_in_turn(request, options);
  }
  if (!last_.answers(request, options)) RONDO_RETURN_IF_ERROR(resolve(request, options));
  return runner_->run(last_.operation);
}

Status Communicator::Impl::run_in_turn(const Request& request, const CallOptions& options) {
  if (group_) {
    auto operation = make_operation(request, options);
    if (!operation.ok()) return group_->refuse(operation.status());
    group_->operations.push_back(std::move(*operation));
    return {};
  }
  if (device_ || queue_->empty()) {
    RONDO_RETURN_IF_ERROR(prepare(request, options));
    if (!device_) return runner_->run(last_.operation);
    RONDO_RETURN_IF_ERROR(enqueue(last_.operation));
    return device_->run();
  }
  return start(request, options).wait();
}

Status Communicator::Impl::enqueue(const engine::Operation& operation) {
  return device_->add(operation, runner_->post(*operation.prepared));
}

Status Communicator::Impl::gather_for_split(const int32_t* own, int32_t* all, size_t count) {
  const Request request = {.collective = Collective::kAllGather,
                           .in = own,
                           .out = all,
                           .count = count,
                           .type = DataType::kInt32,
                           .is_split = true};
  const CallOptions options = {.algorithm = Algorithm::kRing};
  if (!device_) return run(request, options);
  RONDO_RETURN_IF_ERROR(device_->check(false));
  auto found = plans_->find(comm::shape_of(request, options, rank()));
  RONDO_RETURN_IF_ERROR(found.status());
  engine::Operation operation;
  operation.prepared = found->get();
  operation.keep_alive = *found;
  operation.in = reinterpret_cast<const std::byte*>(own);
  operation.out = reinterpret_cast<std::byte*>(all);
  operation.timeout_ns = timeout_ns_;
  return runner_->run(operation);
}

Work Communicator::Impl::start(const Request& request, const CallOptions& options) {
  auto state = issued();
  if (device_) {
    const Status refused = no_asynchronous_calls(name(request.collective));
    if (group_) (void)group_->refuse(refused);
    return ended(std::move(state), refused);
  }
  auto operation = make_operation(request, options);
  Status status = operation.ok() ? need_progress() : operation.status();
  if (!status.ok()) {
    if (group_) (void)group_->refuse(status);
    return ended(std::move(state), std::move(status));
  }
  (*operation)->work = state;
  if (group_) {
    group_->operations.push_back(std::move(*operation));
    group_->asynchronous = true;
    return Work(std::move(state));
  }
  queue_->push(std::move(*operation));
  progress_->look_after(queue_);
  return Work(std::move(state));
}

Status Communicator::Impl::run(Transfer transfer, const CallOptions& options) {
  Status status = prepare(transfer, options);
  if (group_) {
    if (!status.ok()) return group_->refuse(status);
    group_->transfers.push_back(std::move(transfer));
    return {};
  }
  RONDO_RETURN_IF_ERROR(status);
  if (transfer.peer == rank()) {
    return refuse(
        fmt::format("a rank that waits for its {} itself waits for ever: put the send and "
                    "the recv into one group, or use the asynchronous calls",
                    transfer.sends ? "send to" : "recv from"));
  }
  if (device_) {
    RONDO_RETURN_IF_ERROR(device_->add({&transfer, 1}));
    return device_->run();
  }
  if (!queue_->empty()) return start(std::move(transfer), options).wait();
  runner_->lanes().push(std::move(transfer));
  return runner_->run({});
}

Work Communicator::Impl::start(Transfer transfer, const CallOptions& options) {
  auto state = issued();
  Status status = device_ ? no_asynchronous_calls(transfer.sends ? "send" : "recv")
                          : prepare(transfer, options);
  if (status.ok()) status = need_progress();
  if (!status.ok()) {
    if (group_) (void)group_->refuse(status);
    return ended(std::move(state), std::move(status));
  }
  transfer.work = state;
  if (group_) {
    group_->transfers.push_back(std::move(transfer));
    group_->asynchronous = true;
    return Work(std::move(state));
  }
  queue_->push(std::move(transfer));
  progress_->look_after(queue_);
  return Work(std::move(state));
}

Plan Communicator::Impl::plan(Collective collective, size_t count, DataType type, bool direct,
                              Algorithm algorithm, ReduceOp op) {
  Request request{.collective = collective, .count = count, .type = type, .op = op};
  if (is_varying(collective)) {
    request.layout =
        std::make_shared<const schedule::Layout>(schedule::equal_layout(collective, size(), count));
  }
  const CallOptions options{.algorithm = algorithm};
  if (!comm::check_values(request, options, size()).ok()) return {};
  comm::Shape shape = comm::shape_of(request, options, rank());
  shape.in_place = false;
  auto& plans = device_ ? *device_plans_ : *plans_;
  direct =
      direct || device_ != nullptr;  // where peers reach buffers at all, they reach all of them
  auto found = plans.find(shape);
  if (!found.ok()) return {};
  const engine::Prepared& prepared = **found;
  const bool goes_direct = prepared.direct && (direct || prepared.by_process_copy);
  if (prepared.direct_only && !goes_direct) return {};
  const engine::Plan& chosen = goes_direct ? *prepared.direct : prepared.staged;
  auto bytes = plans.most_bytes_moved(shape, chosen.algorithm);
  return {.algorithm = chosen.algorithm,
          .channels = plans.limits().channels,
          .predicted_us = tuner::price({.collective = collective,
                                        .algorithm = chosen.algorithm,
                                        .ranks = plans.limits().ranks,
                                        .bytes = count * size_of(type),
                                        .mapped = direct},
                                       plans.limits().profile)
                              .total_us(),
          .bytes_sent_per_rank = bytes.ok() ? *bytes : 0};
}

void Communicator::Impl::abort(const std::string& reason) {
  (void)board_->raise({Code::kAborted, fmt::format("rank {} aborted: {}", rank(), reason)});
  if (device_) device_->abort();
}

Communicator::Impl::~Impl() {
  if (owner_ != getpid()) {
    // A forked child's copy. The threads and the place on the board are the parent's, and what
    // waits for threads would wait for ever, so these parts stay.
    static auto* left_alone = new std::vector<std::shared_ptr<void>>;
    left_alone->push_back(std::move(queue_));
    left_alone->push_back(std::move(progress_));
    left_alone->push_back(std::move(runner_));
    left_alone->push_back(std::shared_ptr<device::Runner>(std::move(device_)));
    return;
  }
  if (group_) group_->end(refuse("the communicator was destroyed inside a group"));
  if (queue_) queue_->drain();
  device_.reset();  // while the board still says that this rank is there
  if (board_) {
    // Release: every operation's posts come before it (watch.cpp reads life first).
    board_->state(board_->rank())
        .life.store(static_cast<uint32_t>(recorder::Life::kGone), std::memory_order_release);
    board_->wake_all();
  }
}

Status Work::wait() {
  if (!test()) {
    const engine::CallerWaits here;
    while (!test()) state_->ended.wait(false, std::memory_order_acquire);
  }
  return state_->status;
}
bool Work::test() const { return state_->ended.load(std::memory_order_acquire); }
Status Work::status() const { return test() ? state_->status : Status(); }
Work::Times Work::times() const {
  return {state_->issued_ns.load(std::memory_order_relaxed),
          state_->started_ns.load(std::memory_order_relaxed),
          state_->ended_ns.load(std::memory_order_relaxed)};
}

Communicator::Communicator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Communicator::~Communicator() = default;
Communicator::Communicator(Communicator&&) noexcept = default;
Communicator& Communicator::operator=(Communicator&&) noexcept = default;

Result<Communicator> Communicator::create(const Config& config) {
  auto impl = Impl::create(config);
  if (!impl.ok()) return impl.status();
  return Communicator(std::move(*impl));
}

int Communicator::rank() const { return impl_->rank(); }
int Communicator::size() const { return impl_->size(); }
Status Communicator::status() const { return impl_->status(); }
void Communicator::abort(const std::string& reason) { impl_->abort(reason); }
Stats Communicator::stats() const { return impl_->stats(); }
std::string Communicator::flight_record() const { return impl_->flight_record(); }
Plan Communicator::plan(Collective collective, size_t count, DataType type, bool direct,
                        Algorithm algorithm, ReduceOp op) const {
  return impl_->plan(collective, count, type, direct, algorithm, op);
}

// Every collective: the request, then the blocking and the asynchronous call.

namespace {
Request all_reduce_request(const void* in, void* out, size_t count, DataType type, ReduceOp op) {
  return {C::kAllReduce, in, out, count, type, op};
}
}  // namespace
Status Communicator::all_reduce(const void* in, void* out, size_t count, DataType type, ReduceOp op,
                                const CallOptions& options) {
  return impl_->run(all_reduce_request(in, out, count, type, op), options);
}
Work Communicator::all_reduce_async(const void* in, void* out, size_t count, DataType type,
                                    ReduceOp op, const CallOptions& options) {
  return impl_->start(all_reduce_request(in, out, count, type, op), options);
}

namespace {
Request reduce_scatter_request(const void* in, void* out, size_t count, DataType type,
                               ReduceOp op) {
  return {C::kReduceScatter, in, out, count, type, op};
}
}  // namespace
Status Communicator::reduce_scatter(const void* in, void* out, size_t count, DataType type,
                                    ReduceOp op, const CallOptions& options) {
  return impl_->run(reduce_scatter_request(in, out, count, type, op), options);
}
Work Communicator::reduce_scatter_async(const void* in, void* out, size_t count, DataType type,
                                        ReduceOp op, const CallOptions& options) {
  return impl_->start(reduce_scatter_request(in, out, count, type, op), options);
}

namespace {
Request all_gather_request(const void* in, void* out, size_t count, DataType type) {
  return {C::kAllGather, in, out, count, type};
}
}  // namespace
Status Communicator::all_gather(const void* in, void* out, size_t count, DataType type,
                                const CallOptions& options) {
  return impl_->run(all_gather_request(in, out, count, type), options);
}
Work Communicator::all_gather_async(const void* in, void* out, size_t count, DataType type,
                                    const CallOptions& options) {
  return impl_->start(all_gather_request(in, out, count, type), options);
}

namespace {
Request broadcast_request(const void* in, void* out, size_t count, DataType type, int root) {
  return {C::kBroadcast, in, out, count, type, ReduceOp::kSum, root};
}
}  // namespace
Status Communicator::broadcast(const void* in, void* out, size_t count, DataType type, int root,
                               const CallOptions& options) {
  return impl_->run(broadcast_request(in, out, count, type, root), options);
}
Work Communicator::broadcast_async(const void* in, void* out, size_t count, DataType type, int root,
                                   const CallOptions& options) {
  return impl_->start(broadcast_request(in, out, count, type, root), options);
}

namespace {
Request reduce_request(const void* in, void* out, size_t count, DataType type, int root,
                       ReduceOp op) {
  return {C::kReduce, in, out, count, type, op, root};
}
}  // namespace
Status Communicator::reduce(const void* in, void* out, size_t count, DataType type, int root,
                            ReduceOp op, const CallOptions& options) {
  return impl_->run(reduce_request(in, out, count, type, root, op), options);
}
Work Communicator::reduce_async(const void* in, void* out, size_t count, DataType type, int root,
                                ReduceOp op, const CallOptions& options) {
  return impl_->start(reduce_request(in, out, count, type, root, op), options);
}

namespace {
Request gather_request(const void* in, void* out, size_t count, DataType type, int root) {
  return {C::kGather, in, out, count, type, ReduceOp::kSum, root};
}
}  // namespace
Status Communicator::gather(const void* in, void* out, size_t count, DataType type, int root,
                            const CallOptions& options) {
  return impl_->run(gather_request(in, out, count, type, root), options);
}
Work Communicator::gather_async(const void* in, void* out, size_t count, DataType type, int root,
                                const CallOptions& options) {
  return impl_->start(gather_request(in, out, count, type, root), options);
}

namespace {
Request scatter_request(const void* in, void* out, size_t count, DataType type, int root) {
  return {C::kScatter, in, out, count, type, ReduceOp::kSum, root};
}
}  // namespace
Status Communicator::scatter(const void* in, void* out, size_t count, DataType type, int root,
                             const CallOptions& options) {
  return impl_->run(scatter_request(in, out, count, type, root), options);
}
Work Communicator::scatter_async(const void* in, void* out, size_t count, DataType type, int root,
                                 const CallOptions& options) {
  return impl_->start(scatter_request(in, out, count, type, root), options);
}

namespace {
Request all_to_all_request(const void* in, void* out, size_t count, DataType type) {
  return {C::kAllToAll, in, out, count, type};
}
}  // namespace
Status Communicator::all_to_all(const void* in, void* out, size_t count, DataType type,
                                const CallOptions& options) {
  return impl_->run(all_to_all_request(in, out, count, type), options);
}
Work Communicator::all_to_all_async(const void* in, void* out, size_t count, DataType type,
                                    const CallOptions& options) {
  return impl_->start(all_to_all_request(in, out, count, type), options);
}

namespace {
Request all_gather_v_request(const void* in, void* out, std::span<const size_t> counts,
                             std::span<const size_t> offsets, DataType type) {
  return {.collective = C::kAllGatherV,
          .in = in,
          .out = out,
          .type = type,
          .layout = comm::make_layout({}, {}, counts, offsets)};
}
}  // namespace
Status Communicator::all_gather_v(const void* in, void* out, std::span<const size_t> counts,
                                  std::span<const size_t> offsets, DataType type,
                                  const CallOptions& options) {
  return impl_->run(all_gather_v_request(in, out, counts, offsets, type), options);
}
Work Communicator::all_gather_v_async(const void* in, void* out, std::span<const size_t> counts,
                                      std::span<const size_t> offsets, DataType type,
                                      const CallOptions& options) {
  return impl_->start(all_gather_v_request(in, out, counts, offsets, type), options);
}

namespace {
Request reduce_scatter_v_request(const void* in, void* out, std::span<const size_t> counts,
                                 std::span<const size_t> offsets, DataType type, ReduceOp op) {
  return {.collective = C::kReduceScatterV,
          .in = in,
          .out = out,
          .type = type,
          .op = op,
          .layout = comm::make_layout(counts, offsets, {}, {})};
}
}  // namespace
Status Communicator::reduce_scatter_v(const void* in, void* out, std::span<const size_t> counts,
                                      std::span<const size_t> offsets, DataType type, ReduceOp op,
                                      const CallOptions& options) {
  return impl_->run(reduce_scatter_v_request(in, out, counts, offsets, type, op), options);
}
Work Communicator::reduce_scatter_v_async(const void* in, void* out, std::span<const size_t> counts,
                                          std::span<const size_t> offsets, DataType type,
                                          ReduceOp op, const CallOptions& options) {
  return impl_->start(reduce_scatter_v_request(in, out, counts, offsets, type, op), options);
}

namespace {
Request all_to_all_v_request(const void* in, std::span<const size_t> in_counts,
                             std::span<const size_t> in_offsets, void* out,
                             std::span<const size_t> out_counts,
                             std::span<const size_t> out_offsets, DataType type) {
  return {.collective = C::kAllToAllV,
          .in = in,
          .out = out,
          .type = type,
          .layout = comm::make_layout(in_counts, in_offsets, out_counts, out_offsets)};
}
}  // namespace
Status Communicator::all_to_all_v(const void* in, std::span<const size_t> in_counts,
                                  std::span<const size_t> in_offsets, void* out,
                                  std::span<const size_t> out_counts,
                                  std::span<const size_t> out_offsets, DataType type,
                                  const CallOptions& options) {
  return impl_->run(
      all_to_all_v_request(in, in_counts, in_offsets, out, out_counts, out_offsets, type), options);
}
Work Communicator::all_to_all_v_async(const void* in, std::span<const size_t> in_counts,
                                      std::span<const size_t> in_offsets, void* out,
                                      std::span<const size_t> out_counts,
                                      std::span<const size_t> out_offsets, DataType type,
                                      const CallOptions& options) {
  return impl_->start(
      all_to_all_v_request(in, in_counts, in_offsets, out, out_counts, out_offsets, type), options);
}

Status Communicator::barrier(const CallOptions& options) {
  return impl_->run(Request{C::kBarrier}, options);
}
Work Communicator::barrier_async(const CallOptions& options) {
  return impl_->start(Request{C::kBarrier}, options);
}

namespace {
Transfer send_of(const void* buffer, size_t count, DataType type, int peer) {
  // Only read by the sending end (lanes.hpp).
  auto* const bytes = static_cast<std::byte*>(const_cast<void*>(buffer));
  return {
      .sends = true, .peer = peer, .buffer = bytes, .count = count, .type = type, .timeout_ns = 0};
}
Transfer recv_of(void* buffer, size_t count, DataType type, int peer) {
  auto* const bytes = static_cast<std::byte*>(buffer);
  return {
      .sends = false, .peer = peer, .buffer = bytes, .count = count, .type = type, .timeout_ns = 0};
}
}  // namespace
Status Communicator::send(const void* buffer, size_t count, DataType type, int peer,
                          const CallOptions& options) {
  return impl_->run(send_of(buffer, count, type, peer), options);
}
Work Communicator::send_async(const void* buffer, size_t count, DataType type, int peer,
                              const CallOptions& options) {
  return impl_->start(send_of(buffer, count, type, peer), options);
}
Status Communicator::recv(void* buffer, size_t count, DataType type, int peer,
                          const CallOptions& options) {
  return impl_->run(recv_of(buffer, count, type, peer), options);
}
Work Communicator::recv_async(void* buffer, size_t count, DataType type, int peer,
                              const CallOptions& options) {
  return impl_->start(recv_of(buffer, count, type, peer), options);
}
Status Communicator::group_start() { return impl_->group_start(); }
Status Communicator::group_end() { return impl_->group_end(); }

}  // namespace rondo
