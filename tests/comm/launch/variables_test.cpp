// Ranks under launchers that are not installed here: forked, with the variables that those
// launchers set. Two jobs at once each time, which must never meet.
#include "comm/launch/variables.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "comm/launch/unknown_variables.hpp"
#include "rondo/rondo.hpp"
#include "tests/comm/bootstrap/environment_variables.hpp"
#include "tests/harness/catch.hpp"
#include "tests/harness/contains.hpp"
#include "tests/harness/rank_group.hpp"
#include "transport/memory/unique_fd.hpp"

namespace rondo::variables_test {
namespace {

using testing::expect;
using testing::expect_eq;
using testing::ForkGang;
using testing::How;
using testing::Link;
using testing::TempDirectory;

constexpr int kRanks = 3;

/// Only these, besides what no launcher sets.
void set_environment(const std::string& words) {
  std::vector<std::string> names;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string name = std::string(*entry).substr(0, std::string(*entry).find('='));
    if (name != "PATH" && name != "HOME" && name != "RONDO_KERNELS") names.push_back(name);
  }
  for (const std::string& name : names) unsetenv(name.c_str());
  for (const auto& [name, value] : variables(words)) setenv(name.c_str(), value.c_str(), 1);
}

void run_forks(int ranks, const std::function<void(int rank)>& body) {
  testing::require_all_ok(testing::run_ranks(How::kForks, ranks, body));
}

Config config_of(int rank, int world_size, const std::string& rendezvous = "") {
  Config config;
  config.rank = rank;
  config.world_size = world_size;
  config.rendezvous = rendezvous;
  return config;
}

Communicator must_create(const Config& config) {
  auto world = Communicator::create(config);
  expect(world.ok(), world.status().to_string());
  return std::move(*world);
}

void expect_refused(const Config& config, const std::string& beginning) {
  const Status status = Communicator::create(config).status();
  expect(status.code() == Code::kInvalidArgument && status.message().starts_with(beginning),
         status.to_string());
}

void add_ones(Communicator& world) {
  float in = 1, out = 0;
  const Status status = world.all_reduce(&in, &out, 1, DataType::kFloat32);
  expect(status.ok() && out == static_cast<float>(world.size()), status.to_string());
}

/// Sends this process's stderr to a file.
void say_into(const std::string& file) {
  expect(std::freopen(file.c_str(), "w", stderr) != nullptr, "stderr to a file");
}

/// What rank `rank` of job 0 or 1 finds in its environment.
using Launcher = std::string (*)(int job, int rank);

std::string slurm(int job, int rank) {
  const std::string number = std::to_string(rank);
  return "SLURM_JOB_ID=900 SLURM_STEP_NUM_TASKS=3 SLURM_NTASKS=3 SLURM_NODEID=0 "
         "SLURM_STEP_TASKS_PER_NODE=3 SLURM_STEP_NODELIST=node7 SLURM_STEP_ID=" +
         std::to_string(job) + " SLURM_PROCID=" + number + " SLURM_LOCALID=" + number;
}

std::string pals(int job, int rank) {
  const std::string number = std::to_string(rank);
  return "PALS_LOCAL_SIZE=3 PALS_NODEID=0 PMI_SIZE=3 PALS_APID=apid-" + std::to_string(job) +
         " PALS_RANKID=" + number + " PALS_LOCAL_RANKID=" + number + " PMI_RANK=" + number;
}

std::string pmix(int job, int rank) {
  return "PMIX_NAMESPACE=prterun-host-" + std::to_string(job) +
         "@1 WORLD_SIZE=3 PMIX_RANK=" + std::to_string(rank);
}

int g_ports[2];  // where each job's torchrun agent listens

std::string torchrun(int job, int rank) {
  const std::string number = std::to_string(rank);
  return "WORLD_SIZE=3 LOCAL_WORLD_SIZE=3 GROUP_RANK=0 MASTER_ADDR=127.0.0.1 "
         "TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_RESTART_COUNT=0 TORCHELASTIC_RUN_ID=none "
         "RANK=" +
         number + " LOCAL_RANK=" + number + " MASTER_PORT=" + std::to_string(g_ports[job]);
}

void sum_over_job(int job, int rank) {
  Config config;
  config.bootstrap_timeout = std::chrono::seconds{30};
  Communicator world = must_create(config);
  expect_eq(world.rank(), rank, "rank");
  expect_eq(world.size(), kRanks, "size");
  const int32_t mine = (job == 0 ? 1 : 1000) << rank;
  int32_t sum = 0;
  const Status status = world.all_reduce(&mine, &sum, 1, DataType::kInt32);
  expect(status.ok(), status.to_string());
  expect_eq(sum, (job == 0 ? 1 : 1000) * 7, "the sum over this job's ranks");
}

/// As torchrun's agent, which keeps MASTER_PORT for itself.
transport::UniqueFd agent_listens(int& port) {
  transport::UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t size = sizeof address;
  auto* any = reinterpret_cast<sockaddr*>(&address);
  REQUIRE(bind(fd.get(), any, size) == 0);
  REQUIRE(listen(fd.get(), 1) == 0);
  REQUIRE(getsockname(fd.get(), any, &size) == 0);
  port = ntohs(address.sin_port);
  return fd;
}

TEST_CASE("two jobs at once, under every launcher that is known by its variables", "[launch]") {
  const transport::UniqueFd agents[2] = {agent_listens(g_ports[0]), agent_listens(g_ports[1])};
  for (const Launcher launcher : {slurm, pals, pmix, torchrun}) {
    INFO(launcher(0, 0));
    run_forks(2 * kRanks, [&](int i) {
      const int job = i % 2, rank = i / 2;
      set_environment(launcher(job, rank));
      sum_over_job(job, rank);
    });
  }
  // Nobody called the agents.
  for (const auto& agent : agents) {
    pollfd called{agent.get(), POLLIN, 0};
    REQUIRE(poll(&called, 1, 0) == 0);
  }
}

TEST_CASE("ranks without a common directory meet over TCP", "[launch]") {
  const TempDirectory place;
  const std::string secret = place.path() + "/secret";
  std::ofstream(secret) << "not for others\n";
  std::filesystem::permissions(secret, std::filesystem::perms::owner_read);
  int port = 0;
  agent_listens(port).reset();
  run_forks(kRanks, [&](int rank) {
    set_environment(slurm(0, rank) + " RONDO_RENDEZVOUS=tcp://127.0.0.1:" + std::to_string(port) +
                    " RONDO_SECRET_FILE=" + secret);
    sum_over_job(0, rank);
  });
}

TEST_CASE("RONDO_TIMEOUT is the time that a rank may stand still", "[launch]") {
  ForkGang gang(2, [](int rank, Link& link) {
    set_environment(pmix(0, rank) + " WORLD_SIZE=2 RONDO_TIMEOUT=0.4");
    Communicator world = must_create({});
    if (rank == 0) {
      expect_eq(to_string(world.barrier().code()), to_string(Code::kTimeout), "the barrier");
      link.announce("timed out");
    }
    link.await("leave");
  });
  gang.await(0, "timed out");
  REQUIRE(gang.seconds() < 50);  // and not the 600 s of the default
  for (const int rank : {0, 1}) gang.tell(rank, "leave");
  testing::require_all_ok(gang.join());
}

TEST_CASE("an empty variable is as none, and no pace is off", "[launch]") {
  const TempDirectory place;
  const std::string said = place.path() + "/said";
  for (const std::string pace : {"", "off"}) {
    run_forks(1, [&](int) {
      set_environment(
          "RONDO_LOG= RONDO_TIMEOUT= RONDO_ARENA_BYTES= RONDO_CMA= RONDO_KERNELS= RONDO_LINKS= "
          "RONDO_ALGORITHM= RONDO_REPRODUCIBLE= RONDO_RENDEZVOUS= RONDO_SECRET= "
          "RONDO_SECRET_FILE= RONDO_STATUS_SOCKET= RONDO_TERMINAL= RONDO_RESTART_COUNT= "
          "RONDO_PACE=" +
          pace);
      say_into(said);
      const Communicator world = must_create(config_of(0, 1, place.path() + "/pace" + pace));
      log(LogLevel::kWarn, "the level is as without RONDO_LOG");
      void* memory = alloc(64);
      expect(memory != nullptr, "library memory");
      dealloc(memory);
    });
    std::ifstream file(said);
    std::string line;
    REQUIRE(std::getline(file, line));
    CHECK(line == "[rondo] [warning] the level is as without RONDO_LOG");
  }
}

TEST_CASE("rank 0's RONDO_ALGORITHM and RONDO_REPRODUCIBLE hold for all, the program's before them",
          "[launch]") {
  const TempDirectory place;
  run_forks(2, [&](int rank) {
    set_environment(rank == 0 ? "RONDO_LOG=debug RONDO_ALGORITHM=one-shot RONDO_REPRODUCIBLE=1"
                              : "RONDO_LOG=debug RONDO_ALGORITHM=ring RONDO_REPRODUCIBLE=");
    std::vector<std::string> said;
    set_log_callback([&](LogLevel level, std::string_view text) {
      if (level == LogLevel::kDebug) said.emplace_back(text);
    });
    const auto algorithm_of = [&](const Config& config) {
      Communicator world = must_create(config);
      expect(world.is_reproducible(), "reproducible");
      for (int i = 0; i < 2; ++i) add_ones(world);
      return world.plan(Collective::kAllReduce, 1, DataType::kFloat32).algorithm;
    };
    Config config = config_of(rank, 2, place.path() + "/variables");
    expect(algorithm_of(config) == Algorithm::kOneShot, "rank 0's variable");
    config.rendezvous = place.path() + "/program";
    config.algorithm = Algorithm::kStar;
    expect(algorithm_of(config) == Algorithm::kStar, "the program's choice");
    set_log_callback(nullptr);
    // Once for each shape, not for each call.
    expect_eq(said.size(), rank == 0 ? size_t{2} : size_t{0}, "choices that were logged");
    for (size_t i = 0; i < said.size(); ++i) {
      expect(said[i].starts_with("world: all_reduce(float, sum, count 1): " +
                                 std::string(i == 0 ? "one-shot" : "star") + ", predicted "),
             said[i]);
    }
  });
}

TEST_CASE("parts keep what their communicator's rank 0 had set", "[launch]") {
  const TempDirectory place;
  run_forks(2, [&](int rank) {
    set_environment(rank == 0 ? "RONDO_ALGORITHM=one-shot"
                              : "RONDO_ALGORITHM=ring RONDO_REPRODUCIBLE=1 RONDO_PACE=1GB/s,1ms");
    Communicator world = must_create(config_of(rank, 2, place.path()));
    auto turned = world.split(0, -rank);  // its rank 0 is the other one
    expect(turned.ok() && turned->has_value(), turned.status().to_string());
    for (Communicator* c : {&world, &**turned}) {
      expect(!c->is_reproducible(), "reproducible");
      expect(
          c->plan(Collective::kAllReduce, 1, DataType::kFloat32).algorithm == Algorithm::kOneShot,
          "the algorithm");
    }
  });
}

TEST_CASE("a RONDO_ALGORITHM that a paced link cannot do gives way", "[launch]") {
  const TempDirectory place;
  run_forks(2, [&](int rank) {
    set_environment("RONDO_ALGORITHM=one-shot RONDO_PACE=10GB/s,1us");
    Communicator world = must_create(config_of(rank, 2, place.path()));
    add_ones(world);
  });
}

TEST_CASE("an unknown RONDO_ variable is named, with the nearest that is known", "[launch]") {
  const auto unknown = [](std::vector<const char*> environment) {
    environment.push_back(nullptr);
    return comm::unknown_variables(environment.data());
  };
  const auto named =
      unknown({"PATH=/bin", "RONDO_TIMOUT=5", "RONDO_LOG=info", "RONDO_LINK", "XRONDO_=1"});
  REQUIRE(named.size() == 2);
  CHECK(named[0].starts_with("RONDO_TIMOUT is set, "));
  CHECK_THAT(named[0], testing::contains("nearest that it reads is RONDO_TIMEOUT:"));
  CHECK(named[1].starts_with("RONDO_LINK is set, "));
  CHECK_THAT(named[1], testing::contains(" RONDO_LINKS:"));
  for (const auto& variable : comm::kEnvironment) CHECK(unknown({variable.name}).empty());
  CHECK(unknown({"RONDO_TEST_MOMENTS=50", "RONDO_WERROR=ON", "RONDO_BIN=/opt"}).empty());
  CHECK(unknown({"RONDO_TESTS_=1"}).size() == 1);
  CHECK(unknown({"RONDO_COLOUR_SCHEME=dark"})[0].find("nearest") == std::string::npos);
  CHECK(unknown({"RONDO_\x1b[31m=1"})[0].starts_with("RONDO_?[31m is set"));
}

TEST_CASE("a wrong value is refused, and the error names the variable", "[launch]") {
  run_forks(1, [&](int) {
    Config config = config_of(0, 1);
    const auto refused = [&](const std::string& variable, const std::string& value,
                             const std::string& why) {
      set_environment(variable + "=" + value);
      expect_refused(config, variable + why);
    };
    refused("RONDO_ALGORITHM", "butterfly", " is 'butterfly': it must be one of auto, ring, ");
    refused("RONDO_ALGORITHM", "two-shot-direct", " is 'two-shot-direct': it must be");
    refused("RONDO_REPRODUCIBLE", "yes", " is 'yes': it must be 0 or 1");
    for (const std::string text : {"0.999", "-1", "never"}) {
      refused("RONDO_HOST_TIMEOUT", text, " is '" + text);
    }
    for (const char* text : {"1", "1e9"}) {
      set_environment(std::string("RONDO_HOST_TIMEOUT=") + text);
      (void)must_create(config);
    }
    refused("RONDO_PACE", "fast", ": pace 'fast'");
    // The program's own value comes first.
    config.pace = "slow";
    expect_refused(config, "pace 'slow'");
    config.pace.clear();
    refused("RONDO_TIMEOUT", "soon", " is 'soon'");
    config.stall_timeout = std::chrono::minutes{10};  // as it is without RONDO_TIMEOUT
    (void)must_create(config);
  });
}

TEST_CASE("the first communicator of a process warns of unknown variables, once", "[launch]") {
  const TempDirectory place;
  const std::string said = place.path() + "/said";
  run_forks(1, [&](int) {
    set_environment("RONDO_TIMOUT=5 RONDO_LOG=");
    say_into(said);
    for (const char* name : {"/one", "/two"}) {
      (void)must_create(config_of(0, 1, place.path() + name));
    }
  });
  std::ifstream file(said);
  int warnings = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("[rondo] [warning] RONDO_TIMOUT is set, ")) ++warnings;
  }
  CHECK(warnings == 1);
}

