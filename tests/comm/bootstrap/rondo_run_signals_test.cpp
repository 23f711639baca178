// What rondo-run does with each signal: the ranks get it, or the job ends with nothing left.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

#include "tests/comm/bootstrap/rondo_run_helpers.hpp"
#include "tests/harness/catch.hpp"
#include "tests/harness/rank_group.hpp"
#include "tests/harness/terminal.hpp"

namespace rondo {
namespace {

TEST_CASE("signals reach the ranks and are the exit code", "[rondo-run]") {
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
    TempDirectory place;
    auto r = run(place, {"-n", "2", "--max-restarts", "5"},
                 "trap 'echo got it; exit 0' INT TERM HUP; echo $$ >> $PLACE/pids; "
                 "while :; do :; done",
                 [&](pid_t launcher) {
                   const auto start = std::chrono::steady_clock::now();
                   while (written_pids(place).size() < 2) {
                     REQUIRE(std::chrono::steady_clock::now() - start < std::chrono::seconds(30));
                   }
                   kill(launcher, signal);
                 });
    INFO(r.err);
    REQUIRE(r.exit_code == 128 + signal);
    REQUIRE(sorted_lines(r.out) == std::vector<std::string>{"[0] got it", "[1] got it"});
    require_nothing_left(place, 2);
  }
}

/// Waits for a condition, at most 30 s.
void await(const std::function<bool()>& condition) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!condition()) REQUIRE(std::chrono::steady_clock::now() < until);
}

bool is_stopped(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/stat");
  std::string stat;
  std::getline(file, stat);
  return contains(stat, ") T ");
}

TEST_CASE("any other signal ends the job in order: ranks, their children and the directory",
          "[rondo-run]") {
  for (const int signal : {SIGQUIT, SIGALRM, SIGXCPU, SIGABRT, SIGSEGV, SIGRTMIN + 3}) {
    TempDirectory place;
    auto r = run(place, {"-n", "2", "--max-restarts", "5"},
                 "trap 'echo got it; exit 0' TERM QUIT; setsid sleep 1000 & "
                 "echo $! >> $PLACE/pids; echo $$ >> $PLACE/pids; while :; do :; done",
                 [&](pid_t launcher) {
                   await([&] { return written_pids(place).size() == 4; });
                   kill(launcher, signal);
                 });
    INFO(strsignal(signal) << ": " << r.err);
    CHECK(r.exit_code == 128 + signal);
    CHECK(sorted_lines(r.out) == std::vector<std::string>{"[0] got it", "[1] got it"});
    require_nothing_left(place, 4);
  }
}

TEST_CASE("SIGUSR1 and SIGUSR2 reach the ranks, and the job goes on", "[rondo-run]") {
  TempDirectory place;
  // The second signal is sent once both ranks have had the first.
  auto r = run(place, {"-n", "2"},
               "trap 'echo one; echo >>$PLACE/one' USR1; trap 'echo two; exit 0' USR2; "
               "echo $$ >> $PLACE/pids; while :; do :; done",
               [&](pid_t launcher) {
                 await([&] { return written_pids(place).size() == 2; });
                 kill(launcher, SIGUSR1);
                 await([&] {
                   std::error_code none;
                   return std::filesystem::file_size(place.path() + "/one", none) == 2;
                 });
                 kill(launcher, SIGUSR2);
               });
  INFO(r.err);
  CHECK(r.exit_code == 0);
  CHECK(sorted_lines(r.out) ==
        std::vector<std::string>{"[0] one", "[0] two", "[1] one", "[1] two"});
  CHECK(contains(r.err, "passing User defined signal 1 on to all ranks"));
}

TEST_CASE("SIGTSTP stops ranks and rondo-run, and its time limit, until SIGCONT", "[rondo-run]") {
  TempDirectory place;
  const std::chrono::seconds limit(8);  // also for the start, on a busy machine
  auto r = run(place, {"-n", "2", "--timeout", std::to_string(limit.count())},
               "echo $$ >> $PLACE/pids; until [ -e $PLACE/go ]; do :; done; echo done",
               [&](pid_t launcher) {
                 await([&] { return written_pids(place).size() == 2; });
                 kill(launcher, SIGTSTP);
                 auto all = written_pids(place);
                 all.push_back(std::to_string(launcher));
                 await([&] { return std::all_of(all.begin(), all.end(), is_stopped); });
                 const auto stopped = std::chrono::steady_clock::now();
                 std::ofstream(place.path() + "/go") << "go";
                 // The limit is over, by any clock but the job's.
                 await([&] { return std::chrono::steady_clock::now() - stopped > limit; });
                 kill(launcher, SIGCONT);
               });
  INFO(r.err);
  CHECK(r.exit_code == 0);
  CHECK(sorted_lines(r.out) == std::vector<std::string>{"[0] done", "[1] done"});
}

