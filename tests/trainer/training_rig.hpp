// What the tests of whole runs share: small models as flags, pictures, links that cost what a test
// wants, comparisons, what a trace shows.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <string>
#include <thread>

#include "tests/harness/catch.hpp"
#include "tests/trainer/link_profile.hpp"
#include "tests/trainer/workplace.hpp"

namespace rondo::trainer::testing {

inline const Words kNano =
    "--model gpt --layers 2 --width 32 --heads 2 --context 16 --batch 2"_words;
inline const Words kCnn = "--model cnn --width 4 --batch 3 --data-format images"_words;

/// `count` pictures of 12 x 12 in ten classes, from number `first` on.
inline void write_images(const std::string& folder, uint32_t count, uint64_t first = 0) {
  write_pictures(folder, "train", count, 12, 10, 1, first);
}

/// The same flags with another value of one.
inline Words with(Words words, const std::string& flag, const std::string& value) {
  const auto found = std::find(words.begin(), words.end(), flag);
  REQUIRE(found != words.end());
  *(found + 1) = value;
  return words;
}

inline void check_same_losses(const json& a, const json& b, double tolerance) {
  const auto first = losses_of(a), second = losses_of(b);
  REQUIRE(first.size() == second.size());
  REQUIRE(!first.empty());
  for (size_t s = 0; s < first.size(); ++s) {
    INFO("step " << s + 1 << ": " << first[s] << " and " << second[s]);
    REQUIRE(std::abs(first[s] - second[s]) <= tolerance * std::abs(first[s]));
  }
}

/// A file of links on which nothing costs anything but `dear`: "peer_us" makes buckets go round a
/// ring, "alpha_us" through nobody. For RONDO_LINKS.
inline std::string links(const Workplace& place, const std::string& dear) {
  return rondo::testing::write_links(place.file(dear), {{dear, 1000}});
}
/// The environment of runs on such links.
inline Words on_links(const Workplace& place, const std::string& dear) {
  return kNoLauncher + ("RONDO_LINKS=" + links(place, dear));
}

/// Waits until the document has that step; false: not within a minute.
inline bool await_step(const std::string& file, uint64_t step) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds{60};
  const std::string wanted = "{\"step\":" + std::to_string(step) + ",";
  while (std::chrono::steady_clock::now() < until) {
    if (read_text(file).find(wanted) != std::string::npos) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds{5});
  }
  return false;
}

/// The variables of a process's environment that begin with `name`.
inline Words variables_of(pid_t process, const std::string& name) {
  Words found;
  std::istringstream variables(read_text("/proc/" + std::to_string(process) + "/environ"));
  for (std::string each; std::getline(variables, each, '\0');) {
    if (each.starts_with(name)) found.push_back(each);
  }
  return found;
}

/// When something began and ended, in microseconds.
struct Span {
  double begin, end;
};

/// Rank 0's span of that name in a step; if `row` is given, on the row of that name.
inline Span span_of(const json& trace, const std::string& name, int step,
                    const std::string& row = {}) {
  const json& events = trace["traceEvents"];
  for (const json& event : events) {
    if (event["ph"] != "X" || event["name"] != name || event["pid"] != 0) continue;
    if (event["args"]["step"] != step) continue;
    const bool on_row = std::any_of(events.begin(), events.end(), [&](const json& named) {
      return named["name"] == "thread_name" && named["pid"] == 0 && named["tid"] == event["tid"] &&
             named["args"]["name"] == row;
    });
    if (!row.empty() && !on_row) continue;
    return {event["ts"], event["ts"].get<double>() + event["dur"].get<double>()};
  }
  FAIL("no span " << name << " of step " << step << " on row " << row);
  return {};
}

}  // namespace rondo::trainer::testing
