// A timeline of all ranks in one file, as Chrome trace JSON (open it in Perfetto or
// chrome://tracing). Records; never measures.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rondo/communicator.hpp"
#include "rondo/status.hpp"
#include "trainer/files/text_output.hpp"

namespace rondo::trainer {

/// One thread. Without a file everything is a no-op.
class Trace {
 public:
  /// Every rank has the same `path` and `lanes` (names of the rows); an empty path: no trace. Rank
  /// 0 empties the file.
  static Result<Trace> open(const std::string& path, int rank, std::vector<std::string> lanes);

  void add_lane(const std::string& name) { lanes_.push_back(name); }
  /// Something that lasted from begin_ns to end_ns (CLOCK_MONOTONIC). `name` must outlive the
  /// trace.
  void span(size_t lane, const std::string& name, uint64_t step, int64_t begin_ns, int64_t end_ns) {
    if (!path_.empty()) events_.push_back({lane, &name, step, begin_ns, end_ns});
  }
  /// Rank 0 collects the events of all ranks and writes the file. Clocks are those of each rank's host;
  /// between hosts they are not compared.
  Status close(Communicator& communicator);

 private:
  struct TraceEvent {
    size_t lane;
    const std::string* name;
    uint64_t step;
    int64_t begin_ns, end_ns;
  };

  std::string text(int64_t origin_ns) const;

  std::string path_;
  int rank_ = 0;
  std::vector<std::string> lanes_;
  TextOutput output_;  // rank 0
  std::vector<TraceEvent> events_;
};

}  // namespace rondo::trainer
