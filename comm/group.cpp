// Groups: calls that are collected and begin together.
#include "comm/base/refuse.hpp"
#include "comm/communicator_impl.hpp"

namespace rondo {

using comm::refuse;
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
    RONDO_TRY(group.error);
    if (board_->has_error()) return board_->error();
    return executor_->run_group(group, &begun);
  });
  if (!begun) group.end(outcome);
  return outcome;
}

}  // namespace rondo
