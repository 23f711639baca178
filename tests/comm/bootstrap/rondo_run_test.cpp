// rondo-run from the outside: exit codes, output, and that nothing outlives it.
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <set>

#include "rondo/rondo.h"
#include "tests/comm/bootstrap/rondo_run_helpers.hpp"
#include "tests/harness/terminal.hpp"

namespace rondo {
namespace {

TEST_CASE("every rank gets its environment", "[rondo-run]") {
  const JobDirectory place;
  check_ended(
      place.run("-n 3",
                "[ $(stat -c %a $RONDO_RENDEZVOUS) = 700 ] && [ ${#RONDO_SECRET} = 64 ] && "
                "[ $MASTER_PORT -gt 0 ] && echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE "
                "$MASTER_ADDR $RONDO_RESTART_COUNT"),
      {.prints = {
           {"[0] 0 3 0 3 127.0.0.1 0", "[1] 1 3 1 3 127.0.0.1 0", "[2] 2 3 2 3 127.0.0.1 0"}}});
  CHECK(std::filesystem::is_empty(place.path()));
}

TEST_CASE("ranks share the CPUs where there is one for each", "[rondo-run]") {
  const JobDirectory place;
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  REQUIRE(sched_getaffinity(0, sizeof allowed, &allowed) == 0);
  const int cpus = CPU_COUNT(&allowed);
  const auto lists = [&](int ranks, const std::string& bind) {
    const ProgramResult r = place.run("-n " + std::to_string(ranks) + " --no-prefix --bind " + bind,
                                      "sed -n 's/Cpus_allowed_list:[^0-9]*//p' /proc/self/status");
    check_ended(r, {});
    return sorted_lines(r.out);
  };
  const std::string all = lists(1, "share").at(0);
  // As many ranks as CPUs: one for each, all different, and nothing outside.
  const Words shares = lists(cpus, "share");
  REQUIRE(std::set<std::string>(shares.begin(), shares.end()).size() == static_cast<size_t>(cpus));
  for (const std::string& share : shares) {
    REQUIRE(share.find_first_not_of("0123456789") == std::string::npos);
    REQUIRE(CPU_ISSET(std::stoi(share), &allowed));
  }
  CHECK(lists(cpus, "none") == Words(static_cast<size_t>(cpus), all));
  CHECK(lists(cpus + 1, "share") == Words(static_cast<size_t>(cpus) + 1, all));
}

TEST_CASE("each job has a secret of its own, and lines without prefixes", "[rondo-run]") {
  const JobDirectory place;
  const Words one = split(place.run("-n 2 --no-prefix", "echo $RONDO_SECRET").out, '\n');
  REQUIRE(one.size() == 2);
  CHECK(one[0].size() == 64);
  CHECK(one[1] == one[0]);
  CHECK(place.run("-n 1 --no-prefix", "echo $RONDO_SECRET").out != one[0] + "\n");
}

TEST_CASE("what an outer launcher has said of its rank is not passed on", "[rondo-run]") {
  const JobDirectory place;
  check_ended(
      place.program({RONDO_RUN, "-n", "2", "--", "sh", "-c",
                     "echo $RANK/$WORLD_SIZE$TORCHELASTIC_RUN_ID$OMPI_COMM_WORLD_RANK$PMI_RANK"},
                    {"RANK=7", "WORLD_SIZE=9", "TORCHELASTIC_RUN_ID=none", "OMPI_COMM_WORLD_RANK=7",
                     "PMI_RANK=7"}),
      {.prints = {{"[0] 0/2", "[1] 1/2"}}});
}

TEST_CASE("the program may follow without --, and keeps its own flags", "[rondo-run]") {
  for (const char* flag : {"-n2", "--np=2", "--nproc-per-node=2"}) {
    check_ended(
        run_program({RONDO_RUN, "--standalone", flag, "echo", "-n", "7", "--timeout", "--"}),
        {.prints = {{"[0] 7 --timeout --", "[1] 7 --timeout --"}}});
  }
  check_ended(run_program({RONDO_RUN, "--bind", "none", "-np", "2", "--", "echo", "-np", "7"}),
              {.prints = {{"[0] -np 7", "[1] -np 7"}}});
}

TEST_CASE("output keeps its stream, its bytes and its last partial line", "[rondo-run]") {
  const ProgramResult r = JobDirectory().run("-n 1",
                                             "printf 'a\\0b\\n\\nlast'; printf 'e\\377\\n' >&2; "
                                             "head -c 300000 /dev/zero | tr '\\0' x >&2");
  CHECK(r.exit_code == 0);
  CHECK(r.out == std::string("[0] a\0b\n[0] \n[0] last\n", 22));
  CHECK(r.err == "[0] e\377\n[0] " + std::string(300000, 'x') + "\n");
}

TEST_CASE("where rondo-run has no stdout that is an error, and without stdin and stderr it works",
          "[rondo-run]") {
  const auto with = [](const std::string& streams) {
    return run_program({"/bin/sh", "-c", "exec " RONDO_RUN " -n 2 -- echo hi " + streams});
  };
  check_ended(with(">&-"), {.exit_code = 125, .says = {"cannot write to stdout"}});
  for (const char* streams : {"<&-", "2>&-", "<&- 2>&-"}) {
    INFO(streams);
    check_ended(with(streams), {.prints = {{"[0] hi", "[1] hi"}}});
  }
}

TEST_CASE("one error of all ranks is printed once, with their number") {
  const JobDirectory place;
  // Where the machine holds a rank up for half a second, all lines are printed.
  for (int attempt = 0; attempt < 20; ++attempt) {
    const ProgramResult r = place.run("-n 3", "echo no such file >&2; exit 2");
    check_ended(r, {.exit_code = 2, .says = {"] no such file\n"}});
    if (!contains(r.err, "'s last line came from 3 ranks: 0 1 2\n")) continue;
    CHECK(r.err.find("] no such file") == r.err.rfind("] no such file"));
    return;
  }
  FAIL("no error of three ranks was printed once");
}

TEST_CASE("ranks learn which of their pipes lead to a terminal") {
  const JobDirectory place;
  const testing::Terminal terminal;
  const auto check_named = [&](const std::string& redirect, const std::string& pipes) {
    check_ended(
        place.program({"sh", "-c",
                       RONDO_RUN
                           " -n 1 -- sh -c '"
                           "out=$(stat -L -c %i /proc/$$/fd/1); err=$(stat -L -c %i /proc/$$/fd/2);"
                           "echo " +
                           pipes +
                           " >$PLACE/pipes;"
                           "echo ${RONDO_TERMINAL-none} >$PLACE/named' " +
                           redirect}),
        {});
    CHECK(place.word_in("named") == place.word_in("pipes"));
  };
  check_named(">" + terminal.path() + " 2>/dev/null", "$out");
  check_named("2>" + terminal.path() + " >/dev/null", "$err");
  check_named(">" + terminal.path() + " 2>&1", "$out,$err");
  check_named("2>/dev/null >/dev/null", "none");
}

TEST_CASE("lines of many ranks stay whole", "[rondo-run]") {
  const ProgramResult r =
      JobDirectory().run("-n 4",
                         "i=0; while [ $i -lt 500 ]; do printf 'rank %s ' $RANK; "
                         "echo line $i; i=$((i+1)); done");
  check_ended(r, {});
  size_t next[4] = {};
  const Words lines = split(r.out, '\n');
  for (const std::string& line : lines) {
    const std::string rank = line.substr(1, 1);
    REQUIRE(line == "[" + rank + "] rank " + rank + " line " +
                        std::to_string(next[std::stoul(rank) % 4]++));
  }
  CHECK(lines.size() == 2000);
}

TEST_CASE("the first failure stops all and gives the exit code", "[rondo-run]") {
  const JobDirectory place;
  // The others write their pids first; the failing one waits until they have.
  check_ended(
      place.run("-n 3",
                "echo $$ >> $PLACE/pids; if [ $RANK = 1 ]; then "
                "while [ $(wc -l < $PLACE/pids) -lt 3 ]; do :; done; exit 7; fi; exec sleep 1000"),
      {.exit_code = 7, .says = {"rank 1 exited with code 7"}});
  place.require_nothing_left(3);
}

// Rank 0 knows why, and rank 1, whom it told, ends first.
TEST_CASE("behind the first failure others have a moment to say why", "[rondo-run]") {
  check_ended(JobDirectory().run(
                  "-n 2",
                  "if [ $RANK = 1 ]; then echo $$ > $PLACE/one; exit 3; fi; "
                  "until [ -s $PLACE/one ]; do :; done; one=$(cat $PLACE/one); "
                  "until grep -qs '^State:.Z' /proc/$one/status; do :; done; echo because; exit 4"),
              {.exit_code = 3, .prints = {{"[0] because"}}});
}

TEST_CASE("who was killed is named, not who noticed", "[rondo-run]") {
  // The launcher is held up until both have ended.
  check_ended(JobDirectory().run(
                  "-n 2",
                  "ended() { grep -qs '^State:.Z' /proc/$1/status; }; if [ $RANK = 1 ]; then "
                  "kill -STOP $PPID; echo $$ > $PLACE/one; kill -KILL $$; fi; me=$$; "
                  "until [ -s $PLACE/one ] && ended $(cat $PLACE/one); do :; done; "
                  "( until ended $me; do :; done; kill -CONT $PPID ) & exit 5"),
              {.exit_code = 128 + SIGKILL, .says = {"rank 1 was killed by signal 9"}});
}

TEST_CASE("elastic: a rank that is killed does not end the job", "[rondo-run]") {
  const JobDirectory place;
  // The others wait for its end, and longer than a failed job would let them.
  check_ended(place.run("-n 3 --elastic",
                        "if [ $RANK = 1 ]; then echo $$ >$PLACE/new; mv $PLACE/new $PLACE/one; "
                        "kill -KILL $$; fi; until [ -e $PLACE/one ] && "
                        "grep -qs '^State:.Z' /proc/$(cat $PLACE/one)/status; do :; done; sleep 1; "
                        "echo done"),
              {.prints = {{"[0] done", "[2] done"}},
               .says = {"rank 1 was killed by signal 9 (Killed); the others go on"}});
  // Where all are, it has failed, and is tried again.
  check_ended(place.run("-n 2 --elastic --max-restarts 1",
                        "[ $RONDO_RESTART_COUNT = 0 ] && kill -SEGV $$; echo again"),
              {.prints = {{"[0] again", "[1] again"}}});
  check_ended(place.run("-n 2 --elastic", "kill -SEGV $$"), {.exit_code = 128 + SIGSEGV});
  // An exit code is no death.
  check_ended(place.run("-n 2 --elastic", "[ $RANK = 1 ] && exit 3; sleep 1000"),
              {.exit_code = 3, .says = {"rank 1 exited with code 3; stopping the others"}});
}

TEST_CASE("a signal's end is 128 + signal, and stubborn ranks are killed with their children",
          "[rondo-run]") {
  const JobDirectory place;
  check_ended(
      place.run("-n 2",
                "trap '' TERM; echo $$ >> $PLACE/pids; sleep 1000 & echo $! >> $PLACE/pids; "
                "setsid sleep 1000 & echo $! >> $PLACE/pids; "
                "if [ $RANK = 0 ]; then while [ $(wc -l < $PLACE/pids) -lt 6 ]; do :; done; "
                "kill -SEGV $$; fi; wait; wait; sleep 1000"),
      {.exit_code = 128 + SIGSEGV, .says = {"rank 0 was killed by signal 11"}});
  place.require_nothing_left(6);
}

TEST_CASE("what a rank leaves running ends with the job", "[rondo-run]") {
  const JobDirectory place;
  check_ended(place.run("-n 2",
                        "setsid sleep 1000 & echo $! >> $PLACE/pids; sleep 1000 & "
                        "echo $! >> $PLACE/pids; echo done"),
              {.prints = {{"[0] done", "[1] done"}}});
  place.require_nothing_left(4);
}

// A group's number may go to another process of the user once its leader is reaped and the group is
// empty; signals to the group would reach that process.
TEST_CASE("a rank's number is nobody else's until the job is over", "[rondo-run]") {
  // Each signal is passed on in a turn of the launcher, so after two of them it has noticed the end.
  const std::string job =
      "trap '' USR1; if [ $RANK = 0 ]; then echo $$ > $PLACE/zero; exit 0; fi; "
      "until [ -s $PLACE/zero ]; do :; done; zero=$(cat $PLACE/zero); "
      "while grep -qs '^State:.[^Z]' /proc/$zero/status; do :; done; "
      "for times in 1 2; do kill -USR1 $PPID; "
      "until [ $(grep -c 'User defined signal 1' $PLACE/err) -ge $times ]; do :; done; done; "
      "grep -qs '^State:.Z' /proc/$zero/status && echo held";
  check_ended(JobDirectory().program(
                  {"sh", "-c", RONDO_RUN " -n 2 -- sh -c \"$JOB\" 2> $PLACE/err"}, {"JOB=" + job}),
              {.prints = {{"[1] held"}}});
}

TEST_CASE("orphans of a rank do not stay as zombies while the job runs", "[rondo-run]") {
  check_ended(JobDirectory().run(
                  "-n 1",
                  "(sh -c 'echo $$ > $PLACE/orphan' &); until [ -s $PLACE/orphan ]; do :; done; "
                  "orphan=$(cat $PLACE/orphan); while [ -e /proc/$orphan ]; do :; done; "
                  "echo reaped"),
              {.prints = {{"[0] reaped"}}});
}

TEST_CASE("a parent that ignores SIGCHLD does not keep the ends of ranks from rondo-run",
          "[rondo-run]") {
  check_ended(run_program({"env", "--ignore-signal=CHLD", RONDO_RUN, "-n", "2", "--timeout", "20",
                           "sh", "-c", "exit 7"}),
              {.exit_code = 7});
}

TEST_CASE("the time limit ends the job with 124", "[rondo-run]") {
  const JobDirectory place;
  check_ended(place.run("-n 2 --timeout 0.5", "echo $$ >> $PLACE/pids; exec sleep 1000"),
              {.exit_code = 124, .says = {"time limit"}});
  place.require_nothing_left();  // a busy machine may not have started all
}

TEST_CASE("a failed job is started again, with a fresh rendezvous", "[rondo-run]") {
  const JobDirectory place;
  const std::string script =
      "echo $RONDO_RENDEZVOUS; [ $RANK != 1 ] || [ $RONDO_RESTART_COUNT = 2 ] || exit 9";
  const ProgramResult r = place.run("-n 2 --max-restarts 2 --no-prefix", script);
  check_ended(r, {.says = {"restarting all ranks: 2 of 2"}});
  const Words directories = sorted_lines(r.out);
  CHECK(std::set<std::string>(directories.begin(), directories.end()).size() == 3);
  CHECK(std::filesystem::is_empty(place.path()));
  CHECK(place.run("-n 2 --max-restarts 1", script).exit_code == 9);
}

TEST_CASE("a killed launcher takes its ranks along", "[rondo-run]") {
  const JobDirectory place;
  place.run("-n 2", "echo $$ >> $PLACE/pids; while :; do :; done", [&](pid_t launcher) {
    place.await_pids(2);
    kill(launcher, SIGKILL);
  });
  // run() returned because the ranks' ends of the launcher's pipes are closed; their death may take
  // another moment.
  for (const std::string& pid : place.pids()) await([&] { return !is_running(pid); });
}

TEST_CASE("--version lists what rondo can use, for scripts to ask", "[rondo-run]") {
  const auto without = run_program({RONDO_RUN, "--version"}, {"RONDO_UCX=/nowhere/libucp.so.0"});
  REQUIRE(without.exit_code == 0);
  REQUIRE(without.out.starts_with("rondo-run " RONDO_VERSION "\nucx: no, "));
  const std::string as_is = run_program({RONDO_RUN, "--version"}).out;
  INFO(as_is);
  for (const std::string ability : {"\nucx: ", "\ncuda: "}) {
    REQUIRE(contains(as_is, ability + "yes (") != contains(as_is, ability + "no, "));
  }
}

TEST_CASE("output that could not be written is no success", "[rondo-run]") {
  const auto check = [](const std::string& words, const std::string& why) {
    check_ended(run_program({"sh", "-c", RONDO_RUN " " + words + " >/dev/full"}),
                {.exit_code = 125, .says = {"cannot write to stdout: " + why}});
  };
  check("-n 2 -- echo hello", "No space left on device");
  for (const char* flag : {"--help", "--help-environment", "--version"}) check(flag, "");
}

TEST_CASE("where nobody reads the output any more, the ranks are stopped", "[rondo-run]") {
  for (const std::string words : {"-n 2", "--hosts localhost:2"}) {
    const JobDirectory place;
    const std::string job =
        RONDO_RUN " " + words + " --timeout 40 -- sh -c 'echo $$ >> $PLACE/pids; yes'";
    check_ended(
        place.program({"sh", "-c", "{ " + job + "; echo $? >&2; } | head -n 1"}),
        {.says = {"the reader of the output has ended: what came after that is lost", "\n141\n"}});
    place.require_nothing_left(2);
  }
}

TEST_CASE("too few descriptors for the ranks' pipes: the limit is named", "[rondo-run]") {
  check_ended(run_program({"sh", "-c", "ulimit -n 16; exec " RONDO_RUN " -n 8 true"}),
              {.exit_code = 125, .says = {"RLIMIT_NOFILE is 16; raise it with ulimit -n"}});
}

TEST_CASE("bad command lines", "[rondo-run]") {
  const auto check = [](const std::string& words, int exit_code, const std::string& text) {
    INFO(words);
    check_ended(run_program(Words{RONDO_RUN} + split(words, ' ')),
                {.exit_code = exit_code, .says = {text}});
  };
  check("-n 2 /nonexistent/program", 127, "/nonexistent/program: No such file");
  check("-n 2 no-such-program-in-path x", 127, "no-such-program-in-path: No such file");
  check("-n 2 /dev/null", 126, "/dev/null: Permission denied");
  check("-n 0 true", 2, "-n is \"0\"");
  check("-n many true", 2, "-n is \"many\"");
  check("-n -3 true", 2, "-n is \"-3\"");
  check("-n 2", 2, "no program given");
  check("-n 2 --", 2, "no program given");
  check("true", 2, "-n");
  check("--nnodes 1 -n 2 true", 2, "unknown option --nnodes");
  check("-n 2 --timeout 0 true", 2, "--timeout: '0' is not a number of seconds from 0.001");
  check("-n 2 --timeout nan true", 2, "--timeout: 'nan' is not");
  check("-n 2 --lost-after nan true", 2, "--lost-after: 'nan' is not");
  check("-n 2 --max-restarts -1 true", 2, "--max-restarts: '-1' is not");
  check("--hostfile / true", 2, "--hostfile is \"/\", which cannot be read: Is a directory");
}

}  // namespace
}  // namespace rondo
