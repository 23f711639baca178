// What an ncclComm_t points to, and the list of those that exist.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "nccl/driver.hpp"
#include "nccl/errors.hpp"

namespace rondo::nccl {

/// A sum of scaled inputs (ncclRedOpCreatePreMulSum).
struct FactorOperator {
  DataType type;
  double factor;
  const void*
      device_scalar;  // of the communicator's memory, read when a call uses it; null: `factor` holds
};

/// Whether RONDO_NCCL_HOST says that buffers are in host memory. An error: it is neither 0 nor 1.
Result<bool> host_memory();

}  // namespace rondo::nccl

/// A rank of a communicator, from the call that begins to create it. Shared by the list of
/// communicators, by calls that use it, and by the thread that creates it: so an ncclCommAbort of
/// another thread takes nothing away from a call.
///
/// Thread rule: any thread; a call that uses communicator() holds `calls`.
struct ncclComm {
  ncclComm(int its_device, bool is_blocking) : device(its_device), blocking(is_blocking) {}

  int rank = -1, size = -1;  // known when it is there
  int device;                // -1: host memory; never changes
  const bool blocking;       // false: calls that create return before it is there
  std::mutex calls;          // one call at a time

  /// Ends the creation.
  void created(rondo::Result<rondo::Communicator> communicator);
  /// Waits for it.
  void await() const { creating_.wait(true, std::memory_order_acquire); }
  bool is_creating() const { return creating_.load(std::memory_order_acquire); }

  /// Why it cannot be used: it failed, or is not there yet, or no longer. Cheap.
  rondo::Status check(const char* call) const;
  /// The first failure, of creation or later; ok of one that was revoked by this rank. Cheap.
  rondo::Status failure() const;

  /// REQUIRES: check() was ok after `calls` was locked.
  rondo::Communicator& communicator() { return *communicator_; }
  /// body(communicator()), which returns a Status or a Result, alone; or why it cannot be called.
  template <class Body>
  auto use(const char* call, const Body& body) -> decltype(body(communicator())) {
    const std::lock_guard lock(calls);
    RONDO_TRY(check(call));
    return body(communicator());
  }
  /// body(communicator()), which returns a Status, also of one that was finalized; ok without a call
  /// if it is not there, or no longer.
  template <class Body>
  rondo::Status use_if_there(const Body& body) {
    const std::lock_guard lock(calls);
    return communicator_ ? body(*communicator_) : rondo::Status();
  }
  /// Whether nothing of this rank is under way. REQUIRES: `calls` is held.
  bool is_idle() const { return !communicator_ || communicator_->is_idle(); }
  /// Fails the calls of every rank. Without `calls`.
  void abort(const std::string& reason);
  /// Leaves the communicator. REQUIRES: `calls` is held.
  void leave();

  std::atomic<bool> finalized{false}, revoked{false};

  /// By number - ncclNumOps. Guarded by `calls`.
  std::vector<std::optional<rondo::nccl::FactorOperator>> operators;
  /// Of scalars on a GPU; null until an operator has one. Guarded by `calls` until then.
  std::unique_ptr<rondo::nccl::driver::ScalarReader> reader;

 private:
  // creating_ becomes false (release) after the others are written; readers acquire it.
  std::atomic<bool> creating_{true}, left_{false};
  rondo::Status not_created_;
  mutable std::mutex
      ends_;  // held by leave() as well as `calls`, and by whoever does not hold `calls`
  std::optional<rondo::Communicator> communicator_;
};

namespace rondo::nccl {

using Comm = std::shared_ptr<ncclComm>;

/// Adds it to the list, and gives its handle.
ncclComm_t publish(const Comm& comm);
/// The communicator of a handle. An error names `call`: it is null, or none that exists.
Result<Comm> find(ncclComm_t handle, const char* call);
/// The same, of one that can be used now.
Result<Comm> find_ready(ncclComm_t handle, const char* call);
/// Takes it off the list: nobody finds it any more.
void retract(const Comm& comm);

}  // namespace rondo::nccl
