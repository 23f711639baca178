// See executor.hpp.
#include "comm/executor.hpp"

#include <algorithm>
#include <utility>

#include "comm/base/clock.hpp"
#include "comm/base/limits.hpp"
#include "comm/check_call.hpp"

namespace rondo::comm {

using engine::Operation;
using engine::Transfer;

WorkState issued() {
  auto state = std::make_shared<Work::State>();
  state->issued_ns.store(base::now_ns(), std::memory_order_relaxed);
  return state;
}

void Group::end(const Status& status) const {
  const int64_t now = base::now_ns();
  for (const Operation& operation : operations) {
    if (operation.work) operation.work->end(status, now);
  }
  for (const Transfer& transfer : transfers) {
    if (transfer.work) transfer.work->end(status, now);
  }
}

int64_t Executor::timeout_of(const CallOptions& options) const {
  return options.stall_timeout.count() > 0
             ? std::min(options.stall_timeout, base::kLongestTimeout).count() * 1'000'000
             : timeout_ns_;
}

Result<Operation> Executor::resolve(const Call& given, const CallOptions& options) {
  const Call call = without_unused(given);
  schedule::BlockLayout layout = layout_of(call);
  RONDO_TRY(check(call, layout, options, rank(), size()));
  return make_operation(shape_of(call, std::move(layout), options, rank()), call, options);
}

Result<Operation> Executor::make_operation(const Shape& shape, const Call& call,
                                           const CallOptions& options) {
  auto found = plans_.find(shape);
  if (!found.ok()) return found.status();
  Operation operation;
  operation.prepared = found->get();
  operation.keep_alive = std::move(*found);
  if (call.collective == Collective::kBarrier) {
    operation.in = &barrier_in_;
    operation.out = &barrier_out_;
  } else {
    if (reads(call, rank())) operation.in = static_cast<const std::byte*>(call.in);
    if (writes(call, rank())) operation.out = static_cast<std::byte*>(call.out);
  }
  operation.factor = options.factor;
  operation.timeout_ns = timeout_of(options);
  operation.stream = options.stream;
  return operation;
}

}  // namespace rondo::comm
