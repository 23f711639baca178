// rondo-run over several hosts, from the outside: environment, output, exit codes, and that nothing
// outlives it on any host, whatever is killed.
#include "tests/harness/hosts.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "tests/comm/launch/announcements.hpp"
#include "tests/harness/catch.hpp"
#include "tests/harness/rank_group.hpp"

namespace rondo {
namespace {

using testing::ProgramResult;
using testing::run_program;

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

/// Variables that a test's own launcher may have set, and one that other hosts must not get.
std::vector<std::string> environment(const TempDirectory& place) {
  return {"RANK",
          "WORLD_SIZE",
          "RONDO_RENDEZVOUS",
          "RONDO_INTERFACE",
          "RONDO_PORTS",
          "DISPLAY=:7",
          "PLACE=" + place.path(),
          "BYTES=a\xff\xc3\xa9'\"\n$",
          "RONDO_SECRET=outer"};
}

/// rondo-run with `flags` on `hosts`, from outside of them, then sh -c `script`.
ProgramResult run(const Hosts& hosts, const TempDirectory& place, std::vector<std::string> flags,
                  const std::string& script, const std::function<void(pid_t)>& started = {}) {
  std::vector<std::string> argv{RONDO_RUN, "--agent", joined(hosts.agent())};
  argv.insert(argv.end(), flags.begin(), flags.end());
  argv.insert(argv.end(), {"--", "sh", "-c", script});
  return run_program(argv, environment(place), std::chrono::seconds(60), started);
}

std::vector<std::string> sorted_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// A rondo-run in the background, whose ranks announce themselves after they have set `traps`. `result`
/// is there after end().
class Background {
 public:
  Background(const Hosts& hosts, const TempDirectory& place, std::vector<std::string> flags,
             const std::string& script, const std::string& traps = "")
      : announcements_(place), thread_([this, &hosts, &place, flags, script, traps] {
          result_ = run(hosts, place, flags, traps + Announcements::script() + script,
                        [this](pid_t pid) { pid_ = pid; });
        }) {}
  ~Background() {
    if (thread_.joinable()) thread_.join();
  }
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  void await_ranks(int ranks) { announcements_.await(ranks); }
  pid_t pid() const { return pid_; }
  const ProgramResult& end() {
    if (thread_.joinable()) thread_.join();
    return result_;
  }

