// rondo-run as its tests start it, with a shell as the ranks' program.
#pragma once

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/harness/catch.hpp"
#include "tests/harness/rank_group.hpp"

namespace rondo {

using testing::ProgramResult;
using testing::run_program;
using testing::TempDirectory;
using Words = std::vector<std::string>;

inline Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline Words split(const std::string& text, char separator) {
  Words parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

inline Words sorted_lines(const std::string& text) {
  Words lines = split(text, '\n');
  std::sort(lines.begin(), lines.end());
  return lines;
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Waits for a condition, at most 30 s.
inline void await(const std::function<bool()>& condition) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) FAIL("what is awaited does not happen");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the ranks need the CPUs
  }
}

/// As ps shows it: 'R', 'S', 'T' for stopped, 'Z' for a zombie; '\0': there is no such process.
inline char state_of_process(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/stat");
  std::string stat;
  std::getline(file, stat);
  const size_t name_end = stat.rfind(')');
  return name_end == std::string::npos ? '\0' : stat[name_end + 2];
}

inline bool is_stopped(const std::string& pid) { return state_of_process(pid) == 'T'; }

inline bool is_running(const std::string& pid) {
  const char state = state_of_process(pid);
  return state != '\0' && state != 'Z';
}

/// How a rondo-run, or another program, has to end.
struct Ended {
  int exit_code = 0;
  std::optional<Words> prints{};  // the lines of stdout, sorted
  Words says{};                   // parts of stderr
};

inline void check_ended(const ProgramResult& ran, const Ended& wanted) {
  INFO(ran.out.substr(0, 3000) << ran.err.substr(0, 3000));
  CHECK(ran.exit_code == wanted.exit_code);
  if (wanted.prints) CHECK(sorted_lines(ran.out) == *wanted.prints);
  for (const std::string& part : wanted.says) {
    INFO("looking for: " << part);
    CHECK(contains(ran.err, part));
  }
}

/// A directory in which rondo-run makes its rendezvous directory, and $PLACE of the ranks.
class JobDirectory {
 public:
  const std::string& path() const { return directory_.path(); }
  std::string file(const std::string& name) const { return path() + "/" + name; }
  /// The first word of a file; empty without one.
  std::string word_in(const std::string& name) const {
    std::string word;
    std::ifstream(file(name)) >> word;
    return word;
  }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(file(name), std::ios::binary) << text;
  }
  std::string write_program(const std::string& name, const std::string& script) const {
    write(name, "#!/bin/sh\n" + script);
    std::filesystem::permissions(file(name), std::filesystem::perms::owner_all);
    return file(name);
  }

  /// rondo-run with `flags`, separated by spaces, then sh -c `script`.
  ProgramResult run(const std::string& flags, const std::string& script,
                    const std::function<void(pid_t)>& started = {}) const {
    return program(Words{RONDO_RUN} + split(flags, ' ') + Words{"--", "sh", "-c", script}, {},
                   started);
  }
  ProgramResult program(const Words& words, const Words& variables = {},
                        const std::function<void(pid_t)>& started = {}) const {
    return run_program(words, Words{"XDG_RUNTIME_DIR=" + path(), "PLACE=" + path()} + variables,
                       std::chrono::seconds(60), started);
  }

  /// Those that ranks wrote into $PLACE/pids.
  Words pids() const {
    std::ifstream file(path() + "/pids");
    Words pids;
    for (std::string pid; file >> pid;) pids.push_back(pid);
    return pids;
  }
  void await_pids(size_t count) const {
    await([&] { return pids().size() >= count; });
  }
  void require_no_directory_left() const {
    for (const auto& entry : std::filesystem::directory_iterator(path())) {
      INFO(entry.path());
      REQUIRE_FALSE(contains(entry.path(), "rondo-run"));
    }
  }
  void require_nothing_left() const {
    for (const std::string& pid : pids()) {
      INFO("pid " << pid);
      REQUIRE_FALSE(is_running(pid));
    }
    require_no_directory_left();
  }
  void require_nothing_left(size_t processes) const {
    REQUIRE(pids().size() == processes);
    require_nothing_left();
  }

 private:
  TempDirectory directory_;
};

}  // namespace rondo
