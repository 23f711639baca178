// rondo-perf and rondo-train, as they are, under the MPI launchers that are installed.
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "tests/comm/launch/mpiruns.hpp"
#include "tests/harness/catch.hpp"
#include "tests/harness/rank_group.hpp"

namespace rondo {
namespace {

using testing::ProgramResult;
using testing::run_program;
using testing::TempDirectory;

const std::vector<std::string> kPerf = {RONDO_PERF, "all_reduce", "-b", "8", "-e", "64K",
                                        "-f",       "32",         "-n", "4", "-w", "1"};

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++found;
  return found;
}

/// Each run has its own TMPDIR: Open MPI 4 fails where two jobs of one user make their common folder
/// at the same moment ("mkdir ... File exists").
ProgramResult run_under(const Mpirun& mpirun, int ranks, std::vector<std::string> program,
                        const std::vector<std::string>& variables = {}) {
  const TempDirectory place;
  std::vector<std::string> words = {mpirun.path, "-n", std::to_string(ranks)};
  if (mpirun.is_open_mpi) words.insert(words.end(), {"--oversubscribe", "--bind-to", "none"});
  std::vector<std::string> environment = kNoLauncher;
  environment.push_back("TMPDIR=" + place.path());
  for (const std::string& variable : variables) {
    environment.push_back(variable);
    if (mpirun.is_open_mpi) {
      words.insert(words.end(), {"-x", variable.substr(0, variable.find('='))});
    }
  }
  words.insert(words.end(), program.begin(), program.end());
  return run_program(words, environment, std::chrono::seconds{100});
}

/// One table, from one job of `ranks` ranks, with right results.
void require_one_table(const ProgramResult& ran) {
  INFO(ran.out << ran.err);
  REQUIRE(ran.exit_code == 0);
  REQUIRE(count(ran.out, "# Out of bounds values : 0 OK") == 1);
}

TEST_CASE("rondo-perf under mpirun", "[launch]") {
  for (const Mpirun& mpirun : mpiruns()) {
    INFO(mpirun.path);
    require_one_table(run_under(mpirun, 3, kPerf));
    // A shell between the launcher and the rank.
    std::vector<std::string> wrapped = {"sh", "-c", "\"$@\"; exit $?", "sh"};
    wrapped.insert(wrapped.end(), kPerf.begin(), kPerf.end());
    require_one_table(run_under(mpirun, 2, wrapped));
    // mpirun as what starts rondo-run.
    std::vector<std::string> nested = {RONDO_RUN, "--no-prefix", "-n", "2", "--"};
    nested.insert(nested.end(), kPerf.begin(), kPerf.end());
    const ProgramResult two = run_under(mpirun, 2, nested);
    INFO(two.out << two.err);
    REQUIRE(two.exit_code == 0);
    REQUIRE(count(two.out, "# Out of bounds values : 0 OK") == 2);
  }
}

TEST_CASE("two jobs of one mpirun at once never meet", "[launch]") {
  for (const Mpirun& mpirun : mpiruns()) {
    INFO(mpirun.path);
    // Of different sizes: meeting would be an error that names both.
    ProgramResult first, second;
    std::thread other([&] { first = run_under(mpirun, 2, kPerf); });
    second = run_under(mpirun, 3, kPerf);
    other.join();
    require_one_table(first);
    require_one_table(second);
  }
}

TEST_CASE("rondo-train under mpirun", "[launch]") {
  const TempDirectory place;
  const std::string data = place.path() + "/text";
  {
    std::ofstream text(data);
    for (int i = 0; i < 4000; ++i) text << "ring " << i % 7 << (i % 3 == 0 ? "\n" : " ");
  }
  for (const Mpirun& mpirun : mpiruns()) {
    INFO(mpirun.path);
    const ProgramResult ran =
        run_under(mpirun, 2,
                  {RONDO_TRAIN, "--model", "mlp", "--data", data, "--steps", "3", "--width", "32"});
    INFO(ran.out << ran.err);
    REQUIRE(ran.exit_code == 0);
    REQUIRE(count(ran.out, "\"summary\"") == 1);
    REQUIRE(count(ran.out, "\"loss\"") >= 3);
  }
}

TEST_CASE("mistakes under mpirun are named, and end it with a code other than 0", "[launch]") {
  for (const Mpirun& mpirun : mpiruns()) {
    INFO(mpirun.path);
    const auto refused = [&](const ProgramResult& ran, const std::string& part) {
      INFO(ran.out << ran.err);
      REQUIRE(ran.exit_code != 0);
      REQUIRE((ran.out + ran.err).find(part) != std::string::npos);
    };
    refused(run_under(mpirun, 2, kPerf, {"RONDO_TIMEOUT=soon"}), "RONDO_TIMEOUT is 'soon'");
    refused(run_under(mpirun, 2, kPerf, {"RANK=0", "WORLD_SIZE=1"}), "contradict each other");
    std::vector<std::string> more = kPerf;
    more.insert(more.end(), {"--ranks", "5"});
    refused(run_under(mpirun, 2, more), "has already started 2 ranks");
  }
  // A good value is no mistake.
  for (const Mpirun& mpirun : mpiruns()) {
    require_one_table(run_under(mpirun, 2, kPerf, {"RONDO_TIMEOUT=20.5"}));
  }
}

TEST_CASE("ranks that each start a job of their own, under the same launcher or another",
          "[launch]") {
  for (const Mpirun& mpirun : mpiruns()) {
    INFO(mpirun.path);
    const TempDirectory place;  // a folder of each job in it, as run_under() has
    const std::string inner =
        "export TMPDIR=$(mktemp -d '" + place.path() + "/XXXXXX'); exec '" + mpirun.path +
        "' -n 2 " + (mpirun.is_open_mpi ? "--oversubscribe --bind-to none " : "") + "\"$@\"";
    const auto require_two_tables = [](const ProgramResult& ran) {
      INFO(ran.out << ran.err);
      REQUIRE(ran.exit_code == 0);
      REQUIRE(count(ran.out, "# ranks: 2") == 2);
      REQUIRE(count(ran.out, "# Out of bounds values : 0 OK") == 2);
    };
    std::vector<std::string> words = {RONDO_RUN, "--no-prefix",          "-n", "2", "--", "sh",
                                      "-c",      "unset RANK; " + inner, "sh"};
    words.insert(words.end(), kPerf.begin(), kPerf.end());
    require_two_tables(run_program(words, kNoLauncher, std::chrono::seconds{100}));
    if (mpirun.is_open_mpi) continue;  // its mpirun refuses to be one of its own ranks
    words = {"sh", "-c", inner, "sh"};
    words.insert(words.end(), kPerf.begin(), kPerf.end());
    require_two_tables(run_under(mpirun, 2, words));
  }
}

TEST_CASE("a PMI job that a rank of a PMI job has started, of as many ranks", "[launch]") {
  // Hydra's proxy inherits rank and size of the outer job, and one of its ranks has the same.
  const TempDirectory place;
  const std::string proxy = place.path() + "/hydra_pmi_proxy";
  std::filesystem::create_symlink("/bin/sh", proxy);
  const std::string job = "for rank in 0 1; do PMI_RANK=$rank PMI_SIZE=2 \"$@\" & done; wait";
  std::vector<std::string> words = {proxy, "-c", job, "hydra_pmi_proxy"};
  words.insert(words.end(), kPerf.begin(), kPerf.end());
  std::vector<std::string> environment = kNoLauncher;
  for (std::string& each : environment) {
    if (each == "PMI_RANK") each = "PMI_RANK=0";
  }
  environment.emplace_back("PMI_SIZE=2");
  require_one_table(run_program(words, environment));
}

TEST_CASE("two PMI jobs at once, each rank behind a shell", "[launch]") {
  // What tells the jobs apart is the process that started their ranks, whatever stands between.
  const std::string job =
      "for rank in 0 1; do PMI_RANK=$rank PMI_SIZE=2 sh -c '\"$@\"; exit $?' sh \"$@\" & done; "
      "wait";
  std::vector<std::string> words = {"sh", "-c", job, "sh"};
  words.insert(words.end(), kPerf.begin(), kPerf.end());
  ProgramResult first, second;
  std::thread other([&] { first = run_program(words, kNoLauncher); });
  second = run_program(words, kNoLauncher);
  other.join();
  require_one_table(first);
  require_one_table(second);
}

TEST_CASE("ranks that rondo-perf starts as threads say one error once") {
  const ProgramResult ran = run_program(
      {RONDO_PERF, "reduce", "--threads", "--ranks", "3", "-r", "7", "-n", "1"}, kNoLauncher);
  INFO(ran.err);
  CHECK(ran.exit_code == 1);
  CHECK(count(ran.err, "root 7 is not a rank of a world of 3") == 1);
  CHECK(count(ran.err, "\n") == 1);
}

}  // namespace
}  // namespace rondo
