// Tests with several ranks: as threads of the test process, or as forked processes that a test can
// kill at a known point. Every group has a wall-clock limit; nothing that it started outlives it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace rondo::testing {

enum class How { kThreads, kForks };

struct RankResult {
  int rank = 0;
  bool ok = false;
  int signal = 0;  // that ended the process; 0: none
  int exit_code = 0;
  std::string message;  // of expect() or an exception, or why the harness ended the rank
  double seconds = 0;   // from the start of the group to this rank's end
};

/// Fails the rank that calls it, by throwing. For bodies of ranks; the test's own thread uses
/// Catch2's macros.
void expect(bool condition, const std::string& message);

inline void expect_contains(const std::string& text, const std::string& part) {
  expect(text.find(part) != std::string::npos, "'" + text + "' does not say '" + part + "'");
}

/// As expect(), showing both values.
template <class A, class B>
void expect_eq(const A& actual, const B& expected, const std::string& what) {
  if (actual == expected) return;
  std::ostringstream text;
  text << what << ": is " << actual << ", should be " << expected;
  expect(false, text.str());
}

/// Runs body(rank) for ranks 0..n-1 concurrently and waits. A forked rank is killed at the limit.
/// Threads cannot be: the process prints the hanging ranks and aborts. Call forks before the
/// process has other threads.
std::vector<RankResult> run_ranks(How how, int n, const std::function<void(int rank)>& body,
                                  std::chrono::seconds limit = std::chrono::seconds{60});

/// Asserts, in the test's thread, that every rank is ok, showing those that are not.
void require_all_ok(const std::vector<RankResult>& results);

/// A forked rank's channel to its test.
class Link {
 public:
  /// Announces an event: ForkGang::await(rank, event) returns.
  void announce(const std::string& event);
  /// Blocks until ForkGang::tell(rank, word); fails the rank on another word, or if none comes
  /// before the test ends.
  void await(const std::string& word);

 private:
  friend class ForkGang;
  explicit Link(int fd) : fd_(fd) {}
  int fd_;
};

/// Forked ranks that run while the test goes on:
///   ForkGang gang(3, [](int rank, Link& link) { ...; link.announce("ready"); ... });
///   gang.await(2, "ready"); gang.kill(2, SIGKILL); auto results = gang.join();
class ForkGang {
 public:
  using Body = std::function<void(int rank, Link& link)>;
  ForkGang(int n, const Body& body, std::chrono::seconds limit = std::chrono::seconds{60});
  /// Kills the ranks that still run.
  ~ForkGang();
  ForkGang(const ForkGang&) = delete;
  ForkGang& operator=(const ForkGang&) = delete;

  /// Waits until `rank` has announced `event`; throws if the rank ends first, or at the limit.
  void await(int rank, const std::string& event);
  /// Waits until `rank` has ended, after being killed or failing; throws at the limit.
  void await_end(int rank);
  void tell(int rank, const std::string& word);
  /// SIGKILL, SIGSTOP, SIGCONT, ...
  void kill(int rank, int signal);
  pid_t pid(int rank) const;
  /// Seconds since the ranks were started, the clock of RankResult::seconds.
  double seconds() const;
  /// Waits for all ranks, at most until the limit; ranks still alive then are killed and reported.
  /// Call once.
  std::vector<RankResult> join();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A new empty directory with mode 0700, removed with everything in it at the end.
class TempDirectory {
 public:
  TempDirectory();
  ~TempDirectory();
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct ProgramResult {
  int exit_code = -1;  // 128 + signal when a signal ended it
  bool timed_out = false;
  std::string out, err;
};

/// Runs argv (argv[0] searched in PATH) with `environment` ("NAME=value", or "NAME" to remove one)
/// on top of the test's own; its whole process group is killed at the limit. `started`, if given,
/// is called once with the pid after it has started.
ProgramResult run_program(const std::vector<std::string>& argv,
                          const std::vector<std::string>& environment = {},
                          std::chrono::seconds limit = std::chrono::seconds{60},
                          const std::function<void(pid_t)>& started = {});

}  // namespace rondo::testing
