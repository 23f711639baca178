// Ranks of two hosts that launchers of clusters have started find each other. The launchers that are
// not installed are played: their variables are set as they set them.
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/comm/launch/mpiruns.hpp"
#include "tests/harness/catch.hpp"
#include "tests/harness/hosts.hpp"
#include "tests/harness/rank_group.hpp"

namespace rondo {
namespace {

using testing::Hosts;
using testing::ProgramResult;
using testing::TempDirectory;

const std::vector<std::string> kPerf = {RONDO_PERF, "all_reduce", "-b", "8",  "-e",
                                        "8",        "-n",         "1",  "-w", "0"};

constexpr const char* kNoLeaks = "ASAN_OPTIONS=detect_leaks=0";

std::vector<std::string> operator+(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Either the job has run, or its ranks have met and learned that they share no memory.
bool has_met(const ProgramResult& ran) {
  return ran.exit_code == 0 && holds(ran.out, "# Out of bounds values : 0 OK");
}

/// One process per rank: on its host, with its variables.
struct PlayedRank {
  int host;
  std::vector<std::string> variables;
};
std::string play(const Hosts& hosts, const std::vector<PlayedRank>& ranks) {
  std::vector<ProgramResult> results(ranks.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] {
      results[i] = run_program(hosts.on(ranks[i].host, kPerf), kNoLauncher + ranks[i].variables);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::string failures;
  for (const ProgramResult& result : results) {
    if (!has_met(result) && result.exit_code != 0) failures += result.out + result.err;
  }
  return failures;
}

/// The remote agent of an mpirun. Hydra's gets flags of ssh's before the host.
void write_agent(const std::string& path, const Hosts& hosts) {
  {
    std::ofstream file(path);
    file << "#!/bin/sh\nwhile [ \"${1#-}\" != \"$1\" ]; do shift; done\nexec";
    for (const std::string& word : hosts.agent()) file << " " << word;
    file << " \"$@\"\n";
  }
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
}

TEST_CASE("mpirun over two hosts", "[clusters]") {
  const Hosts hosts(3);
  const TempDirectory place;
  const std::string agent = place.path() + "/agent";
  write_agent(agent, hosts);
  for (const Mpirun& mpirun : mpiruns()) {
    INFO(mpirun.path);
    const auto run = [&](const std::string& list, std::vector<std::string> variables) {
      std::vector<std::string> words = {mpirun.path};
      if (mpirun.is_open_mpi) {
        words = words + std::vector<std::string>{"--mca",           "plm_rsh_agent", agent,
                                                 "--oversubscribe", "--bind-to",     "none"};
        for (const std::string& variable : variables) {
          words = words + std::vector<std::string>{"-x", variable.substr(0, variable.find('='))};
        }
      } else {
        words = words + std::vector<std::string>{"-launcher", "ssh", "-launcher-exec", agent};
      }
      words = words + std::vector<std::string>{mpirun.is_open_mpi ? "--host" : "-hosts", list};
      variables.push_back("TMPDIR=" + place.path());
      return run_program(hosts.on(0, words + kPerf), kNoLauncher + variables,
                         std::chrono::seconds(60));
    };
    const ProgramResult no_secret = run("h0:1,h1:1", {"MASTER_ADDR=h0"});
    INFO(no_secret.out << no_secret.err);
    CHECK(no_secret.exit_code != 0);
    CHECK(holds(no_secret.out + no_secret.err, "RONDO_SECRET_FILE"));

    const ProgramResult met = run("h0:2,h1:1", {"MASTER_ADDR=h0", "RONDO_SECRET=s3cret"});
    INFO(met.out << met.err);
    CHECK(has_met(met));
    const ProgramResult elsewhere = run("h1:1,h2:1", {"MASTER_ADDR=h1", "RONDO_SECRET=s3cret"});
    INFO(elsewhere.out << elsewhere.err);
    CHECK(has_met(elsewhere));

    // Open MPI 4 says where mpirun runs.
    const ProgramResult nameless = run("h0:1,h1:1", {"RONDO_SECRET=s3cret"});
    INFO(nameless.out << nameless.err);
    CHECK((has_met(nameless) || holds(nameless.out + nameless.err, "MASTER_ADDR")));
    const ProgramResult lost = run("h1:1,h2:1", {"RONDO_SECRET=s3cret"});
    INFO(lost.out << lost.err);
    CHECK(lost.exit_code != 0);
    CHECK(holds(lost.out + lost.err, "MASTER_ADDR"));
  }
}

TEST_CASE("PMIx alone: ranks ask the launcher's server for their number, a place and a secret",
          "[clusters]") {
  const Hosts hosts(3);
  const TempDirectory place;
  const std::string agent = place.path() + "/agent";
  write_agent(agent, hosts);
  // Without what other launchers with PMIx leave out. libpmix leaks a few bytes.
  std::vector<std::string> no_variables = {"/usr/bin/env", kNoLeaks};
  for (const char* name : {"RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"}) {
    no_variables.insert(no_variables.begin() + 1, {"-u", std::string("OMPI_COMM_WORLD_") + name});
  }
  for (const Mpirun& mpirun : mpiruns()) {
    if (!mpirun.is_open_mpi) continue;
    for (const char* list : {"h0:2", "h0:2,h1:1", "h1:1,h2:2"}) {
      INFO(mpirun.path << " on " << list);
      const ProgramResult ran =
          run_program(hosts.on(0, std::vector<std::string>{mpirun.path, "--mca", "plm_rsh_agent",
                                                           agent, "--oversubscribe", "--bind-to",
                                                           "none", "--host", list} +
                                      no_variables + kPerf),
                      kNoLauncher + std::vector<std::string>{"TMPDIR=" + place.path()},
                      std::chrono::seconds(60));
      INFO(ran.out << ran.err);
      if (holds(ran.out + ran.err, "was built without pmix.h")) {
        WARN("no PMIx in this build: not tested");
        return;
      }
      CHECK(has_met(ran));
      CHECK(holds(ran.out, std::string(list) == "h0:2" ? "# ranks: 2" : "# ranks: 3"));
    }
  }
}

TEST_CASE("PMIx variables without a server", "[clusters]") {
  const ProgramResult ran = run_program(
      kPerf,
      kNoLauncher + std::vector<std::string>{"PMIX_RANK=1", "PMIX_NAMESPACE=none", kNoLeaks});
  INFO(ran.out << ran.err);
  CHECK(ran.exit_code != 0);
  CHECK(holds(ran.err, "PMIX_RANK is 1 but WORLD_SIZE is not set"));
  CHECK((holds(ran.err, "PMIx_Init failed") || holds(ran.err, "pmix.h") ||
         holds(ran.err, "libpmix2")));
}

TEST_CASE("rondo-run over two hosts", "[clusters]") {
  const Hosts hosts(2);
  std::string agent;
  for (const std::string& word : hosts.agent()) agent += word + " ";
  for (const char* list : {"h0:2,h1", "fd77::1,fd77::2"}) {
    const ProgramResult ran = run_program(
        std::vector<std::string>{RONDO_RUN, "--agent", agent, "--hosts", list, "--"} + kPerf,
        kNoLauncher);
    INFO(ran.out << ran.err);
    CHECK(has_met(ran));
  }
}

TEST_CASE("two names of this host are two hosts that need no agent", "[clusters]") {
  const ProgramResult ran =
      run_program(std::vector<std::string>{RONDO_RUN, "--agent", "false", "--hosts",
                                           "localhost:2,127.0.0.1:1", "--"} +
                      kPerf,
                  kNoLauncher);
  INFO(ran.out << ran.err);
  CHECK(ran.exit_code == 0);
  CHECK(holds(ran.out, "# ranks: 3"));
  CHECK(holds(ran.out, "# Out of bounds values : 0 OK"));
}

TEST_CASE("srun over two nodes", "[clusters]") {
  const Hosts hosts(2);
  std::vector<PlayedRank> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    const int node = rank / 2;
    ranks.push_back({node,
                     {"SLURM_PROCID=" + std::to_string(rank), "SLURM_STEP_NUM_TASKS=3",
                      "SLURM_STEP_TASKS_PER_NODE=2,1", "SLURM_NODEID=" + std::to_string(node),
                      "SLURM_LOCALID=" + std::to_string(rank % 2), "SLURM_STEP_NODELIST=h[0-1]",
                      "SLURM_JOB_ID=17", "SLURM_STEP_ID=0", "RONDO_SECRET=s3cret"}});
  }
  CHECK(play(hosts, ranks).empty());
}

TEST_CASE("torchrun over two nodes, while its agent listens at MASTER_PORT", "[clusters]") {
  const Hosts hosts(2);
  for (const std::string& address : {Hosts::address(0), Hosts::address_v6(0), Hosts::name(0)}) {
    INFO(address);
    std::vector<PlayedRank> ranks;
    for (int rank = 0; rank < 3; ++rank) {
      const int node = rank / 2;
      ranks.push_back({node,
                       {"RANK=" + std::to_string(rank), "WORLD_SIZE=3",
                        "LOCAL_RANK=" + std::to_string(rank % 2),
                        "LOCAL_WORLD_SIZE=" + std::to_string(2 - node), "MASTER_ADDR=" + address,
                        "MASTER_PORT=29500", "TORCHELASTIC_RUN_ID=none",
                        "TORCHELASTIC_RESTART_COUNT=0", "RONDO_SECRET=s3cret"}});
    }
    CHECK(play(hosts, ranks).empty());
  }
}

TEST_CASE("plain variables, as of an indexed job's pods", "[clusters]") {
  const Hosts hosts(2);
  const TempDirectory place;
  const std::string file = place.path() + "/secret";
  std::ofstream(file) << "s3cret\n";
  std::filesystem::permissions(file, std::filesystem::perms::owner_read);
  std::vector<PlayedRank> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.push_back(
        {rank,
         {"RANK=" + std::to_string(rank), "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1",
          "MASTER_ADDR=h0", "MASTER_PORT=29500", "RONDO_SECRET_FILE=" + file}});
  }
  CHECK(play(hosts, ranks).empty());
  for (PlayedRank& rank : ranks) std::erase(rank.variables, "LOCAL_WORLD_SIZE=1");
  CHECK(play(hosts, ranks).empty());
  for (PlayedRank& rank : ranks) rank.variables.emplace_back("RONDO_RENDEZVOUS=tcp://h0:23456");
  CHECK(play(hosts, ranks).empty());
}

}  // namespace
}  // namespace rondo
