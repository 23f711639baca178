// A host's rondo-run (--serve) that cannot go on, because of what the other end sends: it ends, with
// everything that its ranks have started.
#include <signal.h>
#include <unistd.h>

#include <map>
#include <new>
#include <set>

#include "comm/launch/frames.hpp"
#include "comm/launch/local_job.hpp"
#include "comm/launch/signals.hpp"
#include "tests/comm/bootstrap/rondo_run_helpers.hpp"

namespace rondo::run {
namespace {

/// Sends `last` once a rank has started a process that leads a session of its own.
void check_nothing_is_left_after(const std::string& last, const std::string& reason) {
  const JobDirectory place;
  const JobOptions job{
      .ranks = 1,
      .command = {"sh", "-c",
                  "setsid sleep 1000 & echo $! >$PLACE/new; mv $PLACE/new $PLACE/pids; wait"},
      .deadline = {},
      .part = JobPart{}};
  const Preparation preparation{.directory = place.path(), .environment = {}, .reserve_for = {}};
  place.write("first", greeting() + pack(RunMessage::kPrepare, encode(preparation)) +
                           pack(RunMessage::kStart, encode(job)));
  place.write("last", last);
  // The end of its stdin, which would end it too, comes later: when it has ended.
  const ProgramResult ran =
      place.program({"sh", "-c",
                     "mkfifo $PLACE/in; " RONDO_RUN
                     " --serve <$PLACE/in & serve=$!; exec 3>$PLACE/in; cat $PLACE/first >&3; "
                     "until [ -e $PLACE/pids ]; do :; done; cat $PLACE/last >&3; wait $serve"});
  INFO(ran.out << ran.err);
  CHECK_FALSE(ran.timed_out);
  CHECK(ran.exit_code == kLauncherExit);
  CHECK(contains(ran.out, reason));
  place.require_nothing_left(1);
}

TEST_CASE("an unknown signal or too long a frame leaves nothing", "[hosts]") {
  for (const char* signal : {"soon", "", "9x", "99999999999", "0", "-1"}) {
    INFO(signal);
    check_nothing_is_left_after(pack(RunMessage::kSignal, signal), "as the number of a signal");
  }
  check_nothing_is_left_after(
      std::string(1, static_cast<char>(RunMessage::kStop)) + "\xff\xff\xff\xff",
      "a frame of 4294967295 bytes");
}

/// Fails when it is asked to print, as for want of memory.
class FailingConsole final : public Console {
 public:
  void print(int, int, std::string_view) override { throw std::bad_alloc(); }
  void close(int, int) override {}
  void report(const RankFailure&) override {}
  bool is_full(int) const override { return false; }
  void watch(std::vector<pollfd>&) const override {}
  void serve(std::span<const pollfd>) override {}
  std::optional<Time> next() const override { return std::nullopt; }
  void turn(Time) override {}
  void finish() override {}
  bool has_work() const override { return false; }
};

TEST_CASE("every signal that can be caught has a use", "[hosts]") {
  testing::require_all_ok(testing::run_ranks(testing::How::kForks, 1, [&](int) {
    for (int signal = 1; signal <= SIGRTMAX; ++signal) ::signal(signal, SIG_DFL);
    const sigset_t handled = handled_signals();
    std::map<SignalUse, std::set<int>> signals;
    for (int signal = 1; signal <= SIGRTMAX; ++signal) {
      if (signal >= 32 && signal < SIGRTMIN) continue;  // the C library's
      const bool is_left_out =
          signal == SIGKILL || signal == SIGSTOP || signal == SIGPIPE || signal == SIGURG;
      testing::expect_eq(sigismember(&handled, signal), is_left_out ? 0 : 1,
                         "signal " + std::to_string(signal));
      signals[use_of(signal)].insert(signal);
    }
    testing::expect(signals[SignalUse::kChild] == std::set{SIGCHLD}, "ends of children");
    testing::expect(signals[SignalUse::kForward] == std::set{SIGUSR1, SIGUSR2, SIGWINCH, SIGCONT},
                    "forwarded");
    testing::expect(signals[SignalUse::kPause] == std::set{SIGTSTP, SIGTTIN, SIGTTOU}, "pauses");
  }));
}

TEST_CASE("an exception in the middle of a job leaves nothing", "[hosts]") {
  const JobDirectory place;
  testing::require_all_ok(testing::run_ranks(testing::How::kForks, 1, [&](int) {
    setenv("XDG_RUNTIME_DIR", place.path().c_str(), 1);
    prepare_process();
    FailingConsole console;
    bool failed = false;
    try {
      (void)run_job({.ranks = 2,
                     .command = {"sh", "-c", "setsid sleep 1000 & echo hello; wait"},
                     .deadline = {},
                     .part = {}},
                    console);
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    testing::expect(failed, "the exception is the caller's");
    // Those that were adopted too.
    const std::string own = std::to_string(getpid());
    std::string child;
    std::ifstream("/proc/" + own + "/task/" + own + "/children") >> child;
    testing::expect(child.empty(), "process " + child + " is left");
  }));
  place.require_no_directory_left();
}

}  // namespace
}  // namespace rondo::run
