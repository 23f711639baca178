// What is behind a Communicator: everything that create() brings up, in the order in which it must
// go down.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>

#include "comm/bootstrap/bootstrap.hpp"
#include "comm/engine/progress.hpp"
#include "comm/engine/runner.hpp"
#include "comm/plans.hpp"
#include "comm/recorder/board.hpp"
#include "comm/recorder/watch.hpp"
#include "rondo/communicator.hpp"
#include "transport/shm/segment.hpp"

namespace rondo {

/// Timeouts are cut down to this (ten years), so that sums with the time of day do not overflow.
inline constexpr std::chrono::milliseconds kLongestTimeout = std::chrono::hours(24 * 3650);

class Communicator::Impl {
 public:
  /// What a call asks for, before it is checked.
  struct Request {
    Collective collective;
    const void* in = nullptr;
    void* out = nullptr;
    size_t count = 0;
    DataType type = DataType::kUint8;
    ReduceOp op = ReduceOp::kSum;
    int root = 0;

    friend bool operator==(const Request&, const Request&) = default;
  };

  static Result<std::unique_ptr<Impl>> create(const Config& config);
  ~Impl();

  Status run(const Request& request, const CallOptions& options);
  Work start(const Request& request, const CallOptions& options);
  Plan plan(Collective collective, size_t count, DataType type, bool direct, Algorithm algorithm);

  int rank() const { return board_->rank(); }
  int size() const { return board_->ranks(); }
  Status status() const { return board_->error(); }
  void abort(const std::string& reason);
  Stats stats() const {
    return {runner_->operations(), runner_->bytes_sent(),
            board_segment_.bytes() + segment_.bytes()};
  }
  std::string flight_record() const { return board_->to_string(); }

 private:
  explicit Impl(comm::Bootstrap bootstrap) : bootstrap_(std::move(bootstrap)) {}
  Status bring_up(const Config& config);
  /// Checks the arguments, finds the plan, and remembers both in last_.
  Status resolve(const Request& request, const CallOptions& options);
  /// The same, unless the call repeats the last one; then fills in what was asked.
  Status prepare(const Request& request, const CallOptions& options, engine::Operation& operation);

  const pid_t owner_ = getpid();
  comm::Bootstrap bootstrap_;
  transport::Segment board_segment_;
  transport::Segment segment_;  // the transport's FIFOs
  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<recorder::Board> board_;
  std::unique_ptr<recorder::Watch> watch_;
  std::unique_ptr<comm::Plans> plans_;
  std::shared_ptr<engine::Runner> runner_;
  std::shared_ptr<engine::Queue> queue_;
  std::shared_ptr<engine::ProgressThread> progress_;  // from the first asynchronous operation on
  int64_t timeout_ns_ = 0;

  struct Resolved {
    Request request;
    CallOptions options;
    std::shared_ptr<const engine::Prepared> prepared;
    const std::byte* in;
    std::byte* out;
  };
  Resolved last_{};                         // most programs repeat themselves
  engine::Operation blocking_;              // the operation of blocking calls, reused
  std::byte barrier_in_{}, barrier_out_{};  // what a barrier over links passes round
};

}  // namespace rondo
