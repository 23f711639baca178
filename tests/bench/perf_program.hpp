// rondo-perf from a test's command line, and what it wrote.
#pragma once

#include <sys/wait.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/harness/catch.hpp"
#include "tests/harness/rank_group.hpp"

namespace rondo::perf_program {

struct Ran {
  int exit_code;
  std::string output;
};

inline Ran run_this(const std::string& program, const std::string& arguments) {
  // What the arguments redirect stays so: they come after.
  const std::string command = "'" + program + "' 2>&1 " + arguments;
  std::FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string output;
  char piece[4096];
  for (size_t size; (size = std::fread(piece, 1, sizeof(piece), pipe)) > 0;)
    output.append(piece, size);
  const int wait_status = pclose(pipe);
  return {.exit_code = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128, .output = output};
}

inline Ran run(const std::string& arguments) { return run_this(RONDO_PERF, arguments); }

/// A file for --json.
class TemporaryJson {
 public:
  std::string path() const { return directory_.path() + "/result.json"; }
  nlohmann::json read() const { return nlohmann::json::parse(std::ifstream(path())); }
  /// null while there is nothing yet.
  nlohmann::json read_or_null() const {
    return nlohmann::json::parse(std::ifstream(path()), nullptr, false).is_discarded()
               ? nlohmann::json(nullptr)
               : read();
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

}  // namespace rondo::perf_program
