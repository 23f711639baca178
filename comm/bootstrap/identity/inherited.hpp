// A rank that starts another program of rondo hands its rank's variables down: that program waits as
// the same rank, for ranks that do not come. Recognises it by the processes above this one.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "comm/bootstrap/identity/environment.hpp"
#include "rondo/status.hpp"

namespace rondo::comm {

/// For one rank's wait in a meeting. One thread.
class InheritedRank {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// `applies`: the rank may be another process's. Without it, and if no launcher has given the rank,
  /// this finds nothing.
  InheritedRank(const Identity& identity, std::chrono::milliseconds timeout, bool applies);

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
  const int rank_;
  const std::chrono::milliseconds timeout_;
  const bool applies_;
  std::optional<Time> at_;
};

/// What a program of its own needs: " start ... with rondo-run -n 1 -- PROGRAM, or ...".
std::string inherited_remedy();

}  // namespace rondo::comm
