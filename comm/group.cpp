// Groups: calls that are collected and begin together.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "comm/communicator_impl.hpp"
#include "comm/recorder/clock.hpp"
#include "comm/refuse.hpp"

namespace rondo {

using comm::issued;
using comm::refuse;
using engine::Transfer;

namespace comm {
void Group::end(const Status& status) const {
  const int64_t now = recorder::now_ns();
  for (const auto& operation : operations) {
    if (operation->work) operation->work->end(status, now);
  }
  for (const Transfer& transfer : transfers) {
    if (transfer.work) transfer.work->end(status, now);
  }
}

}  // namespace comm

Status Communicator::Impl::group_start() {
  if (group_) {
    ++group_->inner;
  } else {
    group_.emplace();
  }
  return {};
}

Status Communicator::Impl::group_end() {
  if (!group_) return refuse("group_end without group_start");
  if (group_->inner > 0) {
    --group_->inner;
    return {};
  }
  comm::Group group = std::move(*group_);
  group_.reset();
  const auto to_self = [&](bool sends) {
    return std::count_if(group.transfers.begin(), group.transfers.end(), [&](const Transfer& t) {
      return t.peer == rank() && t.sends == sends && !t.work;
    });
  };
  Status error = group.error;
  if (error.ok() && board_->has_error()) error = board_->error();
  if (error.ok() && device_) error = device_->refusal(group.transfers);
  const bool queued = group.asynchronous || !queue_->empty();
  if (error.ok() && !queued && to_self(true) != to_self(false)) {
    error = refuse(fmt::format("a group in which rank {} sends itself {} messages and receives {}",
                               rank(), to_self(true), to_self(false)));
  }
  if (error.ok() && queued && !device_) error = need_progress();
  if (!error.ok()) {  // nothing of it has begun
    group.end(error);
    return error;
  }
  if (device_) {
    RONDO_RETURN_IF_ERROR(device_->make_room(group.operations));
    RONDO_RETURN_IF_ERROR(device_->add(group.transfers));
    for (const auto& operation : group.operations) RONDO_RETURN_IF_ERROR(enqueue(*operation));
    return device_->run();
  }
  if (!queued) {
    for (Transfer& transfer : group.transfers) runner_->lanes().push(std::move(transfer));
    return runner_->run(group.operations);
  }
  std::vector<Work> blocking;
  const auto work_for = [&](std::shared_ptr<Work::State>& state) {
    if (state) return;
    state = issued();
    blocking.emplace_back(state);
  };
  for (Transfer& transfer : group.transfers) {
    work_for(transfer.work);
    queue_->push(std::move(transfer));
  }
  for (auto& operation : group.operations) {
    work_for(operation->work);
    queue_->push(std::move(operation));
  }
  progress_->look_after(queue_);
  for (Work& work : blocking) {
    Status status = work.wait();
    if (error.ok()) error = std::move(status);
  }
  return error;
}

}  // namespace rondo
