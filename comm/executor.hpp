// What carries operations out. The communicator keeps its members and its groups; everything that
// differs between ranks on CPUs and ranks on GPUs is behind this interface.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string_view>

#include "comm/engine/operation.hpp"
#include "comm/host/lanes.hpp"
#include "comm/plans.hpp"
#include "rondo/call.hpp"

namespace rondo::comm {

using WorkState = std::shared_ptr<Work::State>;

/// What a Work shares with an operation that is issued now.
WorkState issued();

/// The calls since group_start(), which begin together at group_end(). A call outside any is a group
/// of one.
struct Group {
  std::list<engine::Operation> operations{};
  std::list<engine::Transfer> transfers{};
  bool asynchronous = false;  // some caller holds a Work
  int inner = 0;              // groups begun inside this one, and not ended: they are part of it
  Status error{};             // of the first call that was refused
  Status refuse(const Status& status) {
    if (error.ok()) error = status;
    return status;
  }
  /// Ends every Work of it; nothing has begun.
  void end(const Status& status) const;
};

/// Thread rule: the communicator's, apart from error() and abort(), which any thread may call.
class Executor {
 public:
  /// `timeout_ns`: of calls without one of their own.
  Executor(const PlanLimits& limits, int64_t timeout_ns)
      : timeout_ns_(timeout_ns), plans_(limits) {}
  virtual ~Executor() = default;
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// Checks the arguments and finds the plan.
  Result<engine::Operation> resolve(const Call& given, const CallOptions& options);
  const Plans& plans() const { return plans_; }
  int64_t timeout_of(const CallOptions& options) const;

  /// Why such a call is refused here, or ok. `call`: its name. `asynchronous`: it has a Work.
  virtual Status refusal(std::string_view call, const CallOptions& options,
                         bool asynchronous) const = 0;
  virtual Status refusal(const engine::Transfer& message) const = 0;

  /// Runs one operation of resolve(). Host: returns when it has ended. Device: when it is enqueued.
  virtual Status run(engine::Operation& operation) = 0;
  /// The same of a group. Sets `begun` when operations may have begun: from then on it ends their
  /// Works. An error before that is no failure of the communicator.
  virtual Status run_group(Group& group, bool* begun) = 0;
  /// Waits until everything that run_group() has handed to the progress thread has ended.
  virtual void drain() = 0;
  virtual bool is_idle() const = 0;

  /// The communicator's error as far as it is known here, or ok. `thorough`: also looks for errors
  /// that nobody has reported yet.
  virtual Status error(bool thorough) = 0;
  /// Ends what runs, after an error is on the board.
  virtual void abort() const = 0;
  /// Called after a call has thrown, with the error on the board. Stops all data movement of this rank
  /// and returns the error.
  virtual Status withdraw() noexcept = 0;

  /// Whether peers can access buffers of a call in place. `direct`: they are in library memory, or
  /// registered on a device.
  virtual bool reaches_buffers(bool direct) const = 0;
  /// What such memory is called.
  virtual const char* direct_memory() const = 0;
  /// Why this executor's communicator cannot shrink, or ok.
  virtual Status can_shrink() const = 0;
  virtual Status register_memory(void* pointer, size_t bytes) = 0;
  virtual Status unregister_memory(void* pointer) = 0;
  virtual uint64_t bytes_sent() const = 0;

 protected:
  Result<engine::Operation> make_operation(const Shape& shape, const Call& call,
                                           const CallOptions& options);
  void replace_plans(const PlanLimits& limits) { plans_ = Plans(limits); }
  int rank() const { return plans_.limits().rank; }
  int size() const { return plans_.limits().ranks; }

 private:
  const int64_t timeout_ns_;
  Plans plans_;
  std::byte barrier_in_{}, barrier_out_{};  // what a barrier over links passes round
};

}  // namespace rondo::comm
