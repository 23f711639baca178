// Who a rank thinks it is: every launcher's variables, and every way in which they can be wrong.
#include "comm/bootstrap/environment.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "tests/comm/bootstrap/environment_variables.hpp"
#include "tests/harness/catch.hpp"
#include "tests/harness/rank_group.hpp"

namespace rondo {
namespace {

using comm::identity_from;

std::string job_directory(const std::string& job) {
  return "/tmp/rondo-" + std::to_string(geteuid()) + "/" + job;
}

TEST_CASE("nothing set: one rank alone", "[environment]") {
  Environment none({});
  auto id = identity_from({});
  REQUIRE(id.ok());
  REQUIRE(id->rank == 0);
  REQUIRE(id->world_size == 1);
  REQUIRE(id->rendezvous.empty());
}

TEST_CASE("rondo-run's and torchrun's variables", "[environment]") {
  Variables set = {{"RANK", "2"},
                   {"WORLD_SIZE", "4"},
                   {"LOCAL_RANK", "2"},
                   {"LOCAL_WORLD_SIZE", "4"},
                   {"MASTER_ADDR", "127.0.0.1"},
                   {"MASTER_PORT", "29500"},
                   {"RONDO_SECRET", "abc"}};
  {
    Environment environment(set);
    auto id = identity_from({});
    REQUIRE(id.ok());
    REQUIRE(id->rank == 2);
    REQUIRE(id->world_size == 4);
    REQUIRE(id->local_rank == 2);
    REQUIRE(id->local_world_size == 4);
    REQUIRE(id->secret == "abc");
    REQUIRE(id->rendezvous == job_directory("port-29500"));
  }
  testing::TempDirectory runtime;
  set["XDG_RUNTIME_DIR"] = runtime.path();
  set["TORCHELASTIC_RUN_ID"] = "my job/1";
  set["TORCHELASTIC_RESTART_COUNT"] = "3";
  {
    Environment environment(set);
    REQUIRE(identity_from({})->rendezvous ==
            runtime.path() + "/rondo-" + std::to_string(geteuid()) + "/torch-29500-my_job_1-3");
  }
  set["XDG_RUNTIME_DIR"] = "/not/on/this/node";
  {
    Environment environment(set);
    REQUIRE(identity_from({})->rendezvous == job_directory("torch-29500-my_job_1-3"));
  }
  set["RONDO_RENDEZVOUS"] = "/some/where";
  {
    Environment environment(set);
    REQUIRE(identity_from({})->rendezvous == "/some/where");
    REQUIRE(identity_from({})->world_size == 4);
    Config config;
    config.rendezvous = "/else/where";
    REQUIRE(identity_from(config)->rendezvous == "/else/where");
  }
}

TEST_CASE("MPI launchers' variables", "[environment]") {
  Variables set = {{"OMPI_COMM_WORLD_RANK", "1"},
                   {"OMPI_COMM_WORLD_SIZE", "3"},
                   {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}};
  {
    Environment environment(set);
    auto id = identity_from({});
    REQUIRE(id.ok());
    REQUIRE(id->rank == 1);
    REQUIRE(id->world_size == 3);
    REQUIRE(id->rendezvous == job_directory("ompi-" + std::to_string(getppid())));
  }
  set["PMIX_NAMESPACE"] = "prterun-host-17@1/../x";
  {
    Environment environment(set);
    REQUIRE(identity_from({})->rendezvous == job_directory("pmix-prterun-host-17_1____x"));
  }
  {
    Environment environment({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"WORLD_SIZE", "7"}});
    auto id = identity_from({});
    REQUIRE(id->world_size == 2);
    REQUIRE(id->rendezvous == job_directory("pmi-" + std::to_string(getppid())));
  }
}

TEST_CASE("the variables of Slurm, PALS and PMIx", "[environment]") {
  struct Case {
    Variables variables;
    int rank, world_size, local_rank;
    std::string job;
  };
  const std::vector<Case> all = {
      {{{"SLURM_PROCID", "3"},
        {"SLURM_STEP_NUM_TASKS", "4"},
        {"SLURM_NTASKS", "9"},  // of the allocation
        {"SLURM_LOCALID", "2"},
        {"SLURM_JOB_ID", "77"},
        {"SLURM_STEP_ID", "5"}},
       3,
       4,
       2,
       "slurm-77-5"},
      {{{"SLURM_PROCID", "1"},
        {"SLURM_NTASKS", "2"},
        {"SLURM_TASKS_PER_NODE", "2"},
        {"SLURM_JOB_ID", "77"},
        {"SLURM_STEP_ID", "0"},
        {"SLURM_RESTART_COUNT", "1"}},
       1,
       2,
       1,
       "slurm-77-0-1"},
      // a batch script is no step: nobody has started ranks
      {{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "77"}}, 0, 1, 0, ""},
      // srun's own PMI, and an mpirun or torchrun that srun has started
      {{{"SLURM_PROCID", "1"},
        {"SLURM_STEP_NUM_TASKS", "2"},
        {"SLURM_STEP_ID", "0"},
        {"SLURM_JOB_ID", "77"},
        {"PMIX_RANK", "1"},
        {"PMIX_NAMESPACE", "slurm.pmix.77.0"},
        {"RANK", "4"},
        {"WORLD_SIZE", "6"},
        {"MASTER_PORT", "1234"}},
       4,
       6,
       4,
       "port-1234"},
      {{{"SLURM_PROCID", "0"},
        {"SLURM_STEP_NUM_TASKS", "1"},
        {"SLURM_STEP_ID", "0"},
        {"OMPI_COMM_WORLD_RANK", "2"},
        {"OMPI_COMM_WORLD_SIZE", "3"},
        {"PMIX_NAMESPACE", "17"}},
       2,
       3,
       2,
       "pmix-17"},
      {{{"PALS_RANKID", "2"},
        {"PMI_RANK", "2"},
        {"PMI_SIZE", "3"},
        {"PALS_LOCAL_RANKID", "2"},
        {"PALS_LOCAL_SIZE", "3"},
        {"PALS_APID", "ab-12"}},
       2,
       3,
       2,
       "pals-ab-12"},
      // RANK from a wrapper that copies what mpirun says
      {{{"RANK", "1"},
        {"WORLD_SIZE", "2"},
        {"OMPI_COMM_WORLD_RANK", "1"},
        {"OMPI_COMM_WORLD_SIZE", "2"},
        {"PMIX_NAMESPACE", "17"}},
       1,
       2,
       1,
       "pmix-17"},
      {{{"PMIX_RANK", "1"}, {"PMIX_NAMESPACE", "prterun-x@1"}, {"WORLD_SIZE", "2"}},
       1,
       2,
       1,
       "pmix-prterun-x_1"},
  };
  for (const Case& c : all) {
    Environment environment(c.variables);
    auto id = identity_from({});
    INFO(c.job << " " << id.status().to_string());
    REQUIRE(id.ok());
    REQUIRE(id->rank == c.rank);
    REQUIRE(id->world_size == c.world_size);
    REQUIRE(id->local_rank == c.local_rank);
    REQUIRE(id->rendezvous == (c.job.empty() ? "" : job_directory(c.job)));
  }
}