TEST_CASE("Ctrl-Z stops rondo-run and its ranks, and fg continues them", "[rondo-run]") {
  const TempDirectory place;
  const testing::Terminal terminal;
  // A shell with job control, as a terminal has it: it continues when its job has stopped.
  std::ofstream(place.path() + "/session") << RONDO_RUN
      " -n 2 -- sh -c 'echo $$ >>$PLACE/pids; until [ -e $PLACE/go ]; do :; done'\n"
      "echo $? >$PLACE/stopped; until [ -e $PLACE/go ]; do :; done\n"
      "fg; exit $?\n";
  const auto r = run_program(
      {"sh", "-c", "exec setsid -wc bash -m $PLACE/session <$TTY >$TTY 2>&1"},
      {"XDG_RUNTIME_DIR=" + place.path(), "PLACE=" + place.path(), "TTY=" + terminal.path()},
      std::chrono::seconds(60), [&](pid_t) {
        await([&] { return written_pids(place).size() == 2; });
        terminal.press("\x1a");
        await([&] { return std::filesystem::exists(place.path() + "/stopped"); });
        // The ranks are sessions of their own, which the terminal does not stop.
        const auto ranks = written_pids(place);
        await([&] { return std::all_of(ranks.begin(), ranks.end(), is_stopped); });
        std::ofstream(place.path() + "/go") << "go";
      });
  INFO(terminal.read());
  CHECK(r.exit_code == 0);
  int stopped = 0;
  std::ifstream(place.path() + "/stopped") >> stopped;
  CHECK(stopped == 128 + SIGTSTP);
}

TEST_CASE("Ctrl-C ends rondo-run while it waits for a host file", "[rondo-run]") {
  const TempDirectory place;
  const std::string pipe = place.path() + "/hosts";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  int writer = -1;
  const ProgramResult r = run(place, {"--hostfile", pipe}, "true", [&](pid_t launcher) {
    // Opens only when rondo-run reads.
    await([&] { return (writer = open(pipe.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC)) >= 0; });
    kill(launcher, SIGINT);
    close(writer);
  });
  INFO(r.err);
  CHECK(r.exit_code == 128 + SIGINT);
}

TEST_CASE("ranks act on a signal that rondo-run was started to ignore; nohup's stays ignored",
          "[rondo-run]") {
  const TempDirectory place;
  const auto run_ignoring = [&](const std::string& signal, const std::string& script) {
    const std::string all =
        "trap '' " + signal + "; exec " RONDO_RUN " --timeout 30 -n 1 -- sh -c '" + script + "'";
    return run_program({"sh", "-c", all}, {"XDG_RUNTIME_DIR=" + place.path()});
  };
  // As sh -c 'rondo-run ... &' has it.
  const auto interrupted = run_ignoring(
      "INT", "trap \"echo got it; exit\" INT; kill -INT $PPID; while :; do sleep 0.1; done");
  INFO(interrupted.err);
  CHECK(interrupted.out == "[0] got it\n");
  CHECK(interrupted.exit_code == 128 + SIGINT);
  const auto hung_up = run_ignoring("HUP", "kill -HUP $PPID; kill -HUP $$; sleep 1; echo lives");
  INFO(hung_up.err);
  CHECK(hung_up.exit_code == 0);
  CHECK(hung_up.out == "[0] lives\n");
}

TEST_CASE("after Ctrl-C a rank may end what it does, until the next one kills it", "[rondo-run]") {
  for (const bool again : {false, true}) {
    TempDirectory place;
    const auto await_lines = [&place](size_t count) {
      const auto start = std::chrono::steady_clock::now();
      while (written_pids(place).size() < count) {
        REQUIRE(std::chrono::steady_clock::now() - start < std::chrono::seconds(30));
      }
    };
    // Longer than after any other signal; the second time for ever.
    const std::string ending = again ? "sleep 1000" : "sleep 6";
    const auto r = run(place, {"-n", "1"},
                       "trap 'echo $$ >> $PLACE/pids; " + ending +
                           "; echo ended; exit 0' INT; echo $$ >> $PLACE/pids; while :; do :; done",
                       [&](pid_t launcher) {
                         await_lines(1);
                         kill(launcher, SIGINT);
                         await_lines(2);
                         if (again) kill(launcher, SIGINT);
                       });
    INFO(r.err);
    CHECK(r.exit_code == 128 + SIGINT);
    CHECK(contains(r.out, "[0] ended") == !again);
    require_nothing_left(place, 2);
  }
}

}  // namespace
}  // namespace rondo