TEST_CASE("RONDO_TERMINAL names the pipes that lead to a terminal", "[launch]") {
  run_forks(1, [](int) {
    int out[2], err[2];
    expect(pipe(out) == 0 && pipe(err) == 0, "pipes");
    struct stat out_facts {
    }, err_facts{};
    expect(fstat(out[1], &out_facts) == 0 && fstat(err[1], &err_facts) == 0, "fstat");
    const std::string first = std::to_string(out_facts.st_ino);
    const std::string second = std::to_string(err_facts.st_ino);
    dup2(out[1], STDOUT_FILENO);
    dup2(err[1], STDERR_FILENO);
    const auto check = [](const std::string& names, bool stdout_is, bool stderr_is) {
      set_environment("RONDO_TERMINAL=" + names);
      expect_eq(stdout_is_terminal(), stdout_is, "stdout with " + names);
      expect_eq(stderr_is_terminal(), stderr_is, "stderr with " + names);
    };
    check("", false, false);
    check(first, true, false);
    check(second, false, true);
    check(first + "," + second, true, true);
    check("1" + first, false, false);
    check(first + "1", false, false);
  });
}

TEST_CASE("RONDO_BOOTSTRAP_TIMEOUT is how long a rank waits for others, unless the program says",
          "[launch]") {
  run_forks(1, [](int) {
    const TempDirectory place;
    Config config = config_of(0, 2, place.path());
    const auto says = [&](const std::string& text, const std::string& part) {
      set_environment("RONDO_BOOTSTRAP_TIMEOUT=" + text);
      const std::string all = Communicator::create(config).status().to_string();
      expect(all.find(part) != std::string::npos, all);
    };
    says("0.35", "rank 1 of 2 did not come within 0.3");  // less what create() took before
    says("soon", "RONDO_BOOTSTRAP_TIMEOUT is 'soon': it must be a number of seconds");
    config.bootstrap_timeout = std::chrono::milliseconds{250};
    says("soon", "rank 1 of 2 did not come within 0.2");
    config.bootstrap_timeout = std::chrono::milliseconds{-1};
    says("1", "Config::bootstrap_timeout is -1 ms; it must not be negative");
  });
}

TEST_CASE("place_from_launcher() says the same without meeting anybody", "[launch]") {
  run_forks(1, [](int) {
    set_environment(pals(0, 2));
    const auto place = place_from_launcher();
    expect(place.ok() && place->has_value(), place.status().to_string());
    expect_eq((*place)->rank, 2, "rank");
    expect_eq((*place)->world_size, 3, "world size");
    expect_eq((*place)->local_rank, 2, "local rank");
    expect_eq((*place)->local_world_size, 3, "local world size");
    set_environment("");
    const auto nobody = place_from_launcher();
    expect(nobody.ok() && !nobody->has_value(), "a place without a launcher");
  });
}

}  // namespace
}  // namespace rondo::variables_test