TEST_CASE("a job's name is the same on all of its hosts, or there is none", "[environment]") {
  const auto job = [](Variables variables) {
    Environment environment(variables);
    auto id = identity_from({});
    INFO(id.status().to_string());
    REQUIRE(id.ok());
    return id->job;
  };
  Variables torch = {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "29500"}};
  CHECK(job(torch).empty());  // many jobs, one after the other
  torch["TORCHELASTIC_RUN_ID"] = "a run";
  torch["TORCHELASTIC_RESTART_COUNT"] = "1";  // of one host
  CHECK(job(torch) == "torch-a_run-29500");
  Variables mpi = {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}};
  CHECK(job(mpi).empty());
  mpi["PMIX_NAMESPACE"] = "prterun-host-17";
  CHECK(job(mpi) == "pmix-prterun-host-17");
  CHECK(job({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}).empty());
  CHECK(job({{"SLURM_PROCID", "0"},
             {"SLURM_NTASKS", "2"},
             {"SLURM_JOB_ID", "7"},
             {"SLURM_STEP_ID", "1"}}) == "slurm-7-1");
}

TEST_CASE("srun --mpi=pmi2: rank and size as Hydra gives them, the place on the node is Slurm's",
          "[environment]") {
  Variables set = {
      {"SLURM_PROCID", "3"},  {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
      {"SLURM_NODEID", "1"},  {"SLURM_LOCALID", "1"},        {"SLURM_STEP_NODELIST", "node[3-4]"},
      {"SLURM_JOB_ID", "77"}, {"SLURM_STEP_ID", "5"},        {"PMI_RANK", "3"},
      {"PMI_SIZE", "4"},      {"PMI_JOBID", "77.5"},         {"RONDO_SECRET", "abc"}};
  const auto check = [&](int local_rank, int local_world_size, const std::string& rendezvous) {
    Environment environment(set);
    auto id = identity_from({});
    INFO(id.status().to_string());
    REQUIRE(id.ok());
    REQUIRE(id->rank == 3);
    REQUIRE(id->world_size == 4);
    REQUIRE(id->local_rank == local_rank);
    REQUIRE(id->local_world_size == local_world_size);
    REQUIRE(id->rendezvous == rendezvous);
  };
  check(1, 2, "tcp://node3:20082");
  set["SLURM_STEP_TASKS_PER_NODE"] = "4";
  set["SLURM_NODEID"] = "0";
  set["SLURM_LOCALID"] = "3";
  check(3, 4, job_directory("slurm-77-5"));
  // Hydra itself, whose proxies srun has started: what srun says is theirs.
  const std::string hydra = job_directory("pmi-" + std::to_string(getppid()));
  set["MPI_LOCALRANKID"] = "3";
  set["MPI_LOCALNRANKS"] = "4";
  check(3, 4, hydra);
  set.erase("MPI_LOCALRANKID");
  set["SLURM_PROCID"] = "0";
  check(3, 4, hydra);
  set["SLURM_PROCID"] = "3";
  set["SLURM_STEP_NUM_TASKS"] = "8";
  check(3, 4, hydra);
}

TEST_CASE("a launcher that rondo-run's rank starts is a job of its own", "[environment]") {
  Variables set = {{"WORLD_SIZE", "2"},
                   {"LOCAL_RANK", "0"},
                   {"MASTER_ADDR", "127.0.0.1"},
                   {"MASTER_PORT", "29500"},
                   {"RONDO_RENDEZVOUS", "/run/user/7/rondo-run-123-AbCdEf"},
                   {"RONDO_SECRET", "abc"},
                   {"OMPI_COMM_WORLD_RANK", "1"},
                   {"OMPI_COMM_WORLD_SIZE", "2"},
                   {"PMIX_NAMESPACE", "17"}};
  {
    Environment environment(set);  // as after env -u RANK mpirun
    REQUIRE(identity_from({})->rendezvous == job_directory("pmix-17"));
    Config config;
    config.rendezvous = "/some/where";
    REQUIRE(identity_from(config)->rendezvous == "/some/where");
  }
  set["RONDO_RENDEZVOUS"] = "/home/me/rondo-run/meet";
  {
    Environment environment(set);
    REQUIRE(identity_from({})->rendezvous == "/home/me/rondo-run/meet");
  }
  set["RONDO_RENDEZVOUS"] = "/run/user/7/rondo-run-123-AbCdEf";
  set["RANK"] = "1";  // torchrun's, and without its name rondo-run's own
  set["TORCHELASTIC_RUN_ID"] = "none";
  set.erase("OMPI_COMM_WORLD_RANK");
  set.erase("PMIX_NAMESPACE");
  {
    Environment environment(set);
    REQUIRE(identity_from({})->rendezvous == job_directory("torch-29500-none"));
  }
  set.erase("TORCHELASTIC_RUN_ID");
  Environment environment(set);
  REQUIRE(identity_from({})->rendezvous == "/run/user/7/rondo-run-123-AbCdEf");
}

TEST_CASE("launchers that contradict each other are named", "[environment]") {
  struct Case {
    Variables variables;
    const char *one, *other;
  };
  for (const Case& c : {Case{{{"RANK", "0"},
                              {"WORLD_SIZE", "4"},
                              {"OMPI_COMM_WORLD_RANK", "2"},
                              {"OMPI_COMM_WORLD_SIZE", "4"},
                              {"MASTER_PORT", "1234"}},
                             "RANK is 0",
                             "OMPI_COMM_WORLD_RANK is 2"},
                        Case{{{"RANK", "2"},
                              {"WORLD_SIZE", "3"},
                              {"OMPI_COMM_WORLD_RANK", "2"},
                              {"OMPI_COMM_WORLD_SIZE", "4"},
                              {"MASTER_PORT", "1234"}},
                             "WORLD_SIZE is 3",
                             "OMPI_COMM_WORLD_SIZE is 4"},
                        Case{{{"OMPI_COMM_WORLD_RANK", "1"},
                              {"OMPI_COMM_WORLD_SIZE", "2"},
                              {"PMI_RANK", "0"},
                              {"PMI_SIZE", "2"}},
                             "OMPI_COMM_WORLD_RANK is 1",
                             "PMI_RANK is 0"}}) {
    Environment environment(c.variables);
    auto id = identity_from({});
    INFO(id.status().to_string());
    REQUIRE(id.status().code() == Code::kInvalidArgument);
    for (const char* part : {c.one, c.other, "contradict", "env -u"}) {
      REQUIRE(id.status().message().find(part) != std::string::npos);
    }
    Config config;  // what the program says itself goes first
    config.rank = 1;
    config.world_size = 2;
    REQUIRE(identity_from(config).ok());
  }
}

TEST_CASE("ranks on other hosts: TCP where there is a secret", "[environment]") {
  Variables slurm = {{"SLURM_PROCID", "3"},
                     {"SLURM_STEP_NUM_TASKS", "5"},
                     {"SLURM_STEP_TASKS_PER_NODE", "2(x2),1"},
                     {"SLURM_NODEID", "1"},
                     {"SLURM_LOCALID", "1"},
                     {"SLURM_STEP_NODELIST", "node[003-004,9]-ib,other"},
                     {"SLURM_JOB_ID", "1234567"},
                     {"SLURM_STEP_ID", "2"}};
  {
    Environment environment(slurm);
    auto id = identity_from({});
    REQUIRE(id.status().code() == Code::kUnavailable);
    for (const char* part :
         {"SLURM_STEP_TASKS_PER_NODE is 2", "SLURM_STEP_NUM_TASKS is 5", "RONDO_SECRET_FILE"}) {
      REQUIRE(id.status().message().find(part) != std::string::npos);
    }
  }
  slurm["RONDO_SECRET"] = "abc";
  {
    Environment environment(slurm);
    auto id = identity_from({});
    INFO(id.status().to_string());
    REQUIRE(id.ok());
    REQUIRE(id->local_world_size == 2);
    REQUIRE(id->rendezvous == "tcp://node003-ib:24569");
  }
  slurm["SLURM_NODEID"] = "2";
  slurm["SLURM_PROCID"] = "4";
  slurm["SLURM_LOCALID"] = "0";
  slurm["SLURM_STEP_NODELIST"] = "alpha,beta,gamma";
  {
    Environment environment(slurm);
    REQUIRE(identity_from({})->local_world_size == 1);
    REQUIRE(identity_from({})->rendezvous == "tcp://alpha:24569");
  }
  // torchrun's agent listens on MASTER_PORT itself
  Environment environment({{"RANK", "1"},
                           {"WORLD_SIZE", "2"},
                           {"LOCAL_RANK", "0"},
                           {"LOCAL_WORLD_SIZE", "1"},
                           {"MASTER_ADDR", "203.0.113.7"},
                           {"MASTER_PORT", "29500"},
                           {"RONDO_SECRET", "abc"}});
  REQUIRE(identity_from({})->rendezvous == "tcp://203.0.113.7:29501");
  setenv("RONDO_RENDEZVOUS", "tcp://127.0.0.1:1234", 1);
  REQUIRE(identity_from({})->rendezvous == "tcp://127.0.0.1:1234");
  setenv("RONDO_RENDEZVOUS", "/some/where", 1);
  REQUIRE(identity_from({}).status().code() == Code::kUnavailable);
  REQUIRE(identity_from({}).status().message().find("/some/where, a directory") !=
          std::string::npos);
}

TEST_CASE("where rank 0 is, by each launcher", "[environment]") {
  const auto place = [](Variables variables) {
    variables.emplace("RONDO_SECRET", "abc");
    Environment environment(variables);
    const auto id = identity_from({});
    return id.ok() ? id->rendezvous : id.status().message();
  };
  Variables slurm = {{"SLURM_PROCID", "1"},   {"SLURM_STEP_NUM_TASKS", "2"},
                     {"SLURM_NODEID", "1"},   {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                     {"SLURM_LOCALID", "0"},  {"SLURM_STEP_NODELIST", "rack[1-2]node[03,7]-b,c"},
                     {"SLURM_JOB_ID", "102"}, {"SLURM_STEP_ID", "1"}};
  CHECK(place(slurm) == "tcp://rack1node03-b:20103");
  slurm["RONDO_PORTS"] = "30000-30009";
  CHECK(place(slurm) == "tcp://rack1node03-b:30003");
  slurm["MASTER_ADDR"] = "203.0.113.7";
  CHECK(place(slurm) == "tcp://203.0.113.7:30003");
  slurm["MASTER_PORT"] = "29500";
  CHECK(place(slurm) == "tcp://203.0.113.7:29501");

  Variables open_mpi = {
      {"OMPI_COMM_WORLD_RANK", "1"},
      {"OMPI_COMM_WORLD_SIZE", "2"},
      {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
      {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
      {"PMIX_NAMESPACE", "3902734337"},
      {"OMPI_MCA_orte_hnp_uri",
       "3902734336.0;tcp://203.0.113.7,198.51.100.7,127.0.0.1:41395;tcp6://[2001:db8::7]:58991"}};
  const std::string mpirun = place(open_mpi);
  CHECK(mpirun.rfind("tcp://203.0.113.7,198.51.100.7,[2001:db8::7]:2", 0) == 0);
  open_mpi["OMPI_COMM_WORLD_RANK"] = "0";
  CHECK(place(open_mpi).find("mpirun -x MASTER_ADDR=HOST") != std::string::npos);
  open_mpi["MASTER_ADDR"] = "2001:db8::8";
  CHECK(place(open_mpi).rfind("tcp://[2001:db8::8]:2", 0) == 0);
  open_mpi.erase("OMPI_MCA_orte_hnp_uri");
  open_mpi.erase("MASTER_ADDR");
  CHECK(place(open_mpi).find("MASTER_ADDR, the name or address") != std::string::npos);

  Variables hydra = {{"PMI_RANK", "1"},
                     {"PMI_SIZE", "2"},
                     {"MPI_LOCALRANKID", "0"},
                     {"MPI_LOCALNRANKS", "1"},
                     {"MASTER_ADDR", "a"}};
  CHECK(place(hydra) == "tcp://a:29501");
  hydra.erase("MASTER_ADDR");
  CHECK(place(hydra).find("MASTER_ADDR, the name or address") != std::string::npos);
}

TEST_CASE("ranks that know MASTER_ADDR only choose TCP, given a secret", "[environment]") {
  char own[256] = {};
  gethostname(own, sizeof own - 1);
  const std::string tcp = "tcp://" + std::string(own) + ":29501";  // as on another host
  const auto is_at = [&](const std::string& change, const std::string& value) {
    Variables set = {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "29500"}};
    set["MASTER_ADDR"] = own;
    set["RONDO_SECRET"] = "s3cret";
    set[change] = value;
    Environment environment(set);
    return identity_from({})->rendezvous;
  };
  CHECK(is_at("WORLD_SIZE", "2") == tcp);
  for (const auto& [name, value] : Variables{{"LOCAL_WORLD_SIZE", "2"}, {"RONDO_SECRET", ""}}) {
    CHECK(is_at(name, value).ends_with("/port-29500"));
  }
  for (const char* loopback : {"localhost", "127.0.0.1", "::1"}) {
    CHECK(is_at("MASTER_ADDR", loopback).ends_with("/port-29500"));
  }
}

TEST_CASE("a secret from a file that is the owner's alone", "[environment]") {
  testing::TempDirectory place;
  const std::string path = place.path() + "/secret";
  Environment environment(
      {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "1234"}, {"RONDO_SECRET_FILE", path}});
  const auto refused = [&](const std::string& part) {
    auto id = identity_from({});
    INFO(id.status().to_string());
    REQUIRE(id.status().code() == Code::kInvalidArgument);
    REQUIRE(id.status().message().find(path) != std::string::npos);
    REQUIRE(id.status().message().find(part) != std::string::npos);
  };
  refused("cannot be read");
  std::ofstream(path) << "0123abcd\n";
  for (mode_t mode : {0644u, 0640u, 0604u, 0660u}) {
    REQUIRE(chmod(path.c_str(), mode) == 0);
    refused("chmod 600");
  }
  REQUIRE(chmod(path.c_str(), 0600) == 0);
  REQUIRE(identity_from({})->secret == "0123abcd");
  setenv("RONDO_SECRET", "first", 1);
  REQUIRE(identity_from({})->secret == "first");
  unsetenv("RONDO_SECRET");
  std::ofstream(path, std::ios::trunc) << " \n";
  refused("holds no secret");
  setenv("RONDO_SECRET_FILE", place.path().c_str(), 1);
  REQUIRE(identity_from({}).status().message().find("is no file") != std::string::npos);
}

TEST_CASE("explicit values win over the environment", "[environment]") {
  Environment environment({{"RANK", "nonsense"}, {"WORLD_SIZE", "9"}, {"MASTER_PORT", "1234"}});
  Config config;
  config.rank = 1;
  config.world_size = 2;
  auto id = identity_from(config);
  REQUIRE(id.ok());
  REQUIRE(id->rank == 1);
  REQUIRE(id->world_size == 2);
  REQUIRE(id->rendezvous == job_directory("port-1234"));
}

struct Bad {
  Variables variables;
  Code code;
  std::vector<std::string> parts;  // of the message
};

TEST_CASE("bad variables are named with their value", "[environment]") {
  const std::vector<Bad> all = {
      {{{"RANK", "1"}}, Code::kInvalidArgument, {"RANK is 1", "WORLD_SIZE is not set"}},
      {{{"WORLD_SIZE", "2"}}, Code::kInvalidArgument, {"WORLD_SIZE is 2", "RANK is not set"}},
      {{{"RANK", "one"}, {"WORLD_SIZE", "2"}}, Code::kInvalidArgument, {"RANK is \"one\""}},
      {{{"RANK", "1"}, {"WORLD_SIZE", "2x"}}, Code::kInvalidArgument, {"WORLD_SIZE is \"2x\""}},
      {{{"RANK", " 1"}, {"WORLD_SIZE", "2"}}, Code::kInvalidArgument, {"RANK is \" 1\""}},
      {{{"RANK", "-1"}, {"WORLD_SIZE", "2"}}, Code::kInvalidArgument, {"RANK is \"-1\""}},
      {{{"RANK", "0"}, {"WORLD_SIZE", "99999999999"}},
       Code::kInvalidArgument,
       {"WORLD_SIZE is \"99999999999\""}},
      {{{"RANK", "0"}, {"WORLD_SIZE", "0"}}, Code::kInvalidArgument, {"WORLD_SIZE is 0"}},
      {{{"RANK", "2"}, {"WORLD_SIZE", "2"}},
       Code::kInvalidArgument,
       {"RANK is 2", "WORLD_SIZE is 2"}},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "2"}},
       Code::kInvalidArgument,
       {"LOCAL_RANK is 2", "LOCAL_WORLD_SIZE is 2"}},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "3"}},
       Code::kInvalidArgument,
       {"LOCAL_WORLD_SIZE is 3", "WORLD_SIZE is 2"}},
      {{{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}},
       Code::kUnavailable,
       {"LOCAL_WORLD_SIZE is 2", "WORLD_SIZE is 4", "MASTER_ADDR"}},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}},
       Code::kInvalidArgument,
       {"RONDO_RENDEZVOUS", "MASTER_PORT"}},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "70000"}},
       Code::kInvalidArgument,
       {"MASTER_PORT is 70000"}},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "ssh"}},
       Code::kInvalidArgument,
       {"MASTER_PORT is \"ssh\""}},
      {{{"RANK", "0"},
        {"WORLD_SIZE", "2"},
        {"MASTER_PORT", "1234"},
        {"MASTER_ADDR", "203.0.113.7"}},
       Code::kUnavailable,
       {"MASTER_ADDR is \"203.0.113.7\"", "MASTER_ADDR"}},
      {{{"OMPI_COMM_WORLD_RANK", "1"}},
       Code::kInvalidArgument,
       {"OMPI_COMM_WORLD_SIZE is not set"}},
      {{{"PALS_RANKID", "1"}}, Code::kInvalidArgument, {"PALS_RANKID is 1", "PALS_SIZE=N"}},
      {{{"PMIX_RANK", "1"}}, Code::kInvalidArgument, {"PMIX_RANK is 1", "set WORLD_SIZE"}},
      {{{"SLURM_PROCID", "0"},
        {"SLURM_STEP_ID", "0"},
        {"SLURM_NTASKS", "2"},
        {"SLURM_TASKS_PER_NODE", "2(x"}},
       Code::kInvalidArgument,
       {"SLURM_TASKS_PER_NODE is 2(x"}},
      {{{"PMI_RANK", "5"}, {"PMI_SIZE", "2"}},
       Code::kInvalidArgument,
       {"PMI_RANK is 5", "PMI_SIZE is 2"}},
  };
  for (const Bad& bad : all) {
    Environment environment(bad.variables);
    auto id = identity_from({});
    INFO(id.status().to_string());
    REQUIRE_FALSE(id.ok());
    REQUIRE(id.status().code() == bad.code);
    for (const std::string& part : bad.parts) {
      INFO("looking for: " << part);
      REQUIRE(id.status().message().find(part) != std::string::npos);
    }
  }
}

