// Who a rank thinks it is: every launcher's variables, and every way in which they can be wrong.
#include "comm/bootstrap/identity/environment.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "tests/comm/bootstrap/environment_variables.hpp"
#include "tests/harness/catch.hpp"
#include "tests/harness/contains.hpp"
#include "tests/harness/rank_group.hpp"

namespace rondo::environment_test {
namespace {

using comm::identity_from;

Config place_of(int rank, int world_size) {
  Config config;
  config.rank = rank;
  config.world_size = world_size;
  return config;
}

Config at(const std::string& rendezvous) {
  Config config;
  config.rendezvous = rendezvous;
  return config;
}

/// "RANK of WORLD_SIZE, LOCAL_RANK of LOCAL_WORLD_SIZE at PLACE", or the error. The place "job x" is
/// the directory of job x in /tmp.
std::string found(const std::string& variables, const Config& config = {}) {
  const Environment environment(variables);
  const auto id = identity_from(config);
  if (!id.ok()) return id.status().to_string();
  std::string place = id->rendezvous;
  const std::string jobs = "/tmp/rondo-" + std::to_string(geteuid()) + "/";
  if (place.starts_with(jobs)) place.replace(0, jobs.size(), "job ");
  return std::to_string(id->rank) + " of " + std::to_string(id->world_size) + ", " +
         std::to_string(id->local_rank) + " of " + std::to_string(id->local_world_size) + " at " +
         place;
}

void check_refused(const std::string& variables, const std::vector<std::string>& parts,
                   const Config& config = {}, Code code = Code::kInvalidArgument) {
  const Environment environment(variables);
  const Status status = identity_from(config).status();
  INFO(variables);
  CHECK(status.code() == code);
  for (const std::string& part : parts) CHECK_THAT(status.message(), testing::contains(part));
}

TEST_CASE("nothing set: one rank alone", "[environment]") {
  CHECK(found("") == "0 of 1, 0 of 1 at ");
}

TEST_CASE("rondo-run's and torchrun's variables", "[environment]") {
  std::string set =
      "RANK=2 WORLD_SIZE=4 LOCAL_RANK=2 LOCAL_WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 "
      "RONDO_SECRET=abc";
  CHECK(found(set) == "2 of 4, 2 of 4 at job port-29500");
  const testing::TempDirectory runtime;
  set += " TORCHELASTIC_RUN_ID='my job/1' TORCHELASTIC_RESTART_COUNT=3";
  CHECK(found(set + " XDG_RUNTIME_DIR=" + runtime.path()) ==
        "2 of 4, 2 of 4 at " + runtime.path() + "/rondo-" + std::to_string(geteuid()) +
            "/torch-29500-my_job_1-3");
  set += " XDG_RUNTIME_DIR=/not/on/this/node";
  CHECK(found(set) == "2 of 4, 2 of 4 at job torch-29500-my_job_1-3");
  set += " RONDO_RENDEZVOUS=/some/where";
  CHECK(found(set) == "2 of 4, 2 of 4 at /some/where");
  CHECK(found(set, at("/else/where")) == "2 of 4, 2 of 4 at /else/where");
  const Environment environment(set);
  CHECK(identity_from({})->secret == "abc");
}

TEST_CASE("MPI launchers' variables", "[environment]") {
  const std::string mpirun =
      "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_LOCAL_RANK=1 "
      "OMPI_COMM_WORLD_LOCAL_SIZE=3";
  const std::string parent = std::to_string(getppid());
  CHECK(found(mpirun) == "1 of 3, 1 of 3 at job ompi-" + parent);
  CHECK(found(mpirun + " PMIX_NAMESPACE=prterun-host-17@1/../x") ==
        "1 of 3, 1 of 3 at job pmix-prterun-host-17_1____x");
  CHECK(found("PMI_RANK=0 PMI_SIZE=2 WORLD_SIZE=7") == "0 of 2, 0 of 2 at job pmi-" + parent);
}

TEST_CASE("the variables of Slurm, PALS and PMIx", "[environment]") {
  const std::string slurm = "SLURM_JOB_ID=77 ";
  // SLURM_NTASKS is the allocation's where the step has a number of its own.
  CHECK(found(slurm + "SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_NTASKS=9 SLURM_LOCALID=2 "
                      "SLURM_STEP_ID=5") == "3 of 4, 2 of 4 at job slurm-77-5");
  CHECK(found(slurm + "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_TASKS_PER_NODE=2 SLURM_STEP_ID=0 "
                      "SLURM_RESTART_COUNT=1") == "1 of 2, 1 of 2 at job slurm-77-0-1");
  // A batch script is no step: nobody has started ranks.
  CHECK(found(slurm + "SLURM_PROCID=0 SLURM_NTASKS=4") == "0 of 1, 0 of 1 at ");
  // srun's own PMI, and an mpirun or torchrun that srun has started.
  CHECK(found(slurm + "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_ID=0 PMIX_RANK=1 "
                      "PMIX_NAMESPACE=slurm.pmix.77.0 RANK=4 WORLD_SIZE=6 MASTER_PORT=1234") ==
        "4 of 6, 4 of 6 at job port-1234");
  CHECK(found("SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_ID=0 OMPI_COMM_WORLD_RANK=2 "
              "OMPI_COMM_WORLD_SIZE=3 PMIX_NAMESPACE=17") == "2 of 3, 2 of 3 at job pmix-17");
  CHECK(found("PALS_RANKID=2 PMI_RANK=2 PMI_SIZE=3 PALS_LOCAL_RANKID=2 PALS_LOCAL_SIZE=3 "
              "PALS_APID=ab-12") == "2 of 3, 2 of 3 at job pals-ab-12");
  // RANK from a wrapper that copies what mpirun says.
  CHECK(found("RANK=1 WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 "
              "PMIX_NAMESPACE=17") == "1 of 2, 1 of 2 at job pmix-17");
  CHECK(found("PMIX_RANK=1 PMIX_NAMESPACE=prterun-x@1 WORLD_SIZE=2") ==
        "1 of 2, 1 of 2 at job pmix-prterun-x_1");
}

TEST_CASE("a job's name is the same on all of its hosts, or there is none", "[environment]") {
  const auto job = [](const std::string& variables) {
    const Environment environment(variables);
    return identity_from({}).value().job;
  };
  const std::string torch = "RANK=0 WORLD_SIZE=2 MASTER_PORT=29500";
  CHECK(job(torch).empty());  // many jobs, one after the other
  // The number of restarts is of one host.
  CHECK(job(torch + " TORCHELASTIC_RUN_ID='a run' TORCHELASTIC_RESTART_COUNT=1") ==
        "torch-a_run-29500");
  const std::string mpi = "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2";
  CHECK(job(mpi).empty());
  CHECK(job(mpi + " PMIX_NAMESPACE=prterun-host-17") == "pmix-prterun-host-17");
  CHECK(job("PMI_RANK=0 PMI_SIZE=2").empty());
  CHECK(job("SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_JOB_ID=7 SLURM_STEP_ID=1") == "slurm-7-1");
}

TEST_CASE("srun --mpi=pmi2: rank and size as Hydra gives them, the place on the node is Slurm's",
          "[environment]") {
  std::string set =
      "SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE='2(x2)' SLURM_NODEID=1 "
      "SLURM_LOCALID=1 SLURM_STEP_NODELIST=node[3-4] SLURM_JOB_ID=77 SLURM_STEP_ID=5 PMI_RANK=3 "
      "PMI_SIZE=4 PMI_JOBID=77.5 RONDO_SECRET=abc";
  CHECK(found(set) == "3 of 4, 1 of 2 at tcp://node3:20082");
  set += " SLURM_STEP_TASKS_PER_NODE=4 SLURM_NODEID=0 SLURM_LOCALID=3";
  CHECK(found(set) == "3 of 4, 3 of 4 at job slurm-77-5");
  // Hydra itself, whose proxies srun has started: what srun says is theirs.
  const std::string hydra = "3 of 4, 3 of 4 at job pmi-" + std::to_string(getppid());
  CHECK(found(set + " MPI_LOCALNRANKS=4 MPI_LOCALRANKID=3") == hydra);
  CHECK(found(set + " MPI_LOCALNRANKS=4 SLURM_PROCID=0") == hydra);
  CHECK(found(set + " MPI_LOCALNRANKS=4 SLURM_STEP_NUM_TASKS=8") == hydra);
}

TEST_CASE("a launcher that rondo-run's rank starts is a job of its own", "[environment]") {
  const std::string of_rondo_run = "/run/user/7/rondo-run-123-AbCdEf";
  const std::string outer =
      "WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 RONDO_SECRET=abc "
      "OMPI_COMM_WORLD_SIZE=2 RONDO_RENDEZVOUS=" +
      of_rondo_run;
  const std::string mpirun = outer + " OMPI_COMM_WORLD_RANK=1 PMIX_NAMESPACE=17";
  CHECK(found(mpirun) == "1 of 2, 1 of 2 at job pmix-17");  // as after env -u RANK mpirun
  CHECK(found(mpirun, at("/some/where")) == "1 of 2, 1 of 2 at /some/where");
  CHECK(found(mpirun + " RONDO_RENDEZVOUS=/home/me/rondo-run/meet") ==
        "1 of 2, 1 of 2 at /home/me/rondo-run/meet");
  // torchrun's RANK, and without its name rondo-run's own.
  CHECK(found(outer + " RANK=1 TORCHELASTIC_RUN_ID=none") ==
        "1 of 2, 0 of 2 at job torch-29500-none");
  CHECK(found(outer + " RANK=1") == "1 of 2, 0 of 2 at " + of_rondo_run);
}

TEST_CASE("launchers that contradict each other are named", "[environment]") {
  const auto check_contradiction = [](const std::string& variables, const std::string& one,
                                      const std::string& other) {
    check_refused(variables, {one, other, "contradict", "env -u"});
    // What the program says itself goes first.
    CHECK_THAT(found(variables, place_of(1, 2)), Catch::Matchers::StartsWith("1 of 2, "));
  };
  const std::string mpirun = "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 MASTER_PORT=1234 ";
  check_contradiction(mpirun + "RANK=0 WORLD_SIZE=4", "RANK is 0", "OMPI_COMM_WORLD_RANK is 2");
  check_contradiction(mpirun + "RANK=2 WORLD_SIZE=3", "WORLD_SIZE is 3",
                      "OMPI_COMM_WORLD_SIZE is 4");
  check_contradiction("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 PMI_RANK=0 PMI_SIZE=2",
                      "OMPI_COMM_WORLD_RANK is 1", "PMI_RANK is 0");
}

TEST_CASE("ranks on other hosts: TCP where there is a secret", "[environment]") {
  const std::string slurm =
      "SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=5 SLURM_STEP_TASKS_PER_NODE='2(x2),1' SLURM_NODEID=1 "
      "SLURM_LOCALID=1 SLURM_STEP_NODELIST=node[003-004,9]-ib,other SLURM_JOB_ID=1234567 "
      "SLURM_STEP_ID=2";
  check_refused(
      slurm, {"SLURM_STEP_TASKS_PER_NODE is 2", "SLURM_STEP_NUM_TASKS is 5", "RONDO_SECRET_FILE"},
      {}, Code::kUnavailable);
  CHECK(found(slurm + " RONDO_SECRET=abc") == "3 of 5, 1 of 2 at tcp://node003-ib:24569");
  CHECK(found(slurm + " RONDO_SECRET=abc SLURM_NODEID=2 SLURM_PROCID=4 SLURM_LOCALID=0 "
                      "SLURM_STEP_NODELIST=alpha,beta,gamma") ==
        "4 of 5, 0 of 1 at tcp://alpha:24569");
  // torchrun's agent listens on MASTER_PORT itself.
  const std::string torch =
      "RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=203.0.113.7 "
      "MASTER_PORT=29500 RONDO_SECRET=abc";
  CHECK(found(torch) == "1 of 2, 0 of 1 at tcp://203.0.113.7:29501");
  CHECK(found(torch + " RONDO_RENDEZVOUS=tcp://127.0.0.1:1234") ==
        "1 of 2, 0 of 1 at tcp://127.0.0.1:1234");
  check_refused(torch + " RONDO_RENDEZVOUS=/some/where", {"/some/where, a directory"}, {},
                Code::kUnavailable);
}

TEST_CASE("where rank 0 is, by each launcher", "[environment]") {
  using testing::contains;
  std::string slurm =
      "RONDO_SECRET=abc SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_NODEID=1 SLURM_LOCALID=0 "
      "SLURM_STEP_TASKS_PER_NODE='1(x2)' SLURM_STEP_NODELIST=rack[1-2]node[03,7]-b,c "
      "SLURM_JOB_ID=102 SLURM_STEP_ID=1";
  const std::string second = "1 of 2, 0 of 1 at tcp://";
  CHECK(found(slurm) == second + "rack1node03-b:20103");
  slurm += " RONDO_PORTS=30000-30009";
  CHECK(found(slurm) == second + "rack1node03-b:30003");
  slurm += " MASTER_ADDR=203.0.113.7";
  CHECK(found(slurm) == second + "203.0.113.7:30003");
  CHECK(found(slurm + " MASTER_PORT=29500") == second + "203.0.113.7:29501");

  const std::string open_mpi =
      "RONDO_SECRET=abc OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 "
      "OMPI_COMM_WORLD_LOCAL_SIZE=1 PMIX_NAMESPACE=3902734337";
  const std::string uri =
      " OMPI_MCA_orte_hnp_uri=3902734336.0;tcp://203.0.113.7,198.51.100.7,127.0.0.1:41395;"
      "tcp6://[2001:db8::7]:58991";
  CHECK_THAT(found(open_mpi + uri), contains(" tcp://203.0.113.7,198.51.100.7,[2001:db8::7]:2"));
  const std::string zero = open_mpi + uri + " OMPI_COMM_WORLD_RANK=0";
  CHECK_THAT(found(zero), contains("mpirun -x MASTER_ADDR=HOST"));
  CHECK_THAT(found(zero + " MASTER_ADDR=2001:db8::8"), contains(" tcp://[2001:db8::8]:2"));
  CHECK_THAT(found(open_mpi), contains("MASTER_ADDR, the name or address"));

  const std::string hydra =
      "RONDO_SECRET=abc PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1";
  CHECK(found(hydra + " MASTER_ADDR=a") == second + "a:29501");
  CHECK_THAT(found(hydra), contains("MASTER_ADDR, the name or address"));
}

std::string own_name() {
  char name[256] = {};
  REQUIRE(gethostname(name, sizeof name - 1) == 0);
  return name;
}

TEST_CASE("ranks that know MASTER_ADDR only choose TCP, given a secret", "[environment]") {
  const std::string set =
      "RANK=0 WORLD_SIZE=2 MASTER_PORT=29500 RONDO_SECRET=s3cret MASTER_ADDR=" + own_name();
  CHECK(found(set) == "0 of 2, 0 of 2 at tcp://" + own_name() + ":29501");  // as on another host
  for (const std::string change : {"LOCAL_WORLD_SIZE=2", "RONDO_SECRET=", "MASTER_ADDR=localhost",
                                   "MASTER_ADDR=127.0.0.1", "MASTER_ADDR=::1"}) {
    INFO(change);
    CHECK(found(set + " " + change) == "0 of 2, 0 of 2 at job port-29500");
  }
}

TEST_CASE("this host under its own names", "[environment]") {
  for (const std::string& name :
       {own_name(), std::string("localhost"), std::string("::1"), own_name() + ".example.org"}) {
    INFO(name);
    CHECK(found("RANK=0 WORLD_SIZE=2 MASTER_PORT=1234 MASTER_ADDR=" + name) ==
          "0 of 2, 0 of 2 at job port-1234");
  }
}

TEST_CASE("a secret from a file that is the owner's alone", "[environment]") {
  const testing::TempDirectory place;
  const std::string path = place.path() + "/secret";
  const std::string rank = "RANK=0 WORLD_SIZE=2 MASTER_PORT=1234 RONDO_SECRET_FILE=";
  check_refused(rank + path, {path, "cannot be read"});
  std::ofstream(path) << "0123abcd\n";
  for (const mode_t mode : {0644u, 0640u, 0604u, 0660u}) {
    REQUIRE(chmod(path.c_str(), mode) == 0);
    check_refused(rank + path, {path, "chmod 600"});
  }
  REQUIRE(chmod(path.c_str(), 0600) == 0);
  {
    const Environment environment(rank + path);
    CHECK(identity_from({})->secret == "0123abcd");
    setenv("RONDO_SECRET", "first", 1);
    CHECK(identity_from({})->secret == "first");
  }
  std::ofstream(path, std::ios::trunc) << " \n";
  check_refused(rank + path, {path, "holds no secret"});
  check_refused(rank + place.path(), {"is no file"});
}

TEST_CASE("the program's own values win over the environment, and bad ones are named",
          "[environment]") {
  CHECK(found("RANK=nonsense WORLD_SIZE=9 MASTER_PORT=1234", place_of(1, 2)) ==
        "1 of 2, 1 of 2 at job port-1234");
  check_refused("", {"Config::world_size is not set"}, place_of(0, -1));
  check_refused("", {"Config::rank is not set"}, place_of(-1, 2));
  check_refused("", {"world_size is 0"}, place_of(0, 0));
  check_refused("", {"Config::rank is 2"}, place_of(2, 2));
  check_refused("", {"Config::rank is -5"}, place_of(-5, 2));
  check_refused("", {"Config::world_size is -7"}, place_of(0, -7));
}

TEST_CASE("bad variables are named with their value", "[environment]") {
  check_refused("RANK=1", {"RANK is 1", "WORLD_SIZE is not set"});
  check_refused("WORLD_SIZE=2", {"WORLD_SIZE is 2", "RANK is not set"});
  check_refused("RANK=one WORLD_SIZE=2", {"RANK is \"one\""});
  check_refused("RANK=1 WORLD_SIZE=2x", {"WORLD_SIZE is \"2x\""});
  check_refused("RANK=' 1' WORLD_SIZE=2", {"RANK is \" 1\""});
  check_refused("RANK=-1 WORLD_SIZE=2", {"RANK is \"-1\""});
  check_refused("RANK=0 WORLD_SIZE=99999999999", {"WORLD_SIZE is \"99999999999\""});
  check_refused("RANK=0 WORLD_SIZE=0", {"WORLD_SIZE is 0"});
  check_refused("RANK=2 WORLD_SIZE=2", {"RANK is 2", "WORLD_SIZE is 2"});
  check_refused("RANK=0 WORLD_SIZE=2 LOCAL_RANK=2", {"LOCAL_RANK is 2", "LOCAL_WORLD_SIZE is 2"});
  check_refused("RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=3",
                {"LOCAL_WORLD_SIZE is 3", "WORLD_SIZE is 2"});
  check_refused("RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2",
                {"LOCAL_WORLD_SIZE is 2", "WORLD_SIZE is 4", "MASTER_ADDR"}, {},
                Code::kUnavailable);
  check_refused("RANK=0 WORLD_SIZE=2", {"RONDO_RENDEZVOUS", "MASTER_PORT"});
  check_refused("RANK=0 WORLD_SIZE=2 MASTER_PORT=70000", {"MASTER_PORT is 70000"});
  check_refused("RANK=0 WORLD_SIZE=2 MASTER_PORT=ssh", {"MASTER_PORT is \"ssh\""});
  check_refused("RANK=0 WORLD_SIZE=2 MASTER_PORT=1234 MASTER_ADDR=203.0.113.7",
                {"MASTER_ADDR is \"203.0.113.7\""}, {}, Code::kUnavailable);
  check_refused("OMPI_COMM_WORLD_RANK=1", {"OMPI_COMM_WORLD_SIZE is not set"});
  check_refused("PALS_RANKID=1", {"PALS_RANKID is 1", "PALS_SIZE=N"});
  check_refused("PMIX_RANK=1", {"PMIX_RANK is 1", "set WORLD_SIZE"});
  check_refused("SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_NTASKS=2 SLURM_TASKS_PER_NODE='2(x'",
                {"SLURM_TASKS_PER_NODE is 2(x"});
  check_refused("PMI_RANK=5 PMI_SIZE=2", {"PMI_RANK is 5", "PMI_SIZE is 2"});
}

}  // namespace
}  // namespace rondo::environment_test