 private:
  Announcements announcements_;
  std::atomic<pid_t> pid_ = -1;
  ProgramResult result_;
  std::thread thread_;
};

/// The process of `host` whose command line holds `word`.
pid_t find_process(const Hosts& hosts, int host, const std::string& word) {
  for (const pid_t pid : hosts.processes(host)) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline");
    std::string line;
    std::getline(file, line);
    if (contains(line, word)) return pid;
  }
  FAIL("no process with " << word);
  return -1;
}

TEST_CASE("every rank of every host gets its environment", "[hosts]") {
  const Hosts hosts(3);
  const TempDirectory place;
  const ProgramResult r =
      run(hosts, place, {"--hosts", "10.77.0.1:2,h1,fd77::3", "-n", "1"},
          "[ ${#RONDO_SECRET} = 64 ] && [ -z \"$DISPLAY\" ] && [ $MASTER_PORT -gt 0 ] && "
          "[ \"$BYTES\" = \"$(printf 'a\\377\\303\\251'\"'\"'\"\\n$')\" ] && "
          "case $RONDO_RENDEZVOUS in tcp://10.77.0.1:*) ;; *) exit 1 ;; esac && "
          "[ $RONDO_RENDEZVOUS != tcp://10.77.0.1:$MASTER_PORT ] && "
          "echo $(hostname) $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK "
          "$GROUP_WORLD_SIZE $MASTER_ADDR $RONDO_RESTART_COUNT $(pwd)");
  INFO(r.err);
  REQUIRE(r.exit_code == 0);
  const std::string here = std::filesystem::current_path().string();
  CHECK(sorted_lines(r.out) == std::vector<std::string>{"[0] h0 0 4 0 2 0 3 10.77.0.1 0 " + here,
                                                        "[1] h0 1 4 1 2 0 3 10.77.0.1 0 " + here,
                                                        "[2] h1 2 4 0 1 1 3 10.77.0.1 0 " + here,
                                                        "[3] h2 3 4 0 1 2 3 10.77.0.1 0 " + here});
}

TEST_CASE("rank 0's address and ports", "[hosts]") {
  const Hosts hosts(2, 2);
  const TempDirectory place;
  const auto address = [&](std::vector<std::string> flags, const std::string& variable) {
    flags.push_back("--no-prefix");
    std::vector<std::string> argv{RONDO_RUN, "--agent", joined(hosts.agent())};
    argv.insert(argv.end(), flags.begin(), flags.end());
    argv.insert(argv.end(), {"--", "sh", "-c", "[ $RANK = 1 ] || echo $MASTER_ADDR"});
    std::vector<std::string> variables = environment(place);
    if (!variable.empty()) variables.push_back(variable);
    std::erase(variables, variable.substr(0, variable.find('=')));
    const ProgramResult r = run_program(argv, variables);
    INFO(r.err);
    CHECK(r.exit_code == 0);
    return r.out;
  };
  CHECK(address({"--hosts", "h0,h1"}, "") == "10.77.0.1\n");  // h0 itself has it as 127.0.1.1
  CHECK(address({"--hosts", "fd77::1,fd77::2"}, "") == "fd77::1\n");
  CHECK(address({"--hosts", "10.78.0.1,h1"}, "") == "10.78.0.1\n");
  CHECK(address({"--hosts", "h0,h1", "--rendezvous", "fd78::1"}, "") == "fd78::1\n");
  CHECK(address({"--hosts", "h0,h1"}, "RONDO_INTERFACE=eth1") == "10.78.0.1\n");
  CHECK(address({"--hosts", "h0"}, "") == "127.0.0.1\n");

  std::vector<std::string> argv{
      RONDO_RUN, "--agent", joined(hosts.agent()),
      "--hosts", "h0,h1",   "--",
      "sh",      "-c",      "echo $MASTER_PORT; echo ${RONDO_RENDEZVOUS##*:}"};
  std::vector<std::string> variables = environment(place);
  std::erase(variables, "RONDO_PORTS");
  variables.emplace_back("RONDO_PORTS=20000-20001");
  const ProgramResult r = run_program(argv, variables);
  INFO(r.err);
  CHECK(sorted_lines(r.out) ==
        std::vector<std::string>{"[0] 20000", "[0] 20001", "[1] 20000", "[1] 20001"});
}

TEST_CASE("a hostfile, from one of its hosts, in a directory of the user's choice", "[hosts]") {
  const Hosts hosts(2);
  const TempDirectory place;
  std::ofstream(place.path() + "/hosts") << "# two hosts\nh0 slots=2\n\nh1:1  # the other\n";
  std::ofstream(place.path() + "/program") << "#!/bin/sh\necho $RANK $(hostname)\n";
  std::filesystem::permissions(place.path() + "/program", std::filesystem::perms::owner_all);
  // h0 is this host: no agent is needed to reach it.
  const std::string agent = "sh -c 'test $1 != h0 && exec " + joined(hosts.agent()) + " \"$@\"' sh";
  const ProgramResult r =
      run_program(hosts.on(0, {RONDO_RUN, "--hostfile", place.path() + "/hosts", "--agent", agent,
                               "--chdir", place.path(), "./program"}),
                  environment(place));
  INFO(r.err);
  CHECK(r.exit_code == 0);
  CHECK(sorted_lines(r.out) == std::vector<std::string>{"[0] 0 h0", "[1] 1 h0", "[2] 2 h1"});
}

TEST_CASE("output of all hosts: streams, bytes, and lines that all ranks print once", "[hosts]") {
  const Hosts hosts(2);
  const TempDirectory place;
  const ProgramResult r = run(hosts, place, {"--hosts", "h0,h1"},
                              "printf 'a\\377b\\n'; printf 'no end'; echo the same >&2");
  INFO(r.err);
  CHECK(r.exit_code == 0);
  CHECK(sorted_lines(r.out) == std::vector<std::string>{"[0] a\xff"
                                                        "b",
                                                        "[0] no end",
                                                        "[1] a\xff"
                                                        "b",
                                                        "[1] no end"});
  CHECK(sorted_lines(r.err).size() == 2);
  CHECK(contains(r.err, "the same"));

  const ProgramResult much = run(hosts, place, {"--hosts", "h0,h1", "--no-prefix"},
                                 "i=0; while [ $i -lt 2000 ]; do echo $RANK; i=$((i + 1)); done; "
                                 "head -c 3000000 /dev/zero | tr '\\0' x");
  CHECK(much.exit_code == 0);
  CHECK(std::count(much.out.begin(), much.out.end(), '1') == 2000);
  CHECK(std::count(much.out.begin(), much.out.end(), 'x') == 6'000'000);
}

TEST_CASE("the first failure on any host stops all and gives the exit code", "[hosts]") {
  const Hosts hosts(2);
  const TempDirectory place;
  Background job(hosts, place, {"--hosts", "h0:2,h1:2"},
                 "mkfifo $PLACE/$RANK; "
                 "[ $RANK = 2 ] && read x <$PLACE/2 && exit 7; "
                 "while :; do read x <$PLACE/$RANK; done",
                 "trap 'echo stopped; exit 9' TERM; ");
  job.await_ranks(4);
  const ProcessesOnHosts processes(hosts, 2);
  CHECK(processes.size() >= 6);
  std::thread trigger([&] {
    // Opens as soon as rank 2 reads.
    run_program(
        {"sh", "-c",
         "until [ -p " + place.path() + "/2 ]; do :; done; echo go >" + place.path() + "/2"});
  });
  const ProgramResult& r = job.end();
  trigger.join();
  INFO(r.out << r.err);
  CHECK(r.exit_code == 7);
  CHECK(contains(r.err, "rank 2 exited with code 7; stopping the others"));
  processes.await_end();
}

TEST_CASE("of two failures, the rank that was killed is the first", "[hosts]") {
  const Hosts hosts(2);
  const TempDirectory place;
  const ProgramResult r = run(
      hosts, place, {"--hosts", "h0,h1"},
      "if [ $RANK = 0 ]; then echo $$ >$PLACE/pid.new; mv $PLACE/pid.new $PLACE/pid; sleep 100; "
      "fi; until [ -e $PLACE/pid ]; do :; done; kill -9 $(cat $PLACE/pid); exit 3");
  INFO(r.err);
  CHECK(r.exit_code == 137);
  CHECK(contains(r.err, "rank 0 was killed by signal 9"));
}

TEST_CASE("elastic: ranks that are killed, and hosts that are lost, do not end the job",
          "[hosts]") {
  const Hosts hosts(3);
  const TempDirectory place;
  Background job(hosts, place, {"--hosts", "h0:2,h1:2,h2:1", "--elastic"},
                 "mkfifo $PLACE/$RANK; [ $RANK = 0 ] && kill -KILL $$; read x <$PLACE/$RANK; "
                 "echo done");
  job.await_ranks(5);
  kill(find_process(hosts, 2, "--serve"), SIGKILL);  // the host's rondo-run, and its ranks with it
  run_program({"sh", "-c",
               "for r in 1 2 3; do until [ -p " + place.path() + "/$r ]; do :; done; echo go >" +
                   place.path() + "/$r; done"});
  const ProgramResult& r = job.end();
  INFO(r.out << r.err);
  CHECK(r.exit_code == 0);
  CHECK(sorted_lines(r.out) == std::vector<std::string>{"[1] done", "[2] done", "[3] done"});
  CHECK(contains(r.err, "rank 0 was killed by signal 9 (Killed); the others go on"));
  CHECK(contains(r.err, "its ranks are lost, the others go on"));
}

TEST_CASE("elastic: ranks that say that they were left out do not end the job", "[hosts]") {
  const Hosts hosts(2);
  const TempDirectory place;
  // Rank 3 ends first; the job is not over before the others have ended.
  const std::string script =
      "[ $RANK = 3 ] && { echo >$PLACE/left; exit 75; }; until [ -e $PLACE/left ]; do :; done; "
      "echo done";
  const ProgramResult r = run(hosts, place, {"--hosts", "h0:2,h1:2", "--elastic"}, script);
  INFO(r.out << r.err);
  CHECK(r.exit_code == 0);
  CHECK(sorted_lines(r.out) == std::vector<std::string>{"[0] done", "[1] done", "[2] done"});
  CHECK(contains(r.err, "rank 3 was left out by the others (code 75); the others go on"));
  // Without --elastic, and where nobody is left, it is a failure like any other.
  CHECK(run(hosts, place, {"--hosts", "h0,h1"}, "exit 75").exit_code == 75);
  CHECK(run(hosts, place, {"--hosts", "h0,h1", "--elastic"}, "exit 75").exit_code == 75);
}

TEST_CASE("elastic: where all ranks are killed, the job has failed", "[hosts]") {
  const Hosts hosts(2);
  const TempDirectory place;
  const ProgramResult r = run(hosts, place, {"--hosts", "h0,h1", "--elastic"}, "kill -SEGV $$");
  INFO(r.err);
  CHECK(r.exit_code == 139);
}

TEST_CASE("programs and hosts that are not there", "[hosts]") {
  const Hosts hosts(2);
  const TempDirectory place;
  const auto refused = [&](std::vector<std::string> flags, int exit_code,
                           const std::vector<std::string>& parts) {
    std::vector<std::string> argv{RONDO_RUN, "--agent", joined(hosts.agent())};
    argv.insert(argv.end(), flags.begin(), flags.end());
    const ProgramResult r = run_program(argv, environment(place));
    INFO(r.out << r.err);
    CHECK(r.exit_code == exit_code);
    for (const std::string& part : parts) CHECK(contains(r.err, part));
    CHECK(hosts.processes(0).empty());
  };
  refused({"--hosts", "h0,h1", "/no/program"}, 127, {"/no/program: No such file"});
  refused({"--hosts", "h0,h1", "/dev/null"}, 126, {"/dev/null: Permission denied"});
  refused({"--hosts", "h0,h9", "true"}, 125, {"host h9: cannot start rondo-run there"});
  refused({"--hosts", "h0,h1", "--remote-rondo-run", "/no/rondo-run", "true"}, 125,
          {"code 127", "--remote-rondo-run"});
  refused({"--hosts", "h0,h1", "--chdir", "/no/where", "true"}, 125,
          {"cannot enter the directory /no/where", "--chdir"});
  refused({"--hosts", "h0,h1", "--agent", "/no/agent", "true"}, 125, {"cannot run /no/agent"});
  refused({"--hosts", "h0,h1", "--agent", "false", "true"}, 125,
          {"ended with code 1; --agent must be a command that, followed by a host"});
  refused({"--hosts", "h0:none", "true"}, 2, {"--hosts is \"h0:none\"", "\"none\""});
  refused({"--hosts", "h0:0", "true"}, 2, {"host h0 is \"0\": it must be from 1 to 1024"});
  refused({"--hosts", "h0:1000,h1:25", "true"}, 2, {"\"1025\": it must be from 1 to 1024"});
  refused({"--hosts", "", "true"}, 2, {"--hosts is \"\": it names no host"});
  refused({"--hostfile", "", "true"}, 2, {"--hostfile is \"\", which cannot be read"});
  refused({"--hosts", "-oProxyCommand=x", "true"}, 2, {"names no host"});
  refused({"--hosts", ",", "true"}, 2, {"--hosts is \",\""});
  refused({"--hostfile", "/no/file", "true"}, 2, {"/no/file"});
}

TEST_CASE("a loopback interface for ranks of several hosts is refused before any starts",
          "[hosts]") {
  const Hosts hosts(2);
  const TempDirectory place;
  std::vector<std::string> variables = environment(place);
  std::erase(variables, "RONDO_INTERFACE");
  variables.emplace_back("RONDO_INTERFACE=lo");
  const ProgramResult r = run_program(
      {RONDO_RUN, "--agent", joined(hosts.agent()), "--hosts", "h0,h1", "echo", "started"},
      variables);
  INFO(r.err);
  CHECK(r.exit_code == 125);
  CHECK(r.out.empty());
  CHECK(contains(r.err,
                 "host h0: RONDO_INTERFACE is \"lo\", which is lo with 127.0.0.1: ranks of "
                 "other hosts cannot reach that"));
}

TEST_CASE("what a shell on the host prints first disturbs nothing", "[hosts]") {
  const Hosts hosts(2);
  const TempDirectory place;
  std::ofstream(place.path() + "/agent")
      << "#!/bin/sh\necho Welcome; printf 'no end of line '; exec " << joined(hosts.agent())
      << " \"$@\"\n";
  std::filesystem::permissions(place.path() + "/agent", std::filesystem::perms::owner_all);
  const ProgramResult r = run_program({RONDO_RUN, "--agent", place.path() + "/agent", "--hosts",
                                       "h0,h1", "--", "sh", "-c", "echo $RANK"},
                                      environment(place));
  INFO(r.err);
  CHECK(r.exit_code == 0);
  CHECK(sorted_lines(r.out) == std::vector<std::string>{"[0] 0", "[1] 1"});
  CHECK(contains(r.err, "h1: Welcome"));
}

TEST_CASE("what an agent prints without end, or for a terminal, is cut and made printable",
          "[hosts]") {
  const Hosts hosts(2);
  const TempDirectory place;
  std::ofstream(place.path() + "/agent")
      << "#!/bin/sh\nprintf '\\033[31mred\\n' >&2; head -c 3000000 /dev/zero | tr '\\0' x; echo; "
         "head -c 3000000 /dev/zero | tr '\\0' y >&2; echo >&2; exec "
      << joined(hosts.agent()) << " \"$@\"\n";
  std::filesystem::permissions(place.path() + "/agent", std::filesystem::perms::owner_all);
  const ProgramResult r = run_program({RONDO_RUN, "--agent", place.path() + "/agent", "--hosts",
                                       "h0,h1", "--", "sh", "-c", "echo $RANK"},
                                      environment(place));
  INFO(r.err.substr(0, 1000));
  CHECK(r.exit_code == 0);
  CHECK(sorted_lines(r.out) == std::vector<std::string>{"[0] 0", "[1] 1"});
  CHECK(contains(r.err, "h1: ?[31mred"));
  CHECK(std::count(r.err.begin(), r.err.end(), 'x') == 2 * 4096);
  CHECK(std::count(r.err.begin(), r.err.end(), 'y') == 2 * 4096);
  CHECK(contains(r.err, "[the rest of this line is left out]"));
}

TEST_CASE("signals reach the ranks of all hosts and are the exit code", "[hosts]") {
  const Hosts hosts(2);
  for (const int signal : {SIGINT, SIGTERM}) {
    const TempDirectory place;
    Background job(hosts, place, {"--hosts", "h0,h1"},
                   "mkfifo $PLACE/$RANK; while :; do read x <$PLACE/$RANK; done",
                   "trap 'echo got it; exit 0' INT TERM; ");
    job.await_ranks(2);
    const ProcessesOnHosts processes(hosts, 2);
    kill(job.pid(), signal);
    const ProgramResult& r = job.end();
    INFO(r.err);
    CHECK(r.exit_code == 128 + signal);
    processes.await_end();
  }
}

bool is_stopped(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string stat;
  std::getline(file, stat);
  return contains(stat, ") T ");
}

TEST_CASE("SIGUSR1, SIGTSTP and SIGCONT reach the ranks of all hosts, and the job goes on",
          "[hosts]") {
  const Hosts hosts(2);
  const TempDirectory place;
  const std::chrono::seconds lost_after(5);  // also at the start, on a busy machine
  // Without a child, at whose start a shell cannot be stopped.
  Background job(
      hosts, place, {"--hosts", "h0,h1", "--lost-after", "5"},
      "mkfifo $PLACE/never$RANK; exec 3<>$PLACE/never$RANK; while :; do read word <&3; done",
      "echo $$ >$PLACE/pid$RANK; trap 'echo >$PLACE/announcements' USR1; "
      "trap 'exit 0' USR2; ");
  job.await_ranks(2);
  kill(job.pid(), SIGUSR1);
  job.await_ranks(2);
  kill(job.pid(), SIGTSTP);
  std::vector<pid_t> pids{job.pid(), 0, 0};
  std::ifstream(place.path() + "/pid0") >> pids[1];
  std::ifstream(place.path() + "/pid1") >> pids[2];
  REQUIRE(std::ranges::min(pids) > 0);
  const auto began = std::chrono::steady_clock::now();
  while (!std::all_of(pids.begin(), pids.end(), is_stopped)) {
    INFO("stopped: rondo-run " << is_stopped(pids[0]) << ", rank 0 " << is_stopped(pids[1])
                               << ", rank 1 " << is_stopped(pids[2]));
    REQUIRE(std::chrono::steady_clock::now() - began < std::chrono::seconds(30));
  }
  // Neither end takes the other for lost, however long that is.
  const auto stopped = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - stopped < lost_after + std::chrono::seconds(1)) {
    REQUIRE(std::all_of(pids.begin(), pids.end(), is_stopped));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  kill(job.pid(), SIGCONT);
  kill(job.pid(), SIGUSR2);
  const ProgramResult& r = job.end();
  INFO(r.err);
  CHECK(r.exit_code == 0);
}

TEST_CASE("a second Ctrl-C kills ranks that do not end", "[hosts]") {
  const Hosts hosts(2);
  const TempDirectory place;
  Background job(hosts, place, {"--hosts", "h0,h1"},
                 "mkfifo $PLACE/$RANK; while :; do read x <$PLACE/$RANK; done",
                 "trap 'echo >$PLACE/announcements' INT; ");
  job.await_ranks(2);
  const ProcessesOnHosts processes(hosts, 2);
  kill(job.pid(), SIGINT);
  job.await_ranks(2);
  kill(job.pid(), SIGINT);
  CHECK(job.end().exit_code == 130);
  processes.await_end();
}

TEST_CASE("the time limit ends the job on all hosts with 124", "[hosts]") {
  const Hosts hosts(2);
  const TempDirectory place;
  const ProgramResult r = run(hosts, place, {"--hosts", "h0,h1", "--timeout", "0.5"}, "sleep 100");
  INFO(r.err);
  CHECK(r.exit_code == 124);
  CHECK(hosts.processes(0).empty());
  CHECK(hosts.processes(1).empty());
}

TEST_CASE("a failed job is started again on all hosts, with a fresh secret", "[hosts]") {
  const Hosts hosts(2);
  const TempDirectory place;
  const ProgramResult r =
      run(hosts, place, {"--hosts", "h0,h1", "--max-restarts", "2", "--no-prefix"},
          "echo secret $RONDO_SECRET; [ $RANK = 0 ] || [ $RONDO_RESTART_COUNT = 2 ] || exit 5; "
          "[ $RONDO_RESTART_COUNT = 2 ] || sleep 100");
  INFO(r.err);
  CHECK(r.exit_code == 0);
  auto secrets = sorted_lines(r.out);
  secrets.erase(std::unique(secrets.begin(), secrets.end()), secrets.end());
  CHECK(secrets.size() == 3);
  CHECK(contains(r.err, "restarting all ranks: 2 of 2"));
}

TEST_CASE("the secret is in no command line", "[hosts]") {
  const Hosts hosts(2);
  const TempDirectory place;
  const ProgramResult r =
      run(hosts, place, {"--hosts", "h0,h1"},
          "grep -lF $RONDO_SECRET /proc/[0-9]*/cmdline 2>/dev/null || echo none");
  // grep's own command line holds it.
  for (const std::string& line : sorted_lines(r.out)) {
    INFO(line);
    CHECK((contains(line, "none") || std::count(line.begin(), line.end(), '/') == 3));
  }
}

TEST_CASE("a killed rondo-run leaves no rank on any host", "[hosts]") {
  const Hosts hosts(2);
  const TempDirectory place;
  Background job(hosts, place, {"--hosts", "h0:2,h1:2"}, "sleep 1000 & wait");
  job.await_ranks(4);
  const ProcessesOnHosts processes(hosts, 2);
  CHECK(processes.size() >= 6);
  kill(job.pid(), SIGKILL);
  processes.await_end();
  CHECK(job.end().exit_code == 137);
}

TEST_CASE("when a host's agent or rondo-run is killed, all ranks of all hosts end", "[hosts]") {
  const Hosts hosts(2);
  // An agent that is a process of its own, as ssh is: the pipes lead through it.
  for (const bool is_agent : {true, false}) {
    const TempDirectory place;
    std::ofstream(place.path() + "/agent")
        << "#!/bin/sh\necho $$ >" << place.path() << "/agent-$1\nmkfifo " << place.path()
        << "/in-$1\ncat <" << place.path() << "/in-$1 | " << joined(hosts.agent())
        << " \"$@\" & exec cat >" << place.path() << "/in-$1\n";
    std::filesystem::permissions(place.path() + "/agent", std::filesystem::perms::owner_all);
    Background job(hosts, place, {"--agent", place.path() + "/agent", "--hosts", "h0,h1"},
                   "sleep 1000 & wait");
    job.await_ranks(2);
    const ProcessesOnHosts processes(hosts, 2);
    pid_t victim = -1;
    if (is_agent) {
      std::ifstream(place.path() + "/agent-h1") >> victim;
    } else {
      victim = find_process(hosts, 1, "--serve");
    }
    REQUIRE(victim > 1);
    kill(victim, SIGKILL);
    if (!is_agent) {
      // The ranks die with it at once; "cat" and what they started end with their pipes.
      std::ifstream(place.path() + "/agent-h1") >> victim;
      kill(victim, SIGKILL);
    }
    const ProgramResult& r = job.end();
    INFO(r.err);
    CHECK(r.exit_code == 125);
    CHECK(contains(r.err, "host h1: "));
    if (is_agent) processes.await_end();
    // What the agent there started ends with its pipes, a moment later.
    for (int i = 0; i < 500 && !hosts.processes(0).empty(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    CHECK(hosts.processes(0).empty());
    hosts.signal(1, SIGKILL);
  }
}

TEST_CASE("a host that is silent, and a rondo-run that is, are noticed", "[hosts]") {
  const Hosts hosts(2);
  for (const bool frozen_host : {true, false}) {
    const TempDirectory place;
    Background job(hosts, place, {"--hosts", "h0,h1", "--lost-after", "5"}, "sleep 1000 & wait");
    job.await_ranks(2);
    const ProcessesOnHosts processes(hosts, 2);
    if (frozen_host) {
      hosts.freeze(1);
      const ProgramResult& r = job.end();
      INFO(r.err);
      CHECK(r.exit_code == 125);
      CHECK(contains(r.err, "host h1: it has been silent for 5 s"));
      CHECK(hosts.processes(0).empty());
      hosts.signal(1, SIGKILL);
    } else {
      kill(job.pid(), SIGSTOP);
      processes.await_end();
      kill(job.pid(), SIGCONT);
      CHECK(job.end().exit_code == 125);
    }
  }
}

}  // namespace
}  // namespace rondo
