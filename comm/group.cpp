// Groups: calls that are collected and begin together. A call outside any is a group of one.
#include <fmt/format.h>

#include <algorithm>
#include <list>
#include <vector>

#include "comm/base/clock.hpp"
#include "comm/base/refuse.hpp"
#include "comm/communicator_impl.hpp"

namespace rondo {

using comm::refuse;
using engine::Operation;
using engine::Transfer;

namespace comm {

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

}  // namespace comm

Status Communicator::Impl::group_start() {
  RONDO_TRY(check_process());
  if (group_) {
    ++group_->inner;
  } else {
    group_.emplace();
  }
  return {};
}

Status Communicator::Impl::group_end() {
  RONDO_TRY(check_process());
  if (!group_) return refuse("group_end without group_start");
  if (group_->inner > 0) {
    --group_->inner;
    return {};
  }
  comm::Group group = std::move(*group_);
  group_.reset();
  return carry_out(group);
}

Status Communicator::Impl::group_abandon(const std::string& reason) {
  RONDO_TRY(check_process());
  if (!group_) return refuse("group_abandon without group_start");
  (void)group_->refuse(refuse("the group was abandoned: " + reason));
  (void)group_end();
  return {};
}

Status Communicator::Impl::carry_out(comm::Group& group) {
  bool begun = false;
  const Status outcome = guarded([&]() -> Status {
    const bool queued = group.asynchronous || is_queued();
    RONDO_TRY(check_group(group, queued));
    if (queued) return queue(group, &begun);
    begun = true;
    if (device_) return launch(group);
    runner_->lanes().push(group.transfers);
    return runner_->run(group.operations);
  });
  if (!begun) group.end(outcome);
  return outcome;
}

Status Communicator::Impl::check_group(const comm::Group& group, bool queued) {
  if (!group.error.ok()) return group.error;
  if (board_->has_error()) return board_->error();
  if (device_) return device_->refusal(group.transfers);
  if (queued) return need_queue();
  const bool sends_itself = std::any_of(
      group.transfers.begin(), group.transfers.end(),
      [&](const Transfer& t) { return t.peer == rank() || (t.peer == kAnySource && size() == 1); });
  return sends_itself ? check_own_messages(group) : Status();
}

// What a rank sends itself only this group receives: each send must find a recv, as it will when
// they move, and each recv from this rank a send.
Status Communicator::Impl::check_own_messages(const comm::Group& group) const {
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

Status Communicator::Impl::launch(const comm::Group& group) {
  RONDO_TRY(device_->make_room(group.operations));
  RONDO_TRY(device_->add(group.transfers));
  for (const Operation& operation : group.operations) RONDO_TRY(enqueue(operation));
  return device_->run();
}

// What has no Work of the caller's is waited for here.
Status Communicator::Impl::queue(comm::Group& group, bool* begun) {
  std::vector<Work> waited_for;
  const auto await = [&](comm::WorkState& state) {
    if (!state) waited_for.emplace_back(state = comm::issued());
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

}  // namespace rondo
