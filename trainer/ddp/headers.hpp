// The few words that ranks exchange once per step before gradients travel: how much each counts,
// whether it has data left, and what gives a wrong input away.
#pragma once

#include <string>
#include <vector>

#include "rondo/communicator.hpp"
#include "rondo/ddp.hpp"

namespace rondo::ddp {

/// One thread.
class Headers {
 public:
  Headers(Communicator& communicator, const DdpOptions& options);

  /// Starts the exchange of a step.
  void send(const DdpHeader& mine);
  /// Waits for it. kInvalidArgument, on every rank alike, when some ranks have run out of data,
  /// others not, and nobody said that this may be; or when ranks are in different epochs.
  Result<DdpStep> wait();
  /// Whether the last exchange was read and found that no rank has loss terms: a step that nobody
  /// goes on with.
  bool ended_empty() const { return read_ && step_.ok() && step_.value().loss_terms == 0; }
  /// Waits until the exchange uses no memory any more, however it ended.
  void settle();
  /// The first rank with loss terms; 0 where none has any. REQUIRES: wait() was ok.
  int first_active() const { return first_active_; }
  /// What this rank's gradients are multiplied by. kInvalidArgument, on every rank alike, when a mean
  /// is wanted and no rank has loss terms. REQUIRES: wait() was ok.
  Result<double> factor() const;

  /// REQUIRES: send().
  Work::Times times() const { return exchange_[0].times(); }
  /// Adds a warning, unless it is there.
  void warn(const std::string& text);
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  Result<DdpStep> read();
  void suspect(const DdpStep& step);

  Communicator& communicator_;
  const DdpOptions& options_;
  DdpHeader mine_;
  std::vector<uint64_t> sent_, all_;
  std::vector<Work> exchange_;  // at most one
  Result<DdpStep> step_;
  bool read_ = true;
  int first_active_ = 0;
  bool epoch_ended_ = false;  // with the step before
  uint64_t ended_epoch_ = 0;
  std::vector<std::string> warnings_;
};

}  // namespace rondo::ddp
