// See host_executor.hpp.
#include "comm/host_executor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "comm/base/refuse.hpp"
#include "comm/check_call.hpp"

namespace rondo::comm {

using engine::Operation;
using engine::Transfer;

Status HostExecutor::refusal(std::string_view call, const CallOptions& options,
                             bool /*asynchronous*/) const {
  if (options.stream == nullptr) return {};
  return refuse(fmt::format("{}: CallOptions::stream is for communicators on a device", call));
}

Status HostExecutor::error(bool /*thorough*/) { return board_.error(); }

Status HostExecutor::run_group(Group& group, bool* begun) {
  if (group.asynchronous || is_queued()) {
    RONDO_TRY(need_queue());
    return queue(group, begun);
  }
  RONDO_TRY(check_own_messages(group));
  *begun = true;
  runner_->lanes().push(group.transfers);
  return runner_->run(group.operations);
}

Status HostExecutor::exchange(const void* own, void* all, size_t bytes,
                              board::FingerprintKind kind) {
  const Call call{.collective = Collective::kAllGather,
                  .in = own,
                  .out = all,
                  .count = bytes,
                  .type = DataType::kUint8};
  const CallOptions options{.algorithm = Algorithm::kRing};
  Shape shape = shape_of(call, {}, options, rank());
  shape.call.kind = kind;
  Group alone;
  alone.operations.push_back(RONDO_TRY(make_operation(shape, call, options)));
  bool begun = false;
  return run_group(alone, &begun);
}

// What a rank sends itself only this group receives: each send must find a recv, as it will when
// they move, and each recv from this rank a send.
Status HostExecutor::check_own_messages(const Group& group) const {
  std::vector<const Transfer*> sends, recvs;
  for (const Transfer& t : group.transfers) {
    const bool own = t.peer == rank() || t.peer == kAnySource;
    if (own && !t.probes) (t.sends ? sends : recvs).push_back(&t);
  }
  const auto only_own = [&](const Transfer* t) { return t->peer == rank() || size() == 1; };
  const auto all_recvs = std::count_if(recvs.begin(), recvs.end(), only_own);
  for (const Transfer* send : sends) {
    const auto recv = std::find_if(recvs.begin(), recvs.end(), [&](const Transfer* t) {
      return t->tag == send->tag || t->tag == kAnyTag;
    });
    if (recv != recvs.end()) {
      recvs.erase(recv);
      continue;
    }
    return refuse(fmt::format(
        "a group in which rank {} sends itself {} messages and receives {}: none for {}", rank(),
        sends.size(), all_recvs, send->to_string()));
  }
  const auto alone = std::find_if(recvs.begin(), recvs.end(), only_own);
  if (alone == recvs.end()) return {};
  return refuse(
      fmt::format("a group in which rank {} sends itself {} messages and receives {}: none for {}",
                  rank(), sends.size(), all_recvs, (*alone)->to_string()));
}

Status HostExecutor::need_queue() {
  if (queue_) return {};
  auto thread = engine::ProgressThread::shared();
  if (!thread.ok()) return thread.status();
  (*thread)->expect_queue();
  queue_ = std::make_shared<engine::Queue>(*runner_);
  progress_ = std::move(*thread);
  return {};
}

// What has no Work of the caller's is waited for here.
Status HostExecutor::queue(Group& group, bool* begun) {
  std::vector<Work> waited_for;
  const auto await = [&](WorkState& state) {
    if (!state) waited_for.emplace_back(state = issued());
    state->collected = false;
  };
  for (Transfer& transfer : group.transfers) await(transfer.work);
  for (Operation& operation : group.operations) await(operation.work);
  *begun = true;
  queue_->push(group.operations, group.transfers);
  progress_->look_after(queue_);
  Status outcome;
  for (Work& work : waited_for) {
    Status status = work.wait();
    if (outcome.ok()) outcome = std::move(status);
  }
  return outcome;
}

// Another thread may have the runner, and finds the error.
Status HostExecutor::withdraw() noexcept {
  if (is_queued()) return board_.error();
  (void)runner_->withdraw();
  return runner_->await_settled();
}

Status HostExecutor::register_memory(void* /*pointer*/, size_t /*bytes*/) {
  return refuse(
      "register_device_memory: this communicator is not on a device; rondo::register_memory() "
      "makes host memory library memory, for every communicator");
}

Status HostExecutor::unregister_memory(void* /*pointer*/) {
  return refuse("unregister_device_memory: this communicator is not on a device");
}

}  // namespace rondo::comm
