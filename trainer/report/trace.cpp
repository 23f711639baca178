// See trace.hpp. Format: the JSON array of "complete" (X) events of the Trace Event Format; times
// in microseconds.
#include "trainer/report/trace.hpp"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

namespace rondo::trainer {

Result<Trace> Trace::open(const std::string& path, int rank, std::vector<std::string> lanes) {
  Trace trace;
  trace.path_ = path;
  trace.rank_ = rank;
  trace.lanes_ = std::move(lanes);
  if (path.empty() || rank != 0) return trace;
  trace.output_ = RONDO_TRY(TextOutput::open("--trace", path));
  if (!trace.output_.is_stream()) RONDO_TRY(trace.output_.cut(0));
  return trace;
}

/// This rank's events, separated by commas.
std::string Trace::text(int64_t origin_ns) const {
  std::string all = nlohmann::json{{"ph", "M"},
                                   {"pid", rank_},
                                   {"name", "process_name"},
                                   {"args", {{"name", "rank " + std::to_string(rank_)}}}}
                        .dump();
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    all += ",\n" + nlohmann::json{{"ph", "M"},
                                  {"pid", rank_},
                                  {"tid", lane},
                                  {"name", "thread_name"},
                                  {"args", {{"name", lanes_[lane]}}}}
                       .dump();
  }
  for (const TraceEvent& event : events_) {
    all += ",\n" + nlohmann::json{{"ph", "X"},
                                  {"pid", rank_},
                                  {"tid", event.lane},
                                  {"name", *event.name},
                                  {"ts", static_cast<double>(event.begin_ns - origin_ns) / 1e3},
                                  {"dur", static_cast<double>(event.end_ns - event.begin_ns) / 1e3},
                                  {"args", {{"step", event.step}}}}
                       .dump();
  }
  return all;
}

Status Trace::close(Communicator& communicator) {
  if (path_.empty()) return {};
  int64_t origin_ns = std::numeric_limits<int64_t>::max();
  for (const TraceEvent& event : events_) origin_ns = std::min(origin_ns, event.begin_ns);
  RONDO_TRY(communicator.all_reduce(&origin_ns, &origin_ns, 1, DataType::kInt64, ReduceOp::kMin));

  std::string mine = text(origin_ns);
  uint64_t bytes = mine.size();
  if (rank_ != 0) {
    RONDO_TRY(communicator.send(&bytes, 1, DataType::kUint64, 0));
    return communicator.send(mine.data(), bytes, DataType::kUint8, 0);
  }
  RONDO_TRY(output_.write("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[" + mine));
  for (int rank = 1; rank < communicator.size(); ++rank) {
    RONDO_TRY(communicator.recv(&bytes, 1, DataType::kUint64, rank));
    std::string theirs(bytes, '\0');
    RONDO_TRY(communicator.recv(theirs.data(), bytes, DataType::kUint8, rank));
    RONDO_TRY(output_.write(",\n" + theirs));
  }
  return output_.write("]}\n");
}

}  // namespace rondo::trainer
