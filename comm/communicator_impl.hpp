// What is behind a Communicator: everything that create() brings up, in the order in which it must
// go down.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/bootstrap/bootstrap.hpp"
#include "comm/device/runner.hpp"
#include "comm/engine/progress.hpp"
#include "comm/engine/runner.hpp"
#include "comm/plans.hpp"
#include "comm/recorder/board.hpp"
#include "comm/recorder/watch.hpp"
#include "comm/request.hpp"
#include "rondo/communicator.hpp"
#include "transport/shm/segment.hpp"

namespace rondo {

/// Timeouts are cut down to this (ten years), so that sums with the time of day do not overflow.
inline constexpr std::chrono::milliseconds kLongestTimeout = std::chrono::hours(24 * 3650);

namespace comm {

/// What a Work shares with an operation that begins its way now.
std::shared_ptr<Work::State> issued();

/// The calls since group_start(), which group_end() carries out.
struct Group {
  std::vector<std::unique_ptr<engine::Operation>> operations;
  std::vector<engine::Transfer> transfers;
  bool asynchronous = false;  // some caller holds a Work
  int inner = 0;              // groups begun inside this one, and not ended: they are part of it
  Status error;               // of the first call that was refused
  Status refuse(const Status& status) {
    if (error.ok()) error = status;
    return status;
  }
  /// Ends every Work of it; nothing has begun.
  void end(const Status& status) const;
};

}  // namespace comm

class Communicator::Impl {
 public:
  /// `links`: the link profile, of the communicator that this one is made from; else what `config`
  /// says.
  static Result<std::unique_ptr<Impl>> create(const Config& config,
                                              std::optional<tuner::LinkProfile> links = {});
  ~Impl();

  Status run(const comm::Request& request, const CallOptions& options);
  Work start(const comm::Request& request, const CallOptions& options);
  /// One end of a message.
  Status run(engine::Transfer transfer, const CallOptions& options);
  Work start(engine::Transfer transfer, const CallOptions& options);
  Status group_start();
  Status group_end();
  /// What this rank's part is made with; nothing: it has none. `called`: by the name of, for errors.
  Result<std::optional<Config>> split(int color, int key, std::string_view called);
  Result<std::unique_ptr<Impl>> make_part(const Config& config);
  Plan plan(Collective collective, size_t count, DataType type, bool direct, Algorithm algorithm,
            ReduceOp op);

  int rank() const { return board_->rank(); }
  int size() const { return board_->ranks(); }
  Status status() const { return device_ ? device_->check(true) : board_->error(); }
  void abort(const std::string& reason);
  Stats stats() const {
    return {runner_->operations(), runner_->bytes_sent() + (device_ ? device_->bytes_sent() : 0),
            board_segment_.bytes() + segment_.bytes()};
  }
  std::string flight_record() const { return board_->to_string(); }

 private:
  explicit Impl(comm::Bootstrap bootstrap) : bootstrap_(std::move(bootstrap)) {}
  Status bring_up(const Config& config);
  Status bring_up_device(const Config& config, bool links_given);
  /// Checks the arguments, finds the plan, and remembers the operation in last_.
  Status resolve(const comm::Request& request, const CallOptions& options);
  /// The same, unless the call repeats the last one: last_.operation is what is asked for.
  Status prepare(const comm::Request& request, const CallOptions& options);
  /// run(), where something else comes first: a group, a device, an error, or what is still in the
  /// queue.
  Status run_in_turn(const comm::Request& request, const CallOptions& options);
  Status prepare(engine::Transfer& transfer, const CallOptions& options) const;
  Result<std::unique_ptr<engine::Operation>> make_operation(const comm::Request& request,
                                                            const CallOptions& options);
  /// With a device: the operation is the next of the launch that is begun.
  Status enqueue(const engine::Operation& operation);
  /// What every rank wants of a split, in the host's memory.
  Status gather_for_split(const int32_t* own, int32_t* all, size_t count);
  int64_t timeout_of(const CallOptions& options) const;
  /// The progress thread, from now on.
  Status need_progress();

  const pid_t owner_ = getpid();
  comm::Bootstrap bootstrap_;
  transport::Segment board_segment_;
  transport::Segment segment_;  // the transport's FIFOs
  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<recorder::Board> board_;
  std::unique_ptr<recorder::Watch> watch_;
  std::unique_ptr<comm::Plans> plans_;
  std::unique_ptr<comm::Plans> device_plans_;  // where there is a device
  std::shared_ptr<engine::Runner> runner_;
  std::shared_ptr<engine::Queue> queue_;
  std::shared_ptr<engine::ProgressThread> progress_;  // from the first asynchronous operation on
  int64_t timeout_ns_ = 0;

  struct Resolved {
    comm::Request request;
    CallOptions options;
    engine::Operation operation;  // of blocking calls itself, for others to be copied

    bool answers(const comm::Request& asked, const CallOptions& how) const {
      return operation.prepared != nullptr && request == asked && options == how &&
             std::signbit(options.factor) == std::signbit(how.factor);  // 0 and -0 are equal
    }
  };
  Resolved last_{};                         // most programs repeat themselves
  std::byte barrier_in_{}, barrier_out_{};  // what a barrier over links passes round

  std::optional<comm::Group> group_;
  Config config_;  // as it was settled, for communicators made from this one
  std::optional<tuner::LinkProfile> links_;  // rank 0's, likewise; for a core for every rank
  uint64_t splits_ = 0;                      // so far
  std::unique_ptr<device::Runner> device_;   // null: operations are the host's
};

}  // namespace rondo