TEST_CASE("bad explicit values are named", "[environment]") {
  Environment none({});
  struct Case {
    int rank, world_size;
    const char* part;
  };
  for (const Case& c :
       {Case{0, -1, "Config::world_size is not set"}, Case{-1, 2, "Config::rank is not set"},
        Case{0, 0, "world_size is 0"}, Case{2, 2, "Config::rank is 2"},
        Case{-5, 2, "Config::rank is -5"}, Case{0, -7, "Config::world_size is -7"}}) {
    Config config;
    config.rank = c.rank;
    config.world_size = c.world_size;
    auto id = identity_from(config);
    INFO(id.status().to_string());
    REQUIRE(id.status().code() == Code::kInvalidArgument);
    REQUIRE(id.status().message().find(c.part) != std::string::npos);
  }
}

TEST_CASE("this host under its own names", "[environment]") {
  char host[256] = {};
  REQUIRE(gethostname(host, sizeof host - 1) == 0);
  for (const std::string& name : {std::string(host), std::string("localhost"), std::string("::1"),
                                  std::string(host) + ".example.org"}) {
    Environment environment(
        {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "1234"}, {"MASTER_ADDR", name}});
    INFO(name);
    REQUIRE(identity_from({}).ok());
  }
}

}  // namespace
}  // namespace rondo
