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
#include "comm/recorder/clock.hpp"

namespace rondo {

namespace {

using Request = Communicator::Impl::Request;

Status refuse(std::string message) { return {Code::kInvalidArgument, std::move(message)}; }

std::string_view word(Collective collective) { return name(collective); }

bool reads(const Request& r, int rank) {
  return !form_of(r.collective).only_root_reads || rank == r.root;
}
bool writes(const Request& r, int rank) {
  return !form_of(r.collective).only_root_writes || rank == r.root;
}

// Whether the buffers overlap in the one way that is allowed: the same elements in the same place.
bool is_in_place(const Request& r, int rank) {
  if (!reads(r, rank) || !writes(r, rank)) return false;
  const Form form = form_of(r.collective);
  const auto in = reinterpret_cast<uintptr_t>(r.in), out = reinterpret_cast<uintptr_t>(r.out);
  const size_t offset = static_cast<size_t>(rank) * r.count * size_of(r.type);
  const bool wide_in = form.in == Holds::kEach && form.out == Holds::kOne;
  const bool wide_out = form.in == Holds::kOne && form.out == Holds::kEach;
  return out + (wide_out ? offset : 0) == in + (wide_in ? offset : 0);
}

Status check_values(const Request& r, const CallOptions& options, int size) {
  if (static_cast<int>(r.type) >= kDataTypes) {
    return refuse(
        fmt::format("{}: unknown data type {}", word(r.collective), static_cast<int>(r.type)));
  }
  if (static_cast<int>(r.op) >= kReduceOps) {
    return refuse(
        fmt::format("{}: unknown operator {}", word(r.collective), static_cast<int>(r.op)));
  }
  if (options.factor != 1 && (r.op != ReduceOp::kScaledSum || !form_of(r.collective).reduces)) {
    return refuse(fmt::format("{}: a factor of {} is for the scaled sum (mulsum) only",
                              word(r.collective), options.factor));
  }
  if (form_of(r.collective).reduces && !supports(r.type, r.op)) {
    return refuse(
        fmt::format("{}: there is no {} of {}", word(r.collective), name(r.op), name(r.type)));
  }
  if (static_cast<int>(options.algorithm) >= kAlgorithms) {
    return refuse(fmt::format("{}: unknown algorithm {}", word(r.collective),
                              static_cast<int>(options.algorithm)));
  }
  if (options.timeout.count() < 0) {
    return refuse(fmt::format("{}: timeout of {} ms; pass 0 for the communicator's own",
                              word(r.collective), options.timeout.count()));
  }
  if (r.root < 0 || r.root >= size) {
    return refuse(
        fmt::format("{}: root {} is not one of the {} ranks", word(r.collective), r.root, size));
  }
  const size_t most =
      std::numeric_limits<size_t>::max() / 2 / size_of(r.type) / static_cast<size_t>(size);
  if (r.count > most) {
    return refuse(fmt::format("{}: count {} of {} on {} ranks overflows the address space",
                              word(r.collective), r.count, name(r.type), size));
  }
  return {};
}

Status check_buffers(const Request& r, int rank, int size) {
  if (r.count == 0 || r.collective == Collective::kBarrier) return {};
  if (reads(r, rank) && r.in == nullptr) {
    return refuse(
        fmt::format("{}: the input pointer is null but count is {}", word(r.collective), r.count));
  }
  if (writes(r, rank) && r.out == nullptr) {
    return refuse(
        fmt::format("{}: the output pointer is null but count is {}", word(r.collective), r.count));
  }
  if (!reads(r, rank) || !writes(r, rank) || is_in_place(r, rank)) return {};
  const Form form = form_of(r.collective);
  const size_t bytes = r.count * size_of(r.type), ranks = static_cast<size_t>(size);
  const auto in = reinterpret_cast<uintptr_t>(r.in), out = reinterpret_cast<uintptr_t>(r.out);
  const size_t in_bytes = elements(form.in, bytes, ranks),
               out_bytes = elements(form.out, bytes, ranks);
  if (in + in_bytes <= out || out + out_bytes <= in) return {};
  return refuse(
      fmt::format("{}: input [{:#x}, +{}) and output [{:#x}, +{}) overlap without being in place",
                  word(r.collective), in, in_bytes, out, out_bytes));
}

}  // namespace

Status Communicator::Impl::resolve(const Request& request, const CallOptions& options) {
  RONDO_RETURN_IF_ERROR(check_values(request, options, size()));
  RONDO_RETURN_IF_ERROR(check_buffers(request, rank(), size()));
  const comm::Shape shape{.call = {.collective = request.collective,
                                   .type = request.type,
                                   .op = request.op,
                                   .algorithm = options.algorithm,
                                   .root = request.root,
                                   .count = request.count},
                          .in_place = is_in_place(request, rank())};
  auto found = plans_->find(shape);
  if (!found.ok()) return found.status();
  last_ = {.request = request,
           .options = options,
           .prepared = *found,
           .in = static_cast<const std::byte*>(reads(request, rank()) ? request.in : nullptr),
           .out = static_cast<std::byte*>(writes(request, rank()) ? request.out : nullptr)};
  if (request.collective == Collective::kBarrier) {
    last_.in = &barrier_in_;
    last_.out = &barrier_out_;
  }
  return {};
}

Status Communicator::Impl::prepare(const Request& request, const CallOptions& options,
                                   engine::Operation& operation) {
  if (board_->has_error()) return board_->error();
  if (!last_.prepared || last_.request != request || last_.options != options) {
    RONDO_RETURN_IF_ERROR(resolve(request, options));
  }
  operation.prepared = last_.prepared.get();
  operation.in = last_.in;
  operation.out = last_.out;
  operation.factor = options.factor;
  operation.timeout_ns = options.timeout.count() > 0
                             ? std::min(options.timeout, kLongestTimeout).count() * 1'000'000
                             : timeout_ns_;
  return {};
}

Status Communicator::Impl::run(const Request& request, const CallOptions& options) {
  // Behind asynchronous operations a blocking one takes its turn in the queue.
  if (!queue_->empty()) return start(request, options).wait();
  RONDO_RETURN_IF_ERROR(prepare(request, options, blocking_));
  return runner_->run(blocking_);
}

Work Communicator::Impl::start(const Request& request, const CallOptions& options) {
  auto state = std::make_shared<Work::State>();
  state->issued_ns.store(recorder::now_ns(), std::memory_order_relaxed);
  auto operation = std::make_unique<engine::Operation>();
  if (Status status = prepare(request, options, *operation); !status.ok()) {
    state->end(status, recorder::now_ns());
    return Work(std::move(state));
  }
  if (!progress_) {
    auto thread = engine::ProgressThread::shared();
    if (!thread.ok()) {
      state->end(thread.status(), recorder::now_ns());
      return Work(std::move(state));
    }
    progress_ = *thread;
  }
  operation->work = state;
  operation->keep_alive = last_.prepared;
  queue_->push(std::move(operation));
  progress_->look_after(queue_);
  return Work(std::move(state));
}

Plan Communicator::Impl::plan(Collective collective, size_t count, DataType type, bool direct,
                              Algorithm algorithm) {
  const comm::Shape shape{.call = {.collective = collective,
                                   .type = type,
                                   .op = ReduceOp::kSum,
                                   .algorithm = algorithm,
                                   .root = 0,
                                   .count = count}};
  auto found = plans_->find(shape);
  if (!found.ok()) return {};
  const engine::Prepared& prepared = **found;
  const engine::Plan& chosen = direct && prepared.direct ? *prepared.direct : prepared.staged;
  auto bytes = plans_->most_bytes_moved(shape, chosen.algorithm);
  return {.algorithm = chosen.algorithm,
          .channels = plans_->limits().channels,
          .predicted_us = tuner::price({.collective = collective,
                                        .algorithm = chosen.algorithm,
                                        .ranks = plans_->limits().ranks,
                                        .bytes = count * size_of(type),
                                        .mapped = direct || chosen.direct},
                                       plans_->limits().profile)
                              .total_us(),
          .bytes_sent_per_rank = bytes.ok() ? *bytes : 0};
}

void Communicator::Impl::abort(const std::string& reason) {
  (void)board_->raise({Code::kAborted, fmt::format("rank {} aborted: {}", rank(), reason)});
}

Communicator::Impl::~Impl() {
  if (owner_ != getpid()) {
    // A forked child's copy. The threads and the place on the board are the parent's, and what
    // waits for threads would wait for ever, so these parts stay.
    static auto* left_alone = new std::vector<std::shared_ptr<void>>;
    left_alone->push_back(std::move(queue_));
    left_alone->push_back(std::move(progress_));
    left_alone->push_back(std::move(runner_));
    return;
  }
  if (queue_) queue_->drain();
  if (board_) {
    // Release: every operation's posts come before it (watch.cpp reads life first).
    board_->state(board_->rank())
        .life.store(static_cast<uint32_t>(recorder::Life::kGone), std::memory_order_release);
    board_->wake_all();
  }
}

Status Work::wait() {
  while (!state_->ended.load(std::memory_order_acquire))
    state_->ended.wait(false, std::memory_order_acquire);
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
                        Algorithm algorithm) const {
  return impl_->plan(collective, count, type, direct, algorithm);
}

Status Communicator::all_reduce(const void* in, void* out, size_t count, DataType type, ReduceOp op,
                                const CallOptions& options) {
  return impl_->run({.collective = Collective::kAllReduce,
                     .in = in,
                     .out = out,
                     .count = count,
                     .type = type,
                     .op = op},
                    options);
}
Status Communicator::reduce_scatter(const void* in, void* out, size_t count, DataType type,
                                    ReduceOp op, const CallOptions& options) {
  return impl_->run({.collective = Collective::kReduceScatter,
                     .in = in,
                     .out = out,
                     .count = count,
                     .type = type,
                     .op = op},
                    options);
}
Status Communicator::all_gather(const void* in, void* out, size_t count, DataType type,
                                const CallOptions& options) {
  return impl_->run(
      {.collective = Collective::kAllGather, .in = in, .out = out, .count = count, .type = type},
      options);
}
Status Communicator::broadcast(const void* in, void* out, size_t count, DataType type, int root,
                               const CallOptions& options) {
  return impl_->run({.collective = Collective::kBroadcast,
                     .in = in,
                     .out = out,
                     .count = count,
                     .type = type,
                     .root = root},
                    options);
}
Status Communicator::reduce(const void* in, void* out, size_t count, DataType type, int root,
                            ReduceOp op, const CallOptions& options) {
  return impl_->run({.collective = Collective::kReduce,
                     .in = in,
                     .out = out,
                     .count = count,
                     .type = type,
                     .op = op,
                     .root = root},
                    options);
}
Status Communicator::gather(const void* in, void* out, size_t count, DataType type, int root,
                            const CallOptions& options) {
  return impl_->run({.collective = Collective::kGather,
                     .in = in,
                     .out = out,
                     .count = count,
                     .type = type,
                     .root = root},
                    options);
}
Status Communicator::scatter(const void* in, void* out, size_t count, DataType type, int root,
                             const CallOptions& options) {
  return impl_->run({.collective = Collective::kScatter,
                     .in = in,
                     .out = out,
                     .count = count,
                     .type = type,
                     .root = root},
                    options);
}
Status Communicator::all_to_all(const void* in, void* out, size_t count, DataType type,
                                const CallOptions& options) {
  return impl_->run(
      {.collective = Collective::kAllToAll, .in = in, .out = out, .count = count, .type = type},
      options);
}
Status Communicator::barrier(const CallOptions& options) {
  return impl_->run({.collective = Collective::kBarrier}, options);
}

Work Communicator::all_reduce_async(const void* in, void* out, size_t count, DataType type,
                                    ReduceOp op, const CallOptions& options) {
  return impl_->start({.collective = Collective::kAllReduce,
                       .in = in,
                       .out = out,
                       .count = count,
                       .type = type,
                       .op = op},
                      options);
}
Work Communicator::reduce_scatter_async(const void* in, void* out, size_t count, DataType type,
                                        ReduceOp op, const CallOptions& options) {
  return impl_->start({.collective = Collective::kReduceScatter,
                       .in = in,
                       .out = out,
                       .count = count,
                       .type = type,
                       .op = op},
                      options);
}
Work Communicator::all_gather_async(const void* in, void* out, size_t count, DataType type,
                                    const CallOptions& options) {
  return impl_->start(
      {.collective = Collective::kAllGather, .in = in, .out = out, .count = count, .type = type},
      options);
}
Work Communicator::broadcast_async(const void* in, void* out, size_t count, DataType type, int root,
                                   const CallOptions& options) {
  return impl_->start({.collective = Collective::kBroadcast,
                       .in = in,
                       .out = out,
                       .count = count,
                       .type = type,
                       .root = root},
                      options);
}
Work Communicator::reduce_async(const void* in, void* out, size_t count, DataType type, int root,
                                ReduceOp op, const CallOptions& options) {
  return impl_->start({.collective = Collective::kReduce,
                       .in = in,
                       .out = out,
                       .count = count,
                       .type = type,
                       .op = op,
                       .root = root},
                      options);
}
Work Communicator::gather_async(const void* in, void* out, size_t count, DataType type, int root,
                                const CallOptions& options) {
  return impl_->start({.collective = Collective::kGather,
                       .in = in,
                       .out = out,
                       .count = count,
                       .type = type,
                       .root = root},
                      options);
}
Work Communicator::scatter_async(const void* in, void* out, size_t count, DataType type, int root,
                                 const CallOptions& options) {
  return impl_->start({.collective = Collective::kScatter,
                       .in = in,
                       .out = out,
                       .count = count,
                       .type = type,
                       .root = root},
                      options);
}
Work Communicator::all_to_all_async(const void* in, void* out, size_t count, DataType type,
                                    const CallOptions& options) {
  return impl_->start(
      {.collective = Collective::kAllToAll, .in = in, .out = out, .count = count, .type = type},
      options);
}
Work Communicator::barrier_async(const CallOptions& options) {
  return impl_->start({.collective = Collective::kBarrier}, options);
}

}  // namespace rondo
