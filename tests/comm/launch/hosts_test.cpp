// rondo-run over several hosts, from the outside: environment, output, exit codes, and that nothing
// outlives it on any host, whatever is killed.
#include "tests/harness/hosts.hpp"

#include <signal.h>

#include <atomic>
#include <thread>

#include "tests/comm/bootstrap/rondo_run_helpers.hpp"
#include "tests/comm/launch/announcements.hpp"

namespace rondo {
namespace {

std::string joined(const Words& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

/// Hosts, and a directory that all of them see. rondo-run runs outside of them.
struct Cluster : JobDirectory {
  explicit Cluster(int count = 2, int networks = 1)
      : hosts(count, networks), agent(joined(hosts.agent())) {}

  /// Without what a test's own launcher may have set, and with variables that other hosts must not get.
  Words variables() const {
    return {"RANK",        "WORLD_SIZE", "RONDO_RENDEZVOUS",          "RONDO_INTERFACE",
            "RONDO_PORTS", "DISPLAY=:7", "BYTES=a\xff\xc3\xa9'\"\n$", "RONDO_SECRET=outer"};
  }
  ProgramResult rondo_run(const Words& words, const Words& more_variables = {},
                          const std::function<void(pid_t)>& started = {}) const {
    return program(Words{RONDO_RUN, "--agent", agent} + words, variables() + more_variables,
                   started);
  }
  /// With `flags`, separated by spaces, then sh -c `script`.
  ProgramResult run(const std::string& flags, const std::string& script,
                    const std::function<void(pid_t)>& started = {}) const {
    return rondo_run(split(flags, ' ') + Words{"--", "sh", "-c", script}, {}, started);
  }
  /// The process of `host` whose command line holds `word`.
  pid_t find_process(int host, const std::string& word) const {
    for (const pid_t pid : hosts.processes(host)) {
      std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline");
      std::string line;
      std::getline(file, line);
      if (contains(line, word)) return pid;
    }
    FAIL("no process with " << word);
    return -1;
  }

  Hosts hosts;
  std::string agent;
};

/// A rondo-run in the background, whose ranks announce themselves after they have set `traps`.
class Background {
 public:
  Background(const Cluster& cluster, const std::string& flags, const std::string& script,
             const std::string& traps = "")
      : announcements_(cluster), thread_([this, &cluster, flags, script, traps] {
          result_ = cluster.run(flags, traps + Announcements::script() + script,
                                [this](pid_t pid) { pid_ = pid; });
        }) {}
  ~Background() {
    if (thread_.joinable()) thread_.join();
  }
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  void await_ranks(int ranks) { announcements_.await(ranks); }
  void kill(int signal) const { ::kill(pid_, signal); }
  std::string pid() const { return std::to_string(pid_); }
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

TEST_CASE("every rank of every host gets its environment", "[hosts]") {
  const std::string tail = " 3 10.77.0.1 0 " + std::filesystem::current_path().string();
  check_ended(Cluster(3).run(
                  "--hosts 10.77.0.1:2,h1,fd77::3 -n 4",
                  "[ ${#RONDO_SECRET} = 64 ] && [ -z \"$DISPLAY\" ] && [ $MASTER_PORT -gt 0 ] && "
                  "[ \"$BYTES\" = \"$(printf 'a\\377\\303\\251'\"'\"'\"\\n$')\" ] && "
                  "case $RONDO_RENDEZVOUS in tcp://10.77.0.1:*) ;; *) exit 1 ;; esac && "
                  "[ $RONDO_RENDEZVOUS != tcp://10.77.0.1:$MASTER_PORT ] && "
                  "echo $(hostname) $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK "
                  "$GROUP_WORLD_SIZE $MASTER_ADDR $RONDO_RESTART_COUNT $(pwd)"),
              {.prints = {{"[0] h0 0 4 0 2 0" + tail, "[1] h0 1 4 1 2 0" + tail,
                           "[2] h1 2 4 0 1 1" + tail, "[3] h2 3 4 0 1 2" + tail}}});
}

TEST_CASE("rank 0's address and ports", "[hosts]") {
  const Cluster cluster(2, 2);
  const auto address = [&](const std::string& flags, const Words& variables = {}) {
    const ProgramResult r =
        cluster.rondo_run(Words{"--no-prefix"} + split(flags, ' ') +
                              Words{"--", "sh", "-c", "[ $RANK = 1 ] || echo $MASTER_ADDR"},
                          variables);
    check_ended(r, {});
    return r.out;
  };
  CHECK(address("--hosts h0,h1") == "10.77.0.1\n");  // h0 itself has it as 127.0.1.1
  CHECK(address("--hosts fd77::1,fd77::2") == "fd77::1\n");
  CHECK(address("--hosts 10.78.0.1,h1") == "10.78.0.1\n");
  CHECK(address("--hosts h0,h1 --rendezvous fd78::1") == "fd78::1\n");
  CHECK(address("--hosts h0,h1", {"RONDO_INTERFACE=eth1"}) == "10.78.0.1\n");
  CHECK(address("--hosts h0") == "127.0.0.1\n");

  check_ended(cluster.rondo_run({"--hosts", "h0,h1", "--", "sh", "-c",
                                 "echo $MASTER_PORT; echo ${RONDO_RENDEZVOUS##*:}"},
                                {"RONDO_PORTS=20000-20001"}),
              {.prints = {{"[0] 20000", "[0] 20001", "[1] 20000", "[1] 20001"}}});
  // A loopback interface is refused before any rank starts.
  check_ended(
      cluster.rondo_run({"--hosts", "h0,h1", "echo", "started"}, {"RONDO_INTERFACE=lo"}),
      {.exit_code = 125,
       .prints = Words{},
       .says = {
           "host h0: RONDO_INTERFACE is \"lo\", which is lo with 127.0.0.1: ranks of other hosts "
           "cannot reach that"}});
}

TEST_CASE("a hostfile, from one of its hosts, in a directory of the user's choice", "[hosts]") {
  const Cluster cluster;
  cluster.write("hosts", "# two hosts\nh0 slots=2\n\nh1:1  # the other\n");
  cluster.write_program("program", "echo $RANK $(hostname)\n");
  // h0 is this host: no agent is needed to reach it.
  const std::string agent = "sh -c 'test $1 != h0 && exec " + cluster.agent + " \"$@\"' sh";
  check_ended(cluster.program(
                  cluster.hosts.on(0, {RONDO_RUN, "--hostfile", cluster.file("hosts"), "--agent",
                                       agent, "--chdir", cluster.path(), "./program"}),
                  cluster.variables()),
              {.prints = {{"[0] 0 h0", "[1] 1 h0", "[2] 2 h1"}}});
}

TEST_CASE("output of all hosts: streams, bytes, and lines that all ranks print once", "[hosts]") {
  const Cluster cluster;
  const std::string bytes =
      "a\xff"
      "b";
  const ProgramResult r =
      cluster.run("--hosts h0,h1", "printf 'a\\377b\\n'; printf 'no end'; echo the same >&2");
  check_ended(r, {.prints = {{"[0] " + bytes, "[0] no end", "[1] " + bytes, "[1] no end"}},
                  .says = {"the same"}});
  CHECK(sorted_lines(r.err).size() == 2);

  const ProgramResult much =
      cluster.run("--hosts h0,h1 --no-prefix",
                  "i=0; while [ $i -lt 2000 ]; do echo $RANK; i=$((i + 1)); done; "
                  "head -c 3000000 /dev/zero | tr '\\0' x");
  CHECK(much.exit_code == 0);
  CHECK(std::count(much.out.begin(), much.out.end(), '1') == 2000);
  CHECK(std::count(much.out.begin(), much.out.end(), 'x') == 6'000'000);
}

TEST_CASE("what an agent prints disturbs nothing, is cut and made printable", "[hosts]") {
  const Cluster cluster;
  const std::string agent = cluster.write_program(
      "agent",
      "echo Welcome; printf '\\033[31mred\\n' >&2; head -c 3000000 /dev/zero | tr '\\0' x; echo; "
      "head -c 3000000 /dev/zero | tr '\\0' y >&2; echo >&2; printf 'no end of line '; exec " +
          cluster.agent + " \"$@\"\n");
  const ProgramResult r = cluster.run("--agent " + agent + " --hosts h0,h1", "echo $RANK");
  check_ended(r, {.prints = {{"[0] 0", "[1] 1"}},
                  .says = {"h1: Welcome", "h1: ?[31mred", "[the rest of this line is left out]"}});
  CHECK(std::count(r.err.begin(), r.err.end(), 'x') == 2 * 4096);
  CHECK(std::count(r.err.begin(), r.err.end(), 'y') == 2 * 4096);
}

TEST_CASE("the first failure on any host stops all and gives the exit code", "[hosts]") {
  const Cluster cluster;
  Background job(cluster, "--hosts h0:2,h1:2",
                 "if [ $RANK = 2 ]; then until [ -e $PLACE/go ]; do :; done; exit 7; fi; "
                 "sleep 1000 & wait",
                 "trap 'echo stopped; exit 9' TERM; ");
  job.await_ranks(4);
  const ProcessesOnHosts processes(cluster.hosts);
  CHECK(processes.size() >= 6);
  cluster.write("go", "go");
  check_ended(job.end(),
              {.exit_code = 7, .says = {"rank 2 exited with code 7; stopping the others"}});
  processes.await_end();
}

TEST_CASE("of two failures, the rank that was killed is the first", "[hosts]") {
  check_ended(
      Cluster().run("--hosts h0,h1",
                    "if [ $RANK = 0 ]; then echo $$ >$PLACE/pid.new; mv $PLACE/pid.new $PLACE/pid; "
                    "sleep 100; "
                    "fi; until [ -e $PLACE/pid ]; do :; done; kill -9 $(cat $PLACE/pid); exit 3"),
      {.exit_code = 137, .says = {"rank 0 was killed by signal 9"}});
}

TEST_CASE("elastic: ranks that are killed, and hosts that are lost, do not end the job",
          "[hosts]") {
  const Cluster cluster(3);
  Background job(cluster, "--hosts h0:2,h1:2,h2:1 --elastic",
                 "[ $RANK = 0 ] && kill -KILL $$; until [ -e $PLACE/go ]; do sleep 0.02; done; "
                 "echo done");
  job.await_ranks(5);
  // The host's rondo-run, and its ranks with it.
  const std::string lost = std::to_string(cluster.find_process(2, "--serve"));
  kill(std::stoi(lost), SIGKILL);
  await([&] { return !is_running(lost); });
  cluster.write("go", "go");
  check_ended(job.end(), {.prints = {{"[1] done", "[2] done", "[3] done"}},
                          .says = {"rank 0 was killed by signal 9 (Killed); the others go on",
                                   "its ranks are lost, the others go on"}});
}

TEST_CASE("elastic: ranks that say that they were left out do not end the job", "[hosts]") {
  const Cluster cluster;
  // Rank 3 ends first; the job is not over before the others have ended.
  check_ended(cluster.run("--hosts h0:2,h1:2 --elastic",
                          "[ $RANK = 3 ] && { echo >$PLACE/left; exit 75; }; "
                          "until [ -e $PLACE/left ]; do :; done; echo done"),
              {.prints = {{"[0] done", "[1] done", "[2] done"}},
               .says = {"rank 3 was left out by the others (code 75); the others go on"}});
  // Without --elastic, and where nobody is left, it is a failure like any other.
  CHECK(cluster.run("--hosts h0,h1", "exit 75").exit_code == 75);
  CHECK(cluster.run("--hosts h0,h1 --elastic", "exit 75").exit_code == 75);
  CHECK(cluster.run("--hosts h0,h1 --elastic", "kill -SEGV $$").exit_code == 139);
}

TEST_CASE("programs and hosts that are not there", "[hosts]") {
  const Cluster cluster;
  const auto refused = [&](const Words& words, int exit_code, const Words& says) {
    check_ended(cluster.rondo_run(words), {.exit_code = exit_code, .says = says});
    CHECK(cluster.hosts.processes(0).empty());
  };
  refused({"--hosts", "h0,h1", "/no/program"}, 127, {"/no/program: No such file"});
  refused({"--hosts", "h0,h1", "/dev/null"}, 126, {"/dev/null: Permission denied"});
  refused({"--hosts", "h0,h9", "true"}, 125, {"host h9: cannot start rondo-run there"});
  refused({"--hosts", "h0,h1", "--remote-rondo-run", "/no/rondo-run", "true"}, 125,
          {"code 127", "--remote-rondo-run"});
  refused({"--hosts", "h0,h1", "--chdir", "/no/where", "true"}, 125,
          {"cannot enter the directory /no/where", "--chdir"});
  refused({"--hosts", "h0,h1", "--agent", "/no/agent", "true"}, 125, {"cannot run /no/agent"});
  // The second host is this one, which needs no agent.
  refused({"--hosts", "h0,localhost", "--agent", "/no/agent", "true"}, 125,
          {"host h0: cannot start its agent: cannot run /no/agent: No such file"});
  refused({"--hosts", "h0,h1", "--agent", "false", "true"}, 125,
          {"ended with code 1; --agent must be a command that, followed by a host"});
  refused({"--hosts", "h0:none", "true"}, 2, {"--hosts is \"h0:none\"", "\"none\""});
  refused({"--hosts", "h0:0", "true"}, 2, {"host h0 is \"0\": it must be from 1 to 1024"});
  refused({"--hosts", "h0:1000,h1:25", "true"}, 2, {"\"1025\": it must be from 1 to 1024"});
  refused({"--hosts", "h0:1,h1:1", "-n", "3", "true"}, 2, {"the hosts have 2 ranks together"});
  refused({"--hosts", "", "true"}, 2, {"--hosts is \"\": it names no host"});
  refused({"--hostfile", "", "true"}, 2, {"--hostfile is \"\", which cannot be read"});
  refused({"--hosts", "-oProxyCommand=x", "true"}, 2, {"names no host"});
  refused({"--hosts", ",", "true"}, 2, {"--hosts is \",\""});
  refused({"--hostfile", "/no/file", "true"}, 2, {"/no/file"});
}

TEST_CASE("signals reach the ranks of all hosts and are the exit code", "[hosts]") {
  const Cluster cluster;
  for (const int signal : {SIGINT, SIGTERM}) {
    Background job(cluster, "--hosts h0,h1", "sleep 1000 & wait",
                   "trap 'echo got it; exit 0' INT TERM; ");
    job.await_ranks(2);
    const ProcessesOnHosts processes(cluster.hosts);
    job.kill(signal);
    check_ended(job.end(), {.exit_code = 128 + signal, .prints = {{"[0] got it", "[1] got it"}}});
    processes.await_end();
  }
}

TEST_CASE("SIGUSR1, SIGTSTP and SIGCONT reach the ranks of all hosts, and the job goes on",
          "[hosts]") {
  const Cluster cluster;
  const std::chrono::seconds lost_after(5);  // also at the start, on a busy machine
  // Without a child, at whose start a shell cannot be stopped.
  Background job(
      cluster, "--hosts h0,h1 --lost-after 5",
      "mkfifo $PLACE/never$RANK; exec 3<>$PLACE/never$RANK; while :; do read word <&3; done",
      "echo $$ >>$PLACE/pids; trap 'echo >$PLACE/announcements' USR1; trap 'exit 0' USR2; ");
  job.await_ranks(2);
  job.kill(SIGUSR1);
  job.await_ranks(2);
  job.kill(SIGTSTP);
  const Words all = cluster.pids() + Words{job.pid()};
  REQUIRE(all.size() == 3);
  for (const std::string& pid : all) {
    INFO("process " << pid << " does not stop; the launcher is process " << job.pid());
    await([&] { return is_stopped(pid); });
  }
  // Neither end takes the other for lost, however long that is.
  const auto stopped = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - stopped < lost_after + std::chrono::seconds(1)) {
    REQUIRE(std::all_of(all.begin(), all.end(), is_stopped));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  job.kill(SIGCONT);
  job.kill(SIGUSR2);
  check_ended(job.end(), {});
}

TEST_CASE("a second Ctrl-C kills ranks that do not end", "[hosts]") {
  const Cluster cluster;
  Background job(cluster, "--hosts h0,h1", "while :; do sleep 1000 & wait; done",
                 "trap 'echo >$PLACE/announcements' INT; ");
  job.await_ranks(2);
  job.kill(SIGINT);
  job.await_ranks(2);
  const ProcessesOnHosts processes(cluster.hosts);
  job.kill(SIGINT);
  check_ended(job.end(), {.exit_code = 130});
  processes.await_end();
}

TEST_CASE("the time limit ends the job on all hosts with 124", "[hosts]") {
  const Cluster cluster;
  check_ended(cluster.run("--hosts h0,h1 --timeout 0.5", "sleep 100"), {.exit_code = 124});
  for (const int host : {0, 1}) CHECK(cluster.hosts.processes(host).empty());
}

TEST_CASE("a failed job is started again on all hosts, with a fresh secret", "[hosts]") {
  const ProgramResult r = Cluster().run(
      "--hosts h0,h1 --max-restarts 2 --no-prefix",
      "echo secret $RONDO_SECRET; [ $RANK = 0 ] || [ $RONDO_RESTART_COUNT = 2 ] || exit 5; "
      "[ $RONDO_RESTART_COUNT = 2 ] || sleep 100");
  check_ended(r, {.says = {"restarting all ranks: 2 of 2"}});
  Words secrets = sorted_lines(r.out);
  secrets.erase(std::unique(secrets.begin(), secrets.end()), secrets.end());
  CHECK(secrets.size() == 3);
}

TEST_CASE("the secret is in no command line", "[hosts]") {
  // Nor in grep's own, which reads it from a file.
  check_ended(Cluster().run("--hosts h0,h1",
                            "echo $RONDO_SECRET >$PLACE/secret$RANK; "
                            "grep -lFf $PLACE/secret$RANK /proc/[0-9]*/cmdline 2>/dev/null; "
                            "echo looked"),
              {.prints = {{"[0] looked", "[1] looked"}}});
}

TEST_CASE("a killed rondo-run leaves no rank on any host", "[hosts]") {
  const Cluster cluster;
  Background job(cluster, "--hosts h0:2,h1:2", "sleep 1000 & wait");
  job.await_ranks(4);
  const ProcessesOnHosts processes(cluster.hosts);
  CHECK(processes.size() >= 6);
  job.kill(SIGKILL);
  processes.await_end();
  CHECK(job.end().exit_code == 137);
}

TEST_CASE("when a host's agent or rondo-run is killed, all ranks of all hosts end", "[hosts]") {
  const Cluster cluster;
  // An agent that is a process of its own, as ssh is: the pipes lead through it.
  const std::string agent = cluster.write_program(
      "agent",
      "echo $$ >$PLACE/agent-$1\nrm -f $PLACE/in-$1\nmkfifo $PLACE/in-$1\ncat <$PLACE/in-$1 | " +
          cluster.agent + " \"$@\" & exec cat >$PLACE/in-$1\n");
  for (const bool is_agent : {true, false}) {
    Background job(cluster, "--agent " + agent + " --hosts h0,h1", "sleep 1000 & wait");
    job.await_ranks(2);
    const ProcessesOnHosts processes(cluster.hosts);
    const pid_t agent_of_h1 = std::stoi(cluster.word_in("agent-h1"));
    if (!is_agent) kill(cluster.find_process(1, "--serve"), SIGKILL);
    // After the ranks, which die with --serve at once, "cat" and what they started end with their pipes.
    kill(agent_of_h1, SIGKILL);
    check_ended(job.end(), {.exit_code = 125, .says = {"host h1: "}});
    if (is_agent) processes.await_end();
    // What the agent there started ends with its pipes, a moment later.
    await([&] { return cluster.hosts.processes(0).empty(); });
    cluster.hosts.signal(1, SIGKILL);
  }
}

TEST_CASE("a host that is silent, and a rondo-run that is, are noticed", "[hosts]") {
  const Cluster cluster;
  for (const bool frozen_host : {true, false}) {
    Background job(cluster, "--hosts h0,h1 --lost-after 5", "sleep 1000 & wait");
    job.await_ranks(2);
    const ProcessesOnHosts processes(cluster.hosts);
    if (frozen_host) {
      cluster.hosts.freeze(1);
      check_ended(job.end(), {.exit_code = 125, .says = {"host h1: it has been silent for 5 s"}});
      CHECK(cluster.hosts.processes(0).empty());
      cluster.hosts.signal(1, SIGKILL);
    } else {
      job.kill(SIGSTOP);
      processes.await_end();
      job.kill(SIGCONT);
      CHECK(job.end().exit_code == 125);
    }
  }
}

}  // namespace
}  // namespace rondo
