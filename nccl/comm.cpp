// See comm.hpp.
#include "nccl/comm.hpp"

#include <cstdlib>
#include <shared_mutex>
#include <string_view>
#include <unordered_map>

using rondo::Status;

void ncclComm::created(rondo::Result<rondo::Communicator> communicator) {
  if (communicator.ok()) {
    communicator_ = std::move(communicator).value();
    rank = communicator_->rank();
    size = communicator_->size();
  } else {
    not_created_ = communicator.status();
  }
  creating_.store(false, std::memory_order_release);
  creating_.notify_all();
}

Status ncclComm::check(const char* call) const {
  if (is_creating()) {
    return rondo::nccl::refuse(std::string(call) +
                               ": the communicator is still being created; call "
                               "ncclCommGetAsyncError until it is no longer ncclInProgress");
  }
  if (!not_created_.ok()) return not_created_;
  if (finalized || left_) {
    return rondo::nccl::unsupported(std::string(call) +
                                    ": the communicator was finalized or destroyed");
  }
  return {};
}

Status ncclComm::failure() const {
  if (is_creating()) return {};
  if (!not_created_.ok()) return not_created_;
  if (revoked) return {};
  const std::lock_guard lock(ends_);
  return communicator_ ? communicator_->status() : Status();
}

void ncclComm::abort(const std::string& reason) {
  const std::lock_guard lock(ends_);
  if (communicator_) communicator_->abort(reason);
}

void ncclComm::leave() {
  std::optional<rondo::Communicator>
      leaving;  // ends after the lock, because it may wait for operations
  const std::lock_guard lock(ends_);
  leaving.swap(communicator_);
  left_ = true;
}

namespace rondo::nccl {
namespace {

std::shared_mutex list_mutex;

/// Never destroyed: a thread may look a communicator up while the process exits.
std::unordered_map<ncclComm_t, Comm>& list() {
  static auto& it = *new std::unordered_map<ncclComm_t, Comm>;
  return it;
}

}  // namespace

Result<bool> host_memory() {
  const char* const value = std::getenv("RONDO_NCCL_HOST");
  const std::string_view text = value == nullptr ? "" : value;
  if (text.empty() || text == "0") return false;
  if (text == "1") return true;
  return refuse("RONDO_NCCL_HOST is '" + std::string(text) +
                "': 1 is for buffers in host memory, 0 for those of GPUs");
}

ncclComm_t publish(const Comm& comm) {
  const std::lock_guard lock(list_mutex);
  list().emplace(comm.get(), comm);
  return comm.get();
}

Result<Comm> find(ncclComm_t handle, const char* call) {
  RONDO_TRY(check_pointer(handle, call, "the communicator"));
  const std::shared_lock lock(list_mutex);
  const auto found = list().find(handle);
  if (found != list().end()) return found->second;
  return refuse(std::string(call) + ": there is no such communicator, or no longer");
}

Result<Comm> find_ready(ncclComm_t handle, const char* call) {
  Comm comm = RONDO_TRY(find(handle, call));
  RONDO_TRY(comm->check(call));
  return comm;
}

void retract(const Comm& comm) {
  const std::lock_guard lock(list_mutex);
  list().erase(comm.get());
}

}  // namespace rondo::nccl
