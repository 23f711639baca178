// A host's rondo-run (--serve) that cannot go on, because of what the other end sends: it ends, with
// everything that its ranks have started.
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <new>

#include "comm/launch/frames.hpp"
#include "comm/launch/local_job.hpp"
#include "comm/launch/signals.hpp"
#include "tests/harness/catch.hpp"
#include "tests/harness/rank_group.hpp"

namespace rondo::run {
namespace {

using testing::TempDirectory;

bool is_running(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/stat");
  std::string stat;
  std::getline(file, stat);
  const size_t name_end = stat.rfind(')');
  return name_end != std::string::npos && stat[name_end + 2] != 'Z';
}

/// Sends `last` once a rank has started a process that leads a session of its own.
void check_nothing_is_left_after(const std::string& last, const std::string& reason) {
  const TempDirectory place;
  const JobOptions job{
      .ranks = 1,
      .command = {"sh", "-c",
                  "setsid sleep 1000 & echo $! >$PLACE/new; mv $PLACE/new $PLACE/pid; wait"},
      .deadline = {},
      .part = JobPart{}};
  std::ofstream(place.path() + "/first", std::ios::binary)
      << greeting()
      << pack(RunMessage::kPrepare,
              to_json(Preparation{.directory = place.path(), .environment = {}, .reserve_for = {}}))
      << pack(RunMessage::kStart, to_json(job));
  std::ofstream(place.path() + "/last", std::ios::binary) << last;
  // The end of its stdin, which would end it too, comes later: when it has ended.
  const std::string shell =
      "mkfifo $PLACE/in; " RONDO_RUN
      " --serve <$PLACE/in >$PLACE/out & serve=$!; exec 3>$PLACE/in; cat $PLACE/first >&3; "
      "until [ -e $PLACE/pid ]; do :; done; cat $PLACE/last >&3; wait $serve";
  const auto ran = testing::run_program(
      {"sh", "-c", shell}, {"PLACE=" + place.path(), "XDG_RUNTIME_DIR=" + place.path()},
      std::chrono::seconds(30));
  std::ifstream out(place.path() + "/out");
  const std::string said{std::istreambuf_iterator<char>(out), {}};
  INFO(said << ran.err);
  CHECK_FALSE(ran.timed_out);
  CHECK(ran.exit_code == kLauncherExit);
  CHECK(said.find(reason) != std::string::npos);
  std::string pid;
  std::ifstream(place.path() + "/pid") >> pid;
  REQUIRE_FALSE(pid.empty());
  CHECK_FALSE(is_running(pid));
  for (const auto& entry : std::filesystem::directory_iterator(place.path())) {
    CHECK(entry.path().filename().string().find("rondo-run") == std::string::npos);
  }
}

TEST_CASE("after a signal that is none nothing is left", "[hosts]") {
  for (const char* signal : {"soon", "", "9x", "99999999999", "0", "-1"}) {
    INFO(signal);
    check_nothing_is_left_after(pack(RunMessage::kSignal, signal), "as the number of a signal");
  }
}

TEST_CASE("after a frame beyond the limit nothing is left", "[hosts]") {
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
    for (int signal = 1; signal <= SIGRTMAX; ++signal) {
      if (signal >= 32 && signal < SIGRTMIN) continue;  // the C library's
      const bool is_left_out =
          signal == SIGKILL || signal == SIGSTOP || signal == SIGPIPE || signal == SIGURG;
      testing::expect_eq(sigismember(&handled, signal), is_left_out ? 0 : 1,
                         "signal " + std::to_string(signal));
      SignalUse use = SignalUse::kEnd;
      if (signal == SIGCHLD) use = SignalUse::kChild;
      for (const int passed : {SIGUSR1, SIGUSR2, SIGWINCH, SIGCONT}) {
        if (signal == passed) use = SignalUse::kForward;
      }
      for (const int pausing : {SIGTSTP, SIGTTIN, SIGTTOU}) {
        if (signal == pausing) use = SignalUse::kPause;
      }
      testing::expect(use_of(signal) == use, "the use of signal " + std::to_string(signal));
    }
  }));
}

TEST_CASE("an exception in the middle of a job leaves nothing", "[hosts]") {
  const TempDirectory place;
  testing::require_all_ok(testing::run_ranks(testing::How::kForks, 1, [&](int) {
    setenv("PLACE", place.path().c_str(), 1);
    setenv("XDG_RUNTIME_DIR", place.path().c_str(), 1);
    prepare_process();
    FailingConsole console;
    bool failed = false;
    try {
      (void)run_job({.ranks = 2,
                     .command = {"sh", "-c",
                                 "setsid sleep 1000 & echo $! >$PLACE/pid$RANK; echo hello; wait"},
                     .deadline = {},
                     .part = {}},
                    console);
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    testing::expect(failed, "the exception is the caller's");
    // Those that were adopted too.
    std::ifstream children("/proc/" + std::to_string(getpid()) + "/task/" +
                           std::to_string(getpid()) + "/children");
    std::string child;
    children >> child;
    testing::expect(child.empty(), "process " + child + " is left");
  }));
  for (const auto& entry : std::filesystem::directory_iterator(place.path())) {
    CHECK(entry.path().filename().string().find("rondo-run") == std::string::npos);
  }
}

}  // namespace
}  // namespace rondo::run
