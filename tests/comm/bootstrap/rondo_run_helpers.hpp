// rondo-run as its tests start it, with a shell as the ranks' program.
#pragma once

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "tests/harness/catch.hpp"
#include "tests/harness/rank_group.hpp"

namespace rondo {

using testing::ProgramResult;
using testing::run_program;
using testing::TempDirectory;

/// rondo-run with `flags`, then sh -c `script`; its rendezvous directory is made in `place`.
inline ProgramResult run(const TempDirectory& place, std::vector<std::string> flags,
                         const std::string& script,
                         const std::function<void(pid_t)>& started = {}) {
  std::vector<std::string> argv{RONDO_RUN};
  argv.insert(argv.end(), flags.begin(), flags.end());
  argv.insert(argv.end(), {"--", "sh", "-c", script});
  return run_program(argv, {"XDG_RUNTIME_DIR=" + place.path(), "PLACE=" + place.path()},
                     std::chrono::seconds(60), started);
}

inline std::vector<std::string> sorted_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Whether a process with this id is there and no zombie.
inline bool is_running(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/stat");
  std::string stat;
  std::getline(file, stat);
  const size_t name_end = stat.rfind(')');
  return name_end != std::string::npos && stat[name_end + 2] != 'Z';
}

/// The pids that ranks wrote into `place`/pids.
inline std::vector<std::string> written_pids(const TempDirectory& place) {
  std::ifstream file(place.path() + "/pids");
  std::vector<std::string> pids;
  for (std::string pid; file >> pid;) pids.push_back(pid);
  return pids;
}

inline void require_nothing_left(const TempDirectory& place, size_t processes) {
  const auto pids = written_pids(place);
  REQUIRE(pids.size() == processes);
  for (const std::string& pid : pids) {
    INFO("pid " << pid);
    REQUIRE_FALSE(is_running(pid));
  }
  for (const auto& entry : std::filesystem::directory_iterator(place.path())) {
    INFO(entry.path());
    REQUIRE_FALSE(contains(entry.path(), "rondo-run"));
  }
}

}  // namespace rondo
