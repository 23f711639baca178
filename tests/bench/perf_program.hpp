// rondo-perf from a test's command line, and what it wrote.
#pragma once

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/harness/catch.hpp"
#include "tests/harness/rank_group.hpp"

namespace rondo::perf_program {

struct Ran {
  int exit_code;
  std::string output;
};

/// NAME=value, on top of the test's own.
using Environment = std::vector<std::string>;

inline Ran run_this(const std::string& program, const std::string& arguments,
                    const Environment& environment = {}) {
  // What the arguments redirect stays so: they come after.
  const auto ran = testing::run_program({"sh", "-c", "'" + program + "' 2>&1 " + arguments},
                                        environment, std::chrono::seconds{200});
  return {.exit_code = ran.exit_code, .output = ran.out};
}

inline Ran run(const std::string& arguments, const Environment& environment = {}) {
  return run_this(RONDO_PERF, arguments, environment);
}

/// A file for --json.
class TemporaryJson {
 public:
  std::string path() const { return directory_.path() + "/result.json"; }
  nlohmann::json read() const { return nlohmann::json::parse(std::ifstream(path())); }
  /// Whether there is a document already that has a row.
  bool has_results() const {
    const auto document = nlohmann::json::parse(std::ifstream(path()), nullptr, false);
    return !document.is_discarded() && !document["results"].empty();
  }

 private:
  testing::TempDirectory directory_;
};

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++found;
  return found;
}

/// A run that must succeed; what it printed.
inline std::string output_of(const std::string& arguments, const Environment& environment = {}) {
  const Ran ran = run(arguments, environment);
  INFO(arguments << "\n" << ran.output);
  REQUIRE(ran.exit_code == 0);
  return ran.output;
}

/// A run that must succeed, with its document.
struct MeasuredRun {
  explicit MeasuredRun(const std::string& arguments, const Environment& environment = {}) {
    const TemporaryJson json;
    output = output_of(arguments + " --json '" + json.path() + "'", environment);
    document = json.read();
    results = document["results"];
  }
  std::string output;
  nlohmann::json document, results;
};

/// A run that must fail, and print that.
inline void check_refused(const std::string& arguments, const std::string& why,
                          const Environment& environment = {}) {
  const Ran ran = run(arguments, environment);
  INFO(arguments << "\n" << ran.output);
  CHECK(ran.exit_code != 0);
  CHECK(contains(ran.output, why));
  CHECK_FALSE(contains(ran.output, "destroy a communicator only"));  // blames the other ranks
}

}  // namespace rondo::perf_program
