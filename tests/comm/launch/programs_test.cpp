// rondo-perf and rondo-train, as they are, under the MPI launchers that are installed.
#include <thread>

#include "tests/comm/launch/mpiruns.hpp"

namespace rondo {
namespace {

const Words kPerf = {RONDO_PERF, "all_reduce", "-b", "8", "-e", "64K",
                     "-f",       "32",         "-n", "4", "-w", "1"};

/// Each run has its own TMPDIR: Open MPI 4 fails where two jobs of one user make their common folder
/// at the same moment ("mkdir ... File exists").
ProgramResult run_under(const Mpirun& mpirun, int ranks, const Words& program,
                        const Words& variables = {}) {
  const TempDirectory place;
  return run_program(
      Words{mpirun.path, "-n", std::to_string(ranks)} + mpirun.flags(variables) + program,
      kNoLauncher + variables + Words{"TMPDIR=" + place.path()}, std::chrono::seconds{100});
}

TEST_CASE("rondo-perf under mpirun", "[launch]") {
  for (const Mpirun& mpirun : mpiruns()) {
    INFO(mpirun.path);
    check_tables(run_under(mpirun, 3, kPerf));
    // A shell between the launcher and the rank.
    check_tables(run_under(mpirun, 2, Words{"sh", "-c", "\"$@\"; exit $?", "sh"} + kPerf));
    // mpirun as what starts rondo-run.
    check_tables(run_under(mpirun, 2, Words{RONDO_RUN, "--no-prefix", "-n", "2", "--"} + kPerf), 2);
  }
}

/// Two jobs at once, which never meet.
void check_two(const std::function<ProgramResult()>& one,
               const std::function<ProgramResult()>& other) {
  ProgramResult first;
  std::thread thread([&] { first = one(); });
  const ProgramResult second = other();
  thread.join();
  check_tables(first);
  check_tables(second);
}

TEST_CASE("two jobs of one mpirun at once never meet", "[launch]") {
  for (const Mpirun& mpirun : mpiruns()) {
    INFO(mpirun.path);
    // Of different sizes: meeting would be an error that names both.
    check_two([&] { return run_under(mpirun, 2, kPerf); },
              [&] { return run_under(mpirun, 3, kPerf); });
  }
}

TEST_CASE("rondo-train under mpirun", "[launch]") {
  const JobDirectory place;
  std::string text;
  for (int i = 0; i < 4000; ++i)
    text += "ring " + std::to_string(i % 7) + (i % 3 == 0 ? "\n" : " ");
  place.write("text", text);
  for (const Mpirun& mpirun : mpiruns()) {
    INFO(mpirun.path);
    const ProgramResult ran = run_under(mpirun, 2,
                                        {RONDO_TRAIN, "--model", "mlp", "--data",
                                         place.file("text"), "--steps", "3", "--width", "32"});
    check_ended(ran, {});
    CHECK(count(ran.out, "\"summary\"") == 1);
    CHECK(count(ran.out, "\"loss\"") >= 3);
  }
}

TEST_CASE("mistakes under mpirun are named, and end it with a code other than 0", "[launch]") {
  for (const Mpirun& mpirun : mpiruns()) {
    INFO(mpirun.path);
    check_refused(run_under(mpirun, 2, kPerf, {"RONDO_TIMEOUT=soon"}), {"RONDO_TIMEOUT is 'soon'"});
    check_refused(run_under(mpirun, 2, kPerf, {"RANK=0", "WORLD_SIZE=1"}),
                  {"contradict each other"});
    check_refused(run_under(mpirun, 2, kPerf + Words{"--ranks", "5"}),
                  {"has already started 2 ranks"});
    // A good value is no mistake.
    check_tables(run_under(mpirun, 2, kPerf, {"RONDO_TIMEOUT=20.5"}));
  }
}

TEST_CASE("ranks that each start a job of their own, under the same launcher or another",
          "[launch]") {
  for (const Mpirun& mpirun : mpiruns()) {
    INFO(mpirun.path);
    const TempDirectory place;  // a folder of each job in it, as run_under() has
    std::string inner = "export TMPDIR=$(mktemp -d '" + place.path() + "/XXXXXX'); exec '" +
                        mpirun.path + "' -n 2 ";
    for (const std::string& flag : mpirun.flags()) inner += flag + " ";
    inner += "\"$@\"";
    const auto check_two_jobs = [](const ProgramResult& ran) {
      check_tables(ran, 2);
      CHECK(count(ran.out, "# ranks: 2") == 2);
    };
    check_two_jobs(run_program(
        Words{RONDO_RUN, "--no-prefix", "-n", "2", "--", "sh", "-c", "unset RANK; " + inner, "sh"} +
            kPerf,
        kNoLauncher, std::chrono::seconds{100}));
    if (mpirun.is_open_mpi) continue;  // its mpirun refuses to be one of its own ranks
    check_two_jobs(run_under(mpirun, 2, Words{"sh", "-c", inner, "sh"} + kPerf));
  }
}

TEST_CASE("a PMI job that a rank of a PMI job has started, of as many ranks", "[launch]") {
  // Hydra's proxy inherits rank and size of the outer job, and one of its ranks has the same.
  const JobDirectory place;
  const std::string proxy = place.file("hydra_pmi_proxy");
  std::filesystem::create_symlink("/bin/sh", proxy);
  const std::string job = "for rank in 0 1; do PMI_RANK=$rank PMI_SIZE=2 \"$@\" & done; wait";
  check_tables(run_program(Words{proxy, "-c", job, "hydra_pmi_proxy"} + kPerf,
                           kNoLauncher + Words{"PMI_RANK=0", "PMI_SIZE=2"}));
}

TEST_CASE("two PMI jobs at once, each rank behind a shell", "[launch]") {
  // What tells the jobs apart is the process that started their ranks, whatever stands between.
  const std::string job =
      "for rank in 0 1; do PMI_RANK=$rank PMI_SIZE=2 sh -c '\"$@\"; exit $?' sh \"$@\" & done; "
      "wait";
  const auto run = [&] { return run_program(Words{"sh", "-c", job, "sh"} + kPerf, kNoLauncher); };
  check_two(run, run);
}

TEST_CASE("ranks that rondo-perf starts as threads say one error once") {
  const ProgramResult ran = run_program(
      {RONDO_PERF, "reduce", "--threads", "--ranks", "3", "-r", "7", "-n", "1"}, kNoLauncher);
  check_ended(ran, {.exit_code = 1, .says = {"root 7 is not a rank of a world of 3"}});
  CHECK(count(ran.err, "\n") == 1);
}

}  // namespace
}  // namespace rondo
