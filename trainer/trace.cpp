// See trace.hpp. Format: the JSON array of "complete" (X) events of the Trace Event Format; times
// in microseconds.
#include "trainer/trace.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

namespace rondo::trainer {

Result<Trace> Trace::open(const std::string& path, int rank, std::vector<std::string> lanes) {
  Trace trace;
  if (path.empty()) return trace;
  trace.path_ = path;
  trace.rank_ = rank;
  trace.lanes_ = std::move(lanes);
  trace.file_.open(path);
  if (!trace.file_) {
    return Status(Code::kSystem, "cannot write trace '" + path + "': " + std::strerror(errno));
  }
  return trace;
}

Status Trace::close() {
  if (!file_.is_open()) return {};
  int64_t origin_ns = events_.empty() ? 0 : events_.front().begin_ns;
  for (const Event& event : events_) origin_ns = std::min(origin_ns, event.begin_ns);

  file_ << "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  file_ << nlohmann::json{{"ph", "M"},
                          {"pid", rank_},
                          {"name", "process_name"},
                          {"args", {{"name", "rank " + std::to_string(rank_)}}}};
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    file_ << ",\n"
          << nlohmann::json{{"ph", "M"},
                            {"pid", rank_},
                            {"tid", lane},
                            {"name", "thread_name"},
                            {"args", {{"name", lanes_[lane]}}}};
  }
  for (const Event& event : events_) {
    file_ << ",\n"
          << nlohmann::json{{"ph", "X"},
                            {"pid", rank_},
                            {"tid", event.lane},
                            {"name", *event.name},
                            {"ts", static_cast<double>(event.begin_ns - origin_ns) / 1e3},
                            {"dur", static_cast<double>(event.end_ns - event.begin_ns) / 1e3},
                            {"args", {{"step", event.step}}}};
  }
  file_ << "]}\n";
  file_.close();
  if (!file_) {
    return Status(Code::kSystem, "cannot write trace '" + path_ + "': " + std::strerror(errno));
  }
  return {};
}

}  // namespace rondo::trainer
