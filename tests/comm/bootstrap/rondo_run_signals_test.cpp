// What rondo-run does with each signal: the ranks get it, or the job ends with nothing left.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "tests/comm/bootstrap/rondo_run_helpers.hpp"
#include "tests/harness/terminal.hpp"

namespace rondo {
namespace {

TEST_CASE("a signal ends the job in order: ranks, their children and the directory",
          "[rondo-run]") {
  const std::pair<int, const char*> signals[] = {
      {SIGINT, "INT"},   {SIGTERM, "TERM"}, {SIGHUP, "HUP"},
      {SIGQUIT, "QUIT"}, {SIGALRM, "TERM"}, {SIGXCPU, "TERM"},
      {SIGABRT, "TERM"}, {SIGSEGV, "TERM"}, {SIGRTMIN + 3, "TERM"}};
  for (const auto& [signal, passed_on] : signals) {
    const JobDirectory place;
    INFO(strsignal(signal));
    const ProgramResult r = place.run(
        "-n 2 --max-restarts 5",
        "for s in INT TERM HUP QUIT; do trap \"echo got $s; exit 0\" $s; done; setsid sleep 1000 & "
        "echo $! >> $PLACE/pids; echo $$ >> $PLACE/pids; while :; do :; done",
        [&, number = signal](pid_t launcher) {
          place.await_pids(4);
          kill(launcher, number);
        });
    const std::string got = std::string("] got ") + passed_on;
    check_ended(r, {.exit_code = 128 + signal, .prints = {{"[0" + got, "[1" + got}}});
    place.require_nothing_left(4);
  }
}

TEST_CASE("SIGUSR1 and SIGUSR2 reach the ranks, and the job goes on", "[rondo-run]") {
  const JobDirectory place;
  // The second signal is sent once both ranks have had the first.
  const ProgramResult r =
      place.run("-n 2",
                "trap 'echo one; echo >>$PLACE/one' USR1; trap 'echo two; exit 0' USR2; "
                "echo $$ >> $PLACE/pids; while :; do :; done",
                [&](pid_t launcher) {
                  place.await_pids(2);
                  kill(launcher, SIGUSR1);
                  await([&] {
                    std::error_code none;
                    return std::filesystem::file_size(place.file("one"), none) == 2;
                  });
                  kill(launcher, SIGUSR2);
                });
  check_ended(r, {.prints = {{"[0] one", "[0] two", "[1] one", "[1] two"}},
                  .says = {"passing User defined signal 1 on to all ranks"}});
}

TEST_CASE("SIGTSTP stops ranks and rondo-run, and its time limit, until SIGCONT", "[rondo-run]") {
  const JobDirectory place;
  const std::chrono::seconds limit(8);  // also for the start, on a busy machine
  const ProgramResult r = place.run(
      "-n 2 --timeout " + std::to_string(limit.count()),
      "echo $$ >> $PLACE/pids; until [ -e $PLACE/go ]; do :; done; echo done", [&](pid_t launcher) {
        place.await_pids(2);
        kill(launcher, SIGTSTP);
        const Words all = place.pids() + Words{std::to_string(launcher)};
        await([&] { return std::all_of(all.begin(), all.end(), is_stopped); });
        const auto stopped = std::chrono::steady_clock::now();
        place.write("go", "go");
        // The limit is over, by any clock but the job's.
        await([&] { return std::chrono::steady_clock::now() - stopped > limit; });
        kill(launcher, SIGCONT);
      });
  check_ended(r, {.prints = {{"[0] done", "[1] done"}}});
}

TEST_CASE("Ctrl-Z stops rondo-run and its ranks, and fg continues them", "[rondo-run]") {
  const JobDirectory place;
  const testing::Terminal terminal;
  // A shell with job control, as a terminal has it: it continues when its job has stopped.
  place.write("session", RONDO_RUN
              " -n 2 -- sh -c 'echo $$ >>$PLACE/pids; until [ -e $PLACE/go ]; do :; done'\n"
              "echo $? >$PLACE/stopped; until [ -e $PLACE/go ]; do :; done\n"
              "fg; exit $?\n");
  const ProgramResult r =
      place.program({"sh", "-c", "exec setsid -wc bash -m $PLACE/session <$TTY >$TTY 2>&1"},
                    {"TTY=" + terminal.path()}, [&](pid_t) {
                      place.await_pids(2);
                      terminal.press("\x1a");
                      await([&] { return std::filesystem::exists(place.file("stopped")); });
                      // The ranks are sessions of their own, which the terminal does not stop.
                      const Words ranks = place.pids();
                      await([&] { return std::all_of(ranks.begin(), ranks.end(), is_stopped); });
                      place.write("go", "go");
                    });
  INFO(terminal.read());
  CHECK(r.exit_code == 0);
  CHECK(place.word_in("stopped") == std::to_string(128 + SIGTSTP));
}

TEST_CASE("Ctrl-C ends rondo-run while it waits for a host file", "[rondo-run]") {
  const JobDirectory place;
  const std::string pipe = place.file("hosts");
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  int writer = -1;
  const ProgramResult r = place.run("--hostfile " + pipe, "true", [&](pid_t launcher) {
    // Opens only when rondo-run reads.
    await([&] { return (writer = open(pipe.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC)) >= 0; });
    kill(launcher, SIGINT);
    close(writer);
  });
  check_ended(r, {.exit_code = 128 + SIGINT});
}

TEST_CASE("ranks act on a signal that rondo-run was started to ignore; nohup's stays ignored",
          "[rondo-run]") {
  const JobDirectory place;
  const auto run_ignoring = [&](const std::string& signal, const std::string& script) {
    return place.program(
        {"sh", "-c",
         "trap '' " + signal + "; exec " RONDO_RUN " --timeout 30 -n 1 -- sh -c '" + script + "'"});
  };
  // As sh -c 'rondo-run ... &' has it.
  check_ended(
      run_ignoring("INT",
                   "trap \"echo got it; exit\" INT; kill -INT $PPID; while :; do sleep 0.1; done"),
      {.exit_code = 128 + SIGINT, .prints = {{"[0] got it"}}});
  check_ended(run_ignoring("HUP", "kill -HUP $PPID; kill -HUP $$; sleep 1; echo lives"),
              {.prints = {{"[0] lives"}}});
}

TEST_CASE("after Ctrl-C a rank may end what it does, until the next one kills it", "[rondo-run]") {
  for (const bool again : {false, true}) {
    const JobDirectory place;
    // Longer than after any other signal; the second time for ever.
    const std::string ending = again ? "sleep 1000" : "sleep 6";
    const ProgramResult r = place.run("-n 1",
                                      "trap 'echo $$ >> $PLACE/pids; " + ending +
                                          "; echo ended; exit 0' INT; echo $$ >> $PLACE/pids; "
                                          "while :; do :; done",
                                      [&](pid_t launcher) {
                                        place.await_pids(1);
                                        kill(launcher, SIGINT);
                                        place.await_pids(2);
                                        if (again) kill(launcher, SIGINT);
                                      });
    check_ended(r, {.exit_code = 128 + SIGINT, .prints = again ? Words{} : Words{"[0] ended"}});
    place.require_nothing_left(2);
  }
}

}  // namespace
}  // namespace rondo
