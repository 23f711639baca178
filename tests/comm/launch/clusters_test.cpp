// Ranks of two hosts that launchers of clusters have started find each other. The launchers that are
// not installed are played: their variables are set as they set them.
#include <signal.h>

#include <memory>
#include <thread>

#include "tests/comm/launch/mpiruns.hpp"
#include "tests/harness/hosts.hpp"

namespace rondo {
namespace {

using testing::Hosts;

const Words kPerf = {RONDO_PERF, "all_reduce", "-b", "8", "-e", "8", "-n", "1", "-w", "0"};

constexpr const char* kNoLeaks = "ASAN_OPTIONS=detect_leaks=0";

/// One process per rank, on its host, with `variables` separated by spaces.
struct Play {
  const Hosts& hosts;
  std::vector<std::thread> threads{};
  std::vector<std::unique_ptr<ProgramResult>> results{};

  void rank(int host, const std::string& variables) {
    results.push_back(std::make_unique<ProgramResult>());
    threads.emplace_back([this, host, variables, result = results.back().get()] {
      *result = run_program(hosts.on(host, kPerf), kNoLauncher + split(variables, ' '));
    });
  }
  void check_all() {
    for (std::thread& thread : threads) thread.join();
    for (const auto& result : results) check_ended(*result, {});
    CHECK(count(results.front()->out, "# Out of bounds values : 0 OK") == 1);
  }
};

/// The remote agent of an mpirun. Hydra's gets flags of ssh's before the host.
std::string write_agent(const JobDirectory& place, const Hosts& hosts) {
  std::string script = "while [ \"${1#-}\" != \"$1\" ]; do shift; done\nexec";
  for (const std::string& word : hosts.agent()) script += " " + word;
  return place.write_program("agent", script + " \"$@\"\n");
}

/// mpirun on the first host, over the hosts in `list`.
ProgramResult run_over(const Hosts& hosts, const Mpirun& mpirun, const std::string& list,
                       const Words& variables, const Words& program = kPerf) {
  const JobDirectory place;
  const std::string agent = write_agent(place, hosts);
  const Words remote = mpirun.is_open_mpi
                           ? Words{"--mca", "plm_rsh_agent", agent, "--host", list}
                           : Words{"-launcher", "ssh", "-launcher-exec", agent, "-hosts", list};
  return run_program(hosts.on(0, Words{mpirun.path} + mpirun.flags(variables) + remote + program),
                     kNoLauncher + variables + Words{"TMPDIR=" + place.path()});
}

TEST_CASE("mpirun over two hosts", "[clusters]") {
  const Hosts hosts(3);
  for (const Mpirun& mpirun : mpiruns()) {
    INFO(mpirun.path);
    const auto run = [&](const std::string& list, const Words& variables) {
      return run_over(hosts, mpirun, list, variables);
    };
    check_refused(run("h0:1,h1:1", {"MASTER_ADDR=h0"}), {"RONDO_SECRET_FILE"});
    check_tables(run("h0:2,h1:1", {"MASTER_ADDR=h0", "RONDO_SECRET=s3cret"}));
    check_tables(run("h1:1,h2:1", {"MASTER_ADDR=h1", "RONDO_SECRET=s3cret"}));
    // Open MPI 4 says where mpirun runs.
    const ProgramResult nameless = run("h0:1,h1:1", {"RONDO_SECRET=s3cret"});
    if (nameless.exit_code == 0) {
      check_tables(nameless);
    } else {
      check_refused(nameless, {"MASTER_ADDR"});
    }
    check_refused(run("h1:1,h2:1", {"RONDO_SECRET=s3cret"}), {"MASTER_ADDR"});
  }
}

TEST_CASE("PMIx alone: ranks ask the launcher's server for their number, a place and a secret",
          "[clusters]") {
  const Hosts hosts(3);
  // Without what other launchers with PMIx leave out. libpmix leaks a few bytes.
  Words without_variables = {"/usr/bin/env"};
  for (const char* name : {"RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"}) {
    without_variables = without_variables + Words{"-u", std::string("OMPI_COMM_WORLD_") + name};
  }
  without_variables.push_back(kNoLeaks);
  for (const Mpirun& mpirun : mpiruns()) {
    if (!mpirun.is_open_mpi) continue;
    for (const std::string list : {"h0:2", "h0:2,h1:1", "h1:1,h2:2"}) {
      INFO(mpirun.path << " on " << list);
      const ProgramResult ran = run_over(hosts, mpirun, list, {}, without_variables + kPerf);
      if (contains(ran.out + ran.err, "was built without pmix.h")) {
        WARN("no PMIx in this build: not tested");
        return;
      }
      check_tables(ran);
      CHECK(contains(ran.out, list == "h0:2" ? "# ranks: 2" : "# ranks: 3"));
    }
  }
}

TEST_CASE("PMIx variables without a server", "[clusters]") {
  const ProgramResult ran =
      run_program(kPerf, kNoLauncher + Words{"PMIX_RANK=1", "PMIX_NAMESPACE=none", kNoLeaks});
  check_refused(ran, {"PMIX_RANK is 1 but WORLD_SIZE is not set"});
  CHECK((contains(ran.err, "PMIx_Init failed") || contains(ran.err, "pmix.h") ||
         contains(ran.err, "libpmix2")));
}

TEST_CASE("rondo-run over two hosts, and over two names of this one, which need no agent",
          "[clusters]") {
  const Hosts hosts(2);
  std::string agent;
  for (const std::string& word : hosts.agent()) agent += word + " ";
  const auto check_ranks = [](const std::string& by, const std::string& list, const char* ranks) {
    const ProgramResult ran =
        run_program(Words{RONDO_RUN, "--agent", by, "--hosts", list, "--"} + kPerf, kNoLauncher);
    check_tables(ran);
    CHECK(contains(ran.out, ranks));
  };
  check_ranks(agent, "h0:2,h1", "# ranks: 3");
  check_ranks(agent, "fd77::1,fd77::2", "# ranks: 2");
  check_ranks("false", "localhost:2,127.0.0.1:1", "# ranks: 3");
}

TEST_CASE("srun over two nodes", "[clusters]") {
  const Hosts hosts(2);
  Play play{hosts};
  for (int rank = 0; rank < 3; ++rank) {
    const std::string node = std::to_string(rank / 2);
    play.rank(rank / 2,
              "SLURM_STEP_NUM_TASKS=3 SLURM_STEP_TASKS_PER_NODE=2,1 SLURM_STEP_NODELIST=h[0-1] "
              "SLURM_JOB_ID=17 SLURM_STEP_ID=0 RONDO_SECRET=s3cret SLURM_PROCID=" +
                  std::to_string(rank) + " SLURM_NODEID=" + node +
                  " SLURM_LOCALID=" + std::to_string(rank % 2));
  }
  play.check_all();
}

TEST_CASE("torchrun over two nodes, while its agent listens at MASTER_PORT", "[clusters]") {
  const Hosts hosts(2);
  for (const std::string& address : {Hosts::address(0), Hosts::address_v6(0), Hosts::name(0)}) {
    INFO(address);
    Play play{hosts};
    for (int rank = 0; rank < 3; ++rank) {
      const int node = rank / 2;
      play.rank(node,
                "WORLD_SIZE=3 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=none RONDO_SECRET=s3cret "
                "TORCHELASTIC_RESTART_COUNT=0 MASTER_ADDR=" +
                    address + " RANK=" + std::to_string(rank) + " LOCAL_RANK=" +
                    std::to_string(rank % 2) + " LOCAL_WORLD_SIZE=" + std::to_string(2 - node));
    }
    play.check_all();
  }
}

TEST_CASE("plain variables, as of an indexed job's pods", "[clusters]") {
  const Hosts hosts(2);
  const JobDirectory place;
  place.write("secret", "s3cret\n");
  std::filesystem::permissions(place.file("secret"), std::filesystem::perms::owner_read);
  for (const std::string more : {" LOCAL_WORLD_SIZE=1", "", " RONDO_RENDEZVOUS=tcp://h0:23456"}) {
    Play play{hosts};
    for (int rank = 0; rank < 2; ++rank) {
      play.rank(rank,
                "WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=h0 MASTER_PORT=29500 "
                "RONDO_SECRET_FILE=" +
                    place.file("secret") + " RANK=" + std::to_string(rank) + more);
    }
    play.check_all();
  }
}

}  // namespace
}  // namespace rondo
