// A timeline of one rank, written as Chrome trace JSON (open it in Perfetto or chrome://tracing).
// Records; never measures.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "rondo/status.hpp"

namespace rondo::trainer {

/// One thread. Without a file everything is a no-op.
class Trace {
 public:
  /// `lanes`: names of the rows. An empty path: no trace.
  static Result<Trace> open(const std::string& path, int rank, std::vector<std::string> lanes);

  /// Something that lasted from begin_ns to end_ns (CLOCK_MONOTONIC). `name` must outlive the
  /// trace.
  void span(size_t lane, const std::string& name, uint64_t step, int64_t begin_ns, int64_t end_ns) {
    if (file_.is_open()) events_.push_back({lane, &name, step, begin_ns, end_ns});
  }
  /// Writes the file.
  Status close();

 private:
  struct Event {
    size_t lane;
    const std::string* name;
    uint64_t step;
    int64_t begin_ns, end_ns;
  };

  std::string path_;
  int rank_ = 0;
  std::vector<std::string> lanes_;
  std::ofstream file_;
  std::vector<Event> events_;
};

}  // namespace rondo::trainer
