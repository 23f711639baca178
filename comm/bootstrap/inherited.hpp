// A rank that starts another program of rondo hands its rank's variables down: that program waits as
// the same rank, for ranks that do not come. Recognises it by the processes above this one.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "comm/bootstrap/meeting.hpp"
#include "rondo/status.hpp"

namespace rondo::comm {

/// For one rank's wait in a meeting. One thread.
class InheritedRank {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit InheritedRank(const Meeting& meeting);

  /// When check() looks, half of the deadline after the beginning; nothing: not, or no more. Until
  /// then all ranks may have started programs that meet.
  std::optional<Time> at() const { return at_; }
  /// At that time, once: an error if a process above this one has the same rank of the same job and
  /// has a communicator.
  Status check(Time now);
  /// "; pid 7 (sh), which has the same variables, ..." for an error at the deadline. Empty if the
  /// launcher has started this process.
  std::string hint() const;

 private:
  const Meeting& meeting_;
  const bool applies_;
  std::optional<Time> at_;
};

/// What a program of its own needs: " start ... with rondo-run -n 1 -- PROGRAM, or ...".
std::string inherited_remedy();

}  // namespace rondo::comm
