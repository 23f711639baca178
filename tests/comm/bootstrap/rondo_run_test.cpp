// rondo-run from the outside: exit codes, output, and that nothing outlives it.
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "rondo/rondo.h"
#include "tests/comm/bootstrap/rondo_run_helpers.hpp"
#include "tests/harness/catch.hpp"
#include "tests/harness/rank_group.hpp"
#include "tests/harness/terminal.hpp"

namespace rondo {
namespace {

TEST_CASE("every rank gets its environment", "[rondo-run]") {
  TempDirectory place;
  auto r = run(place, {"-n", "3"},
               "[ $(stat -c %a $RONDO_RENDEZVOUS) = 700 ] && [ ${#RONDO_SECRET} = 64 ] && "
               "[ $MASTER_PORT -gt 0 ] && echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE "
               "$MASTER_ADDR $RONDO_RESTART_COUNT");
  INFO(r.err);
  REQUIRE(r.exit_code == 0);
  REQUIRE(sorted_lines(r.out) == std::vector<std::string>{"[0] 0 3 0 3 127.0.0.1 0",
                                                          "[1] 1 3 1 3 127.0.0.1 0",
                                                          "[2] 2 3 2 3 127.0.0.1 0"});
  REQUIRE(std::filesystem::is_empty(place.path()));
}

TEST_CASE("without prefixes the ranks' lines come out as they are", "[rondo-run]") {
  TempDirectory place;
  auto r = run(place, {"-n", "3", "--no-prefix"}, "echo rank $RANK");
  INFO(r.err);
  REQUIRE(r.exit_code == 0);
  REQUIRE(sorted_lines(r.out) == std::vector<std::string>{"rank 0", "rank 1", "rank 2"});
}

TEST_CASE("ranks share the CPUs where there is one for each", "[rondo-run]") {
  TempDirectory place;
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  REQUIRE(sched_getaffinity(0, sizeof allowed, &allowed) == 0);
  const int cpus = CPU_COUNT(&allowed);
  const auto lists = [&](const std::string& ranks, const std::string& bind) {
    auto r = run(place, {"-n", ranks, "--no-prefix", "--bind", bind},
                 "sed -n 's/Cpus_allowed_list:[^0-9]*//p' /proc/self/status");
    INFO(r.err);
    REQUIRE(r.exit_code == 0);
    return sorted_lines(r.out);
  };
  const auto everybody = [](const std::vector<std::string>& l) {
    return std::set<std::string>(l.begin(), l.end()).size() == 1;
  };
  const std::vector<std::string> one = lists("1", "share");
  const std::string all = one.at(0);
  // As many ranks as CPUs: one for each, all different, and nothing outside.
  const std::vector<std::string> shares = lists(std::to_string(cpus), "share");
  REQUIRE(std::set<std::string>(shares.begin(), shares.end()).size() == static_cast<size_t>(cpus));
  for (const std::string& share : shares) {
    REQUIRE(share.find_first_not_of("0123456789") == std::string::npos);
    REQUIRE(CPU_ISSET(std::stoi(share), &allowed));
  }
  const auto unbound = lists(std::to_string(cpus), "none");
  REQUIRE((everybody(unbound) && unbound.at(0) == all));
  const auto crowd = lists(std::to_string(cpus + 1), "share");
  REQUIRE((everybody(crowd) && crowd.at(0) == all));
}

TEST_CASE("each job has a secret of its own", "[rondo-run]") {
  TempDirectory place;
  const std::string one = run(place, {"-n", "1"}, "echo $RONDO_SECRET").out;
  REQUIRE(one.size() > 60);
  REQUIRE(run(place, {"-n", "1"}, "echo $RONDO_SECRET").out != one);
}

TEST_CASE("what an outer launcher has said of its rank is not passed on", "[rondo-run]") {
  TempDirectory place;
  auto r = run_program({RONDO_RUN, "-n", "2", "--", "sh", "-c",
                        "echo $RANK/$WORLD_SIZE$TORCHELASTIC_RUN_ID$OMPI_COMM_WORLD_RANK$PMI_RANK"},
                       {"XDG_RUNTIME_DIR=" + place.path(), "RANK=7", "WORLD_SIZE=9",
                        "TORCHELASTIC_RUN_ID=none", "OMPI_COMM_WORLD_RANK=7", "PMI_RANK=7"});
  INFO(r.err);
  REQUIRE(r.exit_code == 0);
  REQUIRE(sorted_lines(r.out) == std::vector<std::string>{"[0] 0/2", "[1] 1/2"});
}

TEST_CASE("the program may follow without --, and keeps its own flags", "[rondo-run]") {
  for (const char* flag : {"-n2", "--nproc-per-node=2"}) {
    auto r = run_program({RONDO_RUN, "--standalone", flag, "echo", "-n", "7", "--timeout", "--"});
    INFO(r.err);
    REQUIRE(r.exit_code == 0);
    REQUIRE(sorted_lines(r.out) ==
            std::vector<std::string>{"[0] 7 --timeout --", "[1] 7 --timeout --"});
  }
}

TEST_CASE("output keeps its stream, its bytes and its last partial line", "[rondo-run]") {
  TempDirectory place;
  auto r = run(place, {"-n", "1"},
               "printf 'a\\0b\\n\\nlast'; printf 'e\\377\\n' >&2; head -c 300000 /dev/zero | tr "
               "'\\0' x >&2");
  REQUIRE(r.exit_code == 0);
  REQUIRE(r.out == std::string("[0] a\0b\n[0] \n[0] last\n", 22));
  REQUIRE(r.err == "[0] e\377\n[0] " + std::string(300000, 'x') + "\n");
}

TEST_CASE("where rondo-run has no stdout that is an error, and without stdin and stderr it works",
          "[rondo-run]") {
  const TempDirectory place;
  const auto with = [&](const std::string& streams) {
    return run_program({"/bin/sh", "-c", "exec " RONDO_RUN " -n 2 -- echo hi " + streams});
  };
  const ProgramResult lost = with(">&-");
  CHECK(lost.exit_code == 125);
  CHECK(contains(lost.err, "cannot write to stdout"));
  for (const char* streams : {"<&-", "2>&-", "<&- 2>&-"}) {
    const ProgramResult all = with(streams);
    INFO(streams << ": " << all.err);
    CHECK(all.exit_code == 0);
    CHECK(contains(all.out, "[0] hi"));
    CHECK(contains(all.out, "[1] hi"));
  }
}

TEST_CASE("one error of all ranks is printed once, with their number") {
  const TempDirectory place;
  // Where the machine holds a rank up for half a second, all lines are printed.
  for (int attempt = 0; attempt < 20; ++attempt) {
    const ProgramResult r = run(place, {"-n", "3"}, "echo no such file >&2; exit 2");
    INFO(r.err);
    CHECK(r.exit_code == 2);
    REQUIRE(contains(r.err, "] no such file\n"));
    if (!contains(r.err, "'s last line came from 3 ranks: 0 1 2\n")) continue;
    CHECK(r.err.find("] no such file") == r.err.rfind("] no such file"));
    return;
  }
  FAIL("no error of three ranks was printed once");
}

TEST_CASE("ranks learn which of their pipes lead to a terminal") {
  const TempDirectory place;
  const testing::Terminal terminal;
  const std::string script =
      "out=$(stat -L -c %i /proc/$$/fd/1); err=$(stat -L -c %i /proc/$$/fd/2);"
      "echo $out $err >\"$PLACE/pipes\";"
      "echo \"${RONDO_TERMINAL-none}\" >\"$PLACE/named\"";
  const auto named = [&](const std::string& redirect) {
    const ProgramResult r =
        run_program({"sh", "-c", RONDO_RUN " -n 1 -- sh -c '" + script + "' " + redirect},
                    {"XDG_RUNTIME_DIR=" + place.path(), "PLACE=" + place.path()});
    INFO(r.err);
    CHECK(r.exit_code == 0);
    std::string name;
    std::ifstream(place.path() + "/named") >> name;
    return name;
  };
  const auto pipe = [&](int number) {
    std::ifstream file(place.path() + "/pipes");
    std::string inode;
    for (int i = 0; i < number; ++i) file >> inode;
    return inode;
  };
  const std::string out = named(">" + terminal.path() + " 2>/dev/null");
  CHECK(out == pipe(1));
  const std::string err = named("2>" + terminal.path() + " >/dev/null");
  CHECK(err == pipe(2));
  const std::string both = named(">" + terminal.path() + " 2>&1");
  CHECK(both == pipe(1) + "," + pipe(2));
  CHECK(named("2>/dev/null >/dev/null") == "none");
}

TEST_CASE("lines of many ranks stay whole", "[rondo-run]") {
  TempDirectory place;
  auto r = run(place, {"-n", "4"},
               "i=0; while [ $i -lt 500 ]; do printf 'rank %s ' $RANK; echo line $i; i=$((i+1)); "
               "done");
  REQUIRE(r.exit_code == 0);
  std::vector<int> next(4, 0);
  std::istringstream stream(r.out);
  int lines = 0;
  for (std::string line; std::getline(stream, line); ++lines) {
    const int rank = line[1] - '0';
    std::ostringstream expected;
    expected << '[' << rank << "] rank " << rank << " line "
             << next.at(static_cast<size_t>(rank))++;
    REQUIRE(line == expected.str());
  }
  REQUIRE(lines == 2000);
}

TEST_CASE("the first failure stops all and gives the exit code", "[rondo-run]") {
  TempDirectory place;
  // The others write their pids first; the failing one waits until they have.
  auto r = run(place, {"-n", "3"},
               "echo $$ >> $PLACE/pids; if [ $RANK = 1 ]; then "
               "while [ $(wc -l < $PLACE/pids) -lt 3 ]; do :; done; exit 7; fi; exec sleep 1000");
  REQUIRE(r.exit_code == 7);
  REQUIRE(contains(r.err, "rank 1 exited with code 7"));
  require_nothing_left(place, 3);
}

// Rank 0 knows why, and rank 1, whom it told, ends first.
TEST_CASE("behind the first failure others have a moment to say why", "[rondo-run]") {
  TempDirectory place;
  auto r = run(place, {"-n", "2"},
               "if [ $RANK = 1 ]; then echo $$ > $PLACE/one; exit 3; fi; "
               "until [ -s $PLACE/one ]; do :; done; one=$(cat $PLACE/one); "
               "until grep -qs '^State:.Z' /proc/$one/status; do :; done; echo because; exit 4");
  CHECK(r.exit_code == 3);
  CHECK(r.out == "[0] because\n");
}

TEST_CASE("who was killed is named, not who noticed", "[rondo-run]") {
  TempDirectory place;
  // The launcher is held up until both have ended.
  auto r = run(place, {"-n", "2"},
               "ended() { grep -qs '^State:.Z' /proc/$1/status; }; "
               "if [ $RANK = 1 ]; then kill -STOP $PPID; echo $$ > $PLACE/one; kill -KILL $$; fi; "
               "me=$$; until [ -s $PLACE/one ] && ended $(cat $PLACE/one); do :; done; "
               "( until ended $me; do :; done; kill -CONT $PPID ) & exit 5");
  CHECK(r.exit_code == 128 + SIGKILL);
  CHECK(contains(r.err, "rank 1 was killed by signal 9"));
}

TEST_CASE("elastic: a rank that is killed does not end the job", "[rondo-run]") {
  TempDirectory place;
  // The others wait for its end, and longer than a failed job would let them.
  auto r = run(
      place, {"-n", "3", "--elastic"},
      "if [ $RANK = 1 ]; then echo $$ >$PLACE/new; mv $PLACE/new $PLACE/one; kill -KILL $$; fi; "
      "until [ -e $PLACE/one ] && grep -qs '^State:.Z' /proc/$(cat $PLACE/one)/status; do :; "
      "done; sleep 1; echo done");
  CHECK(r.exit_code == 0);
  CHECK(sorted_lines(r.out) == std::vector<std::string>{"[0] done", "[2] done"});
  CHECK(contains(r.err, "rank 1 was killed by signal 9 (Killed); the others go on"));
  // Where all are, it has failed, and is tried again.
  r = run(place, {"-n", "2", "--elastic", "--max-restarts", "1"},
          "[ $RONDO_RESTART_COUNT = 0 ] && kill -SEGV $$; echo again");
  CHECK(r.exit_code == 0);
  CHECK(sorted_lines(r.out) == std::vector<std::string>{"[0] again", "[1] again"});
  r = run(place, {"-n", "2", "--elastic"}, "kill -SEGV $$");
  CHECK(r.exit_code == 128 + SIGSEGV);
  // An exit code is no death.
  r = run(place, {"-n", "2", "--elastic"}, "[ $RANK = 1 ] && exit 3; sleep 1000");
  CHECK(r.exit_code == 3);
  CHECK(contains(r.err, "rank 1 exited with code 3; stopping the others"));
}

TEST_CASE("a signal's end is 128 + signal, and stubborn ranks are killed with their children",
          "[rondo-run]") {
  TempDirectory place;
  auto r = run(place, {"-n", "2"},
               "trap '' TERM; echo $$ >> $PLACE/pids; sleep 1000 & echo $! >> $PLACE/pids; "
               "setsid sleep 1000 & echo $! >> $PLACE/pids; "
               "if [ $RANK = 0 ]; then while [ $(wc -l < $PLACE/pids) -lt 6 ]; do :; done; "
               "kill -SEGV $$; fi; wait; wait; sleep 1000");
  REQUIRE(r.exit_code == 128 + SIGSEGV);
  REQUIRE(contains(r.err, "rank 0 was killed by signal 11"));
  require_nothing_left(place, 6);
}

TEST_CASE("what a rank leaves running ends with the job", "[rondo-run]") {
  TempDirectory place;
  auto r = run(place, {"-n", "2"},
               "setsid sleep 1000 & echo $! >> $PLACE/pids; sleep 1000 & "
               "echo $! >> $PLACE/pids; echo done");
  REQUIRE(r.exit_code == 0);
  REQUIRE(sorted_lines(r.out) == std::vector<std::string>{"[0] done", "[1] done"});
  require_nothing_left(place, 4);
}

// A group's number may go to another process of the user once its leader is reaped and the group is
// empty; signals to the group would reach that process.
TEST_CASE("a rank's number is nobody else's until the job is over", "[rondo-run]") {
  TempDirectory place;
  // Each signal is passed on in a turn of the launcher, so after two of them it has noticed the end.
  const std::string job =
      "trap '' USR1; if [ $RANK = 0 ]; then echo $$ > $PLACE/zero; exit 0; fi; "
      "until [ -s $PLACE/zero ]; do :; done; zero=$(cat $PLACE/zero); "
      "while grep -qs '^State:.[^Z]' /proc/$zero/status; do :; done; "
      "for times in 1 2; do kill -USR1 $PPID; "
      "until [ $(grep -c 'User defined signal 1' $PLACE/err) -ge $times ]; do :; done; done; "
      "grep -qs '^State:.Z' /proc/$zero/status && echo held";
  const std::string shell = RONDO_RUN " -n 2 -- sh -c \"$JOB\" 2> $PLACE/err";
  const auto r = run_program({"sh", "-c", shell}, {"XDG_RUNTIME_DIR=" + place.path(),
                                                   "PLACE=" + place.path(), "JOB=" + job});
  CHECK(r.exit_code == 0);
  CHECK(r.out == "[1] held\n");
}

TEST_CASE("orphans of a rank do not stay as zombies while the job runs", "[rondo-run]") {
  TempDirectory place;
  auto r = run(place, {"-n", "1"},
               "(sh -c 'echo $$ > $PLACE/orphan' &); until [ -s $PLACE/orphan ]; do :; done; "
               "orphan=$(cat $PLACE/orphan); while [ -e /proc/$orphan ]; do :; done; echo reaped");
  CHECK(r.exit_code == 0);
  CHECK(r.out == "[0] reaped\n");
}

TEST_CASE("a parent that ignores SIGCHLD does not keep the ends of ranks from rondo-run",
          "[rondo-run]") {
  auto r = run_program({"env", "--ignore-signal=CHLD", RONDO_RUN, "-n", "2", "--timeout", "20",
                        "sh", "-c", "exit 7"});
  INFO(r.err);
  CHECK(r.exit_code == 7);
}

TEST_CASE("the time limit ends the job with 124", "[rondo-run]") {
  TempDirectory place;
  auto r = run(place, {"-n", "2", "--timeout", "0.5"}, "echo $$ >> $PLACE/pids; exec sleep 1000");
  REQUIRE(r.exit_code == 124);
  REQUIRE(contains(r.err, "time limit"));
  require_nothing_left(place, 2);
}

TEST_CASE("a failed job is started again, with a fresh rendezvous", "[rondo-run]") {
  TempDirectory place;
  const std::string script =
      "echo $RONDO_RENDEZVOUS $RONDO_RESTART_COUNT; "
      "[ $RANK != 1 ] || [ $RONDO_RESTART_COUNT = 2 ] || exit 9";
  auto r = run(place, {"-n", "2", "--max-restarts", "2"}, script);
  REQUIRE(r.exit_code == 0);
  std::set<std::string> directories;
  for (const std::string& line : sorted_lines(r.out)) {
    directories.insert(line.substr(4, line.rfind(' ') - 4));
  }
  REQUIRE(directories.size() == 3);
  REQUIRE(contains(r.err, "restarting all ranks: 2 of 2"));
  REQUIRE(std::filesystem::is_empty(place.path()));
  REQUIRE(run(place, {"-n", "2", "--max-restarts", "1"}, script).exit_code == 9);
}

TEST_CASE("a killed launcher takes its ranks along", "[rondo-run]") {
  TempDirectory place;
  run(place, {"-n", "2"}, "echo $$ >> $PLACE/pids; while :; do :; done", [&](pid_t launcher) {
    const auto start = std::chrono::steady_clock::now();
    while (written_pids(place).size() < 2) {
      REQUIRE(std::chrono::steady_clock::now() - start < std::chrono::seconds(30));
    }
    kill(launcher, SIGKILL);
  });
  // run() returned because the ranks' ends of the launcher's pipes are closed; their death may take
  // another moment.
  const auto start = std::chrono::steady_clock::now();
  for (const std::string& pid : written_pids(place)) {
    while (is_running(pid)) {
      REQUIRE(std::chrono::steady_clock::now() - start < std::chrono::seconds(30));
    }
  }
}

TEST_CASE("--version lists what rondo can use, for scripts to ask", "[rondo-run]") {
  const auto without = run_program({RONDO_RUN, "--version"}, {"RONDO_UCX=/nowhere/libucp.so.0"});
  REQUIRE(without.exit_code == 0);
  REQUIRE(without.out.starts_with("rondo-run " RONDO_VERSION "\nucx: no, "));
  const auto as_is = run_program({RONDO_RUN, "--version"});
  INFO(as_is.out);
  for (const std::string ability : {"\nucx: ", "\ncuda: "}) {
    const bool is_said = as_is.out.find(ability + "yes (") != std::string::npos;
    REQUIRE(is_said != (as_is.out.find(ability + "no, ") != std::string::npos));
  }
}

TEST_CASE("output that could not be written is no success", "[rondo-run]") {
  const std::string full = RONDO_RUN " -n 2 -- echo hello >/dev/full";
  const auto r = run_program({"sh", "-c", full});
  REQUIRE(r.exit_code == 125);
  REQUIRE(contains(r.err, "cannot write to stdout: No space left on device"));
  for (const char* flag : {"--help", "--help-environment", "--version"}) {
    const auto help = run_program({"sh", "-c", RONDO_RUN " " + std::string(flag) + " >/dev/full"});
    REQUIRE(help.exit_code == 125);
    REQUIRE(contains(help.err, "cannot write to stdout: "));
  }
}

TEST_CASE("where nobody reads the output any more, the ranks are stopped", "[rondo-run]") {
  for (const std::string words : {"-n 2", "--hosts localhost:2"}) {
    const TempDirectory place;
    const std::string job =
        RONDO_RUN " " + words + " --timeout 40 -- sh -c " + "'echo $$ >> $PLACE/pids; yes'";
    const auto r = run_program({"sh", "-c", "{ " + job + "; echo $? >&2; } | head -n 1"},
                               {"XDG_RUNTIME_DIR=" + place.path(), "PLACE=" + place.path()});
    INFO(r.out << r.err);
    CHECK(contains(r.err, "the reader of the output has ended: what came after that is lost"));
    CHECK(contains(r.err, "\n141\n"));
    require_nothing_left(place, 2);
  }
}

TEST_CASE("too few descriptors for the ranks' pipes: the limit is named", "[rondo-run]") {
  const auto r = run_program({"sh", "-c", "ulimit -n 16; exec " RONDO_RUN " -n 8 true"});
  INFO(r.err);
  REQUIRE(r.exit_code == 125);
  REQUIRE(contains(r.err, "RLIMIT_NOFILE is 16; raise it with ulimit -n"));
}

TEST_CASE("bad command lines", "[rondo-run]") {
  struct Case {
    std::vector<std::string> arguments;
    int exit_code;  // -1: any but 0
    const char* text;
  };
  const std::vector<Case> cases = {
      {{"-n", "2", "/nonexistent/program"}, 127, "/nonexistent/program: No such file"},
      {{"-n", "2", "no-such-program-in-path", "x"}, 127, "no-such-program-in-path: No such file"},
      {{"-n", "2", "/dev/null"}, 126, "/dev/null: Permission denied"},
      {{"-n", "0", "true"}, 2, "-n is \"0\""},
      {{"-n", "many", "true"}, 2, "-n is \"many\""},
      {{"-n", "-3", "true"}, 2, "-n is \"-3\""},
      {{"-n", "2"}, 2, "no program given"},
      {{"-n", "2", "--"}, 2, "no program given"},
      {{"true"}, -1, "-n"},
      {{"-np", "2", "true"}, 2, "mpirun's -np is -n here"},
      {{"--nnodes", "1", "-n", "2", "true"}, 2, "unknown option --nnodes"},
      {{"-n", "2", "--timeout", "0", "true"},
       2,
       "--timeout: '0' is not a number of seconds from 0.001"},
      {{"-n", "2", "--timeout", "nan", "true"}, 2, "--timeout: 'nan' is not"},
      {{"-n", "2", "--lost-after", "nan", "true"}, 2, "--lost-after: 'nan' is not"},
      {{"-n", "2", "--max-restarts", "-1", "true"}, 2, "--max-restarts: '-1' is not"},
      {{"--hostfile", "/", "true"}, 2, "--hostfile is \"/\", which cannot be read: Is a directory"},
  };
  for (const Case& c : cases) {
    std::vector<std::string> argv{RONDO_RUN};
    argv.insert(argv.end(), c.arguments.begin(), c.arguments.end());
    auto r = run_program(argv);
    INFO(c.text << ": " << r.exit_code << "\n" << r.out << r.err);
    if (c.exit_code >= 0) REQUIRE(r.exit_code == c.exit_code);
    REQUIRE(r.exit_code != 0);
    REQUIRE(contains(r.err, c.text));
  }
}

}  // namespace
}  // namespace rondo
