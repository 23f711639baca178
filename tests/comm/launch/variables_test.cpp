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
#include <map>
#include <string>
#include <vector>

#include "comm/launch/unknown_variables.hpp"
#include "rondo/rondo.hpp"
#include "tests/harness/catch.hpp"
#include "tests/harness/rank_group.hpp"
#include "transport/memory/unique_fd.hpp"

namespace rondo {
namespace {

using testing::expect;
using testing::expect_eq;
using testing::ForkGang;
using testing::How;
using testing::Link;
using Variables = std::map<std::string, std::string>;

constexpr int kRanks = 3;

/// Only these, besides what no launcher sets.
void set_environment(const Variables& variables) {
  std::vector<std::string> names;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string name = std::string(*entry).substr(0, std::string(*entry).find('='));
    if (name != "PATH" && name != "HOME" && name != "RONDO_KERNELS") names.push_back(name);
  }
  for (const std::string& name : names) unsetenv(name.c_str());
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
}

/// What rank `rank` of job 0 or 1 finds in its environment.
using Launcher = Variables (*)(int job, int rank);

Variables slurm(int job, int rank) {
  return {{"SLURM_JOB_ID", "900"},
          {"SLURM_STEP_ID", std::to_string(job)},
          {"SLURM_PROCID", std::to_string(rank)},
          {"SLURM_STEP_NUM_TASKS", "3"},
          {"SLURM_NTASKS", "3"},
          {"SLURM_LOCALID", std::to_string(rank)},
          {"SLURM_NODEID", "0"},
          {"SLURM_STEP_TASKS_PER_NODE", "3"},
          {"SLURM_STEP_NODELIST", "node7"}};
}

Variables pals(int job, int rank) {
  return {{"PALS_APID", "apid-" + std::to_string(job)},
          {"PALS_RANKID", std::to_string(rank)},
          {"PALS_LOCAL_RANKID", std::to_string(rank)},
          {"PALS_LOCAL_SIZE", "3"},
          {"PALS_NODEID", "0"},
          {"PMI_RANK", std::to_string(rank)},
          {"PMI_SIZE", "3"}};
}

Variables pmix(int job, int rank) {
  return {{"PMIX_NAMESPACE", "prterun-host-" + std::to_string(job) + "@1"},
          {"PMIX_RANK", std::to_string(rank)},
          {"WORLD_SIZE", "3"}};
}

int g_ports[2];  // where each job's torchrun agent listens

Variables torchrun(int job, int rank) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", "3"},
          {"LOCAL_RANK", std::to_string(rank)},
          {"LOCAL_WORLD_SIZE", "3"},
          {"GROUP_RANK", "0"},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", std::to_string(g_ports[job])},
          {"TORCHELASTIC_USE_AGENT_STORE", "True"},
          {"TORCHELASTIC_RESTART_COUNT", "0"},
          {"TORCHELASTIC_RUN_ID", "none"}};
}

void sum_over_job(int job, int rank) {
  Config config;
  config.bootstrap_timeout = std::chrono::seconds{30};
  auto world = Communicator::create(config);
  expect(world.ok(), world.status().to_string());
  expect_eq(world->rank(), rank, "rank");
  expect_eq(world->size(), kRanks, "size");
  const int32_t mine = (job == 0 ? 1 : 1000) << rank;
  int32_t sum = 0;
  const Status status = world->all_reduce(&mine, &sum, 1, DataType::kInt32);
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
  struct Case {
    const char* name;
    Launcher launcher;
  };
  for (const Case& c :
       {Case{"Slurm", slurm}, Case{"PALS", pals}, Case{"PMIx", pmix}, Case{"torchrun", torchrun}}) {
    INFO(c.name);
    testing::require_all_ok(testing::run_ranks(How::kForks, 2 * kRanks, [&](int i) {
      const int job = i % 2, rank = i / 2;
      set_environment(c.launcher(job, rank));
      sum_over_job(job, rank);
    }));
  }
  // Nobody called the agents.
  for (const auto& agent : agents) {
    pollfd called{agent.get(), POLLIN, 0};
    REQUIRE(poll(&called, 1, 0) == 0);
  }
}

TEST_CASE("ranks without a common directory meet over TCP", "[launch]") {
  const testing::TempDirectory place;
  const std::string secret = place.path() + "/secret";
  std::ofstream(secret) << "not for others\n";
  std::filesystem::permissions(secret, std::filesystem::perms::owner_read);
  int port = 0;
  agent_listens(port).reset();
  testing::require_all_ok(testing::run_ranks(How::kForks, kRanks, [&](int rank) {
    Variables variables = slurm(0, rank);
    variables["RONDO_RENDEZVOUS"] = "tcp://127.0.0.1:" + std::to_string(port);
    variables["RONDO_SECRET_FILE"] = secret;
    set_environment(variables);
    sum_over_job(0, rank);
  }));
}

TEST_CASE("RONDO_TIMEOUT is the time that a rank may stand still", "[launch]") {
  ForkGang gang(2, [](int rank, Link& link) {
    Variables variables = pmix(0, rank);
    variables.erase("WORLD_SIZE");
    variables.insert({{"WORLD_SIZE", "2"}, {"RONDO_TIMEOUT", "0.4"}});
    set_environment(variables);
    auto world = Communicator::create();
    expect(world.ok(), world.status().to_string());
    if (rank == 1) {
      link.await("leave");
      return;
    }
    float value = 1;
    const Status status = world->all_reduce(&value, &value, 1, DataType::kFloat32);
    expect(status.code() == Code::kTimeout, status.to_string());
    link.announce("timed out");
    link.await("leave");
  });
  gang.await(0, "timed out");
  REQUIRE(gang.seconds() < 30);  // and not the 600 s of the default
  gang.tell(0, "leave");
  gang.tell(1, "leave");
  testing::require_all_ok(gang.join());
}

TEST_CASE("an empty variable is as none, and no pace is off", "[launch]") {
  const testing::TempDirectory place;
  const std::string said = place.path() + "/said";
  for (const char* pace : {"", "off"}) {
    testing::require_all_ok(testing::run_ranks(How::kForks, 1, [&](int) {
      Variables variables{{"RONDO_PACE", pace}};
      for (const char* name :
           {"RONDO_LOG", "RONDO_TIMEOUT", "RONDO_ARENA_BYTES", "RONDO_CMA", "RONDO_KERNELS",
            "RONDO_LINKS", "RONDO_ALGORITHM", "RONDO_REPRODUCIBLE", "RONDO_RENDEZVOUS",
            "RONDO_SECRET", "RONDO_SECRET_FILE", "RONDO_STATUS_SOCKET", "RONDO_TERMINAL",
            "RONDO_RESTART_COUNT"}) {
        variables[name] = "";
      }
      set_environment(variables);
      expect(std::freopen(said.c_str(), "w", stderr) != nullptr, "stderr to a file");
      Config config;
      config.rank = 0;
      config.world_size = 1;
      config.rendezvous = place.path() + "/" + (*pace != '\0' ? pace : "empty");
      auto world = Communicator::create(config);
      expect(world.ok(), world.status().to_string());
      log(LogLevel::kWarn, "the level is as without RONDO_LOG");
      void* memory = alloc(64);
      expect(memory != nullptr, "library memory");
      free(memory);
    }));
    std::ifstream file(said);
    std::string line;
    REQUIRE(std::getline(file, line));
    CHECK(line == "[rondo] [warning] the level is as without RONDO_LOG");
  }
}

TEST_CASE("rank 0's RONDO_ALGORITHM and RONDO_REPRODUCIBLE hold for all, the program's before them",
          "[launch]") {
  const testing::TempDirectory place;
  testing::require_all_ok(testing::run_ranks(How::kForks, 2, [&](int rank) {
    set_environment({{"RONDO_ALGORITHM", rank == 0 ? "one-shot" : "ring"},
                     {"RONDO_REPRODUCIBLE", rank == 0 ? "1" : ""},
                     {"RONDO_LOG", "debug"}});
    Config config;
    config.rank = rank;
    config.world_size = 2;
    std::vector<std::string> said;
    set_log_callback([&](LogLevel level, std::string_view text) {
      if (level == LogLevel::kDebug) said.emplace_back(text);
    });
    const auto goes_by = [&](const char* directory, bool reproducible) {
      config.rendezvous = place.path() + directory;
      auto world = Communicator::create(config);
      expect(world.ok(), world.status().to_string());
      expect_eq(world->is_reproducible(), reproducible, "reproducible");
      float in = 1, out = 0;
      for (int i = 0; i < 2; ++i) {
        const Status status = world->all_reduce(&in, &out, 1, DataType::kFloat32);
        expect(status.ok() && out == 2, status.to_string());
      }
      return world->plan(Collective::kAllReduce, 1, DataType::kFloat32).algorithm;
    };
    expect(goes_by("/variables", true) == Algorithm::kOneShot, "rank 0's variable");
    config.algorithm = Algorithm::kStar;
    expect(goes_by("/program", true) == Algorithm::kStar, "the program's choice");
    set_log_callback(nullptr);
    // Once for each shape, not for each call.
    expect_eq(said.size(), rank == 0 ? size_t{2} : size_t{0}, "choices that were logged");
    if (rank != 0) return;
    expect(said[0].starts_with("world: all_reduce(float, sum, count 1): one-shot, predicted "),
           said[0]);
    expect(said[1].starts_with("world: all_reduce(float, sum, count 1): star, predicted "),
           said[1]);
  }));
}

TEST_CASE("parts keep what their communicator's rank 0 had set", "[launch]") {
  const testing::TempDirectory place;
  testing::require_all_ok(testing::run_ranks(How::kForks, 2, [&](int rank) {
    if (rank == 0) {
      set_environment({{"RONDO_ALGORITHM", "one-shot"}});
    } else {
      set_environment(
          {{"RONDO_ALGORITHM", "ring"}, {"RONDO_REPRODUCIBLE", "1"}, {"RONDO_PACE", "1GB/s,1ms"}});
    }
    Config config;
    config.rank = rank;
    config.world_size = 2;
    config.rendezvous = place.path() + "/world";
    auto world = Communicator::create(config);
    expect(world.ok(), world.status().to_string());
    auto turned = world->split(0, -rank);  // its rank 0 is the other one
    expect(turned.ok() && turned->has_value(), turned.status().to_string());
    for (Communicator* c : {&*world, &**turned}) {
      expect(!c->is_reproducible(), "reproducible");
      expect(
          c->plan(Collective::kAllReduce, 1, DataType::kFloat32).algorithm == Algorithm::kOneShot,
          "the algorithm");
    }
  }));
}

TEST_CASE("a RONDO_ALGORITHM that a paced link cannot do gives way", "[launch]") {
  const testing::TempDirectory place;
  testing::require_all_ok(testing::run_ranks(How::kForks, 2, [&](int rank) {
    set_environment({{"RONDO_ALGORITHM", "one-shot"}, {"RONDO_PACE", "10GB/s,1us"}});
    Config config;
    config.rank = rank;
    config.world_size = 2;
    config.rendezvous = place.path() + "/world";
    auto world = Communicator::create(config);
    expect(world.ok(), world.status().to_string());
    float in = 1, out = 0;
    const Status status = world->all_reduce(&in, &out, 1, DataType::kFloat32);
    expect(status.ok() && out == 2, status.to_string());
  }));
}

TEST_CASE("a RONDO_ALGORITHM or RONDO_REPRODUCIBLE that is none is refused", "[launch]") {
  testing::require_all_ok(testing::run_ranks(How::kForks, 1, [&](int) {
    Config config;
    config.rank = 0;
    config.world_size = 1;
    set_environment({{"RONDO_ALGORITHM", "butterfly"}});
    auto refused = Communicator::create(config).status();
    expect(refused.code() == Code::kInvalidArgument &&
               refused.message().starts_with(
                   "RONDO_ALGORITHM is 'butterfly': it must be one of auto, ring, "),
           refused.to_string());
    set_environment({{"RONDO_ALGORITHM", "two-shot-direct"}});
    refused = Communicator::create(config).status();
    expect(refused.message().starts_with("RONDO_ALGORITHM is 'two-shot-direct': it must be"),
           refused.to_string());
    set_environment({{"RONDO_REPRODUCIBLE", "yes"}});
    refused = Communicator::create(config).status();
    expect(refused.message() == "RONDO_REPRODUCIBLE is 'yes': it must be 0 or 1",
           refused.to_string());
  }));
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
  CHECK(named[0].find("nearest that it reads is RONDO_TIMEOUT:") != std::string::npos);
  CHECK(named[1].starts_with("RONDO_LINK is set, "));
  CHECK(named[1].find(" RONDO_LINKS:") != std::string::npos);
  for (const auto& variable : comm::kEnvironment) CHECK(unknown({variable.name}).empty());
  CHECK(unknown({"RONDO_TEST_MOMENTS=50", "RONDO_WERROR=ON", "RONDO_BIN=/opt"}).empty());
  CHECK(unknown({"RONDO_TESTS_=1"}).size() == 1);
  CHECK(unknown({"RONDO_COLOUR_SCHEME=dark"})[0].find("nearest") == std::string::npos);
  CHECK(unknown({"RONDO_\x1b[31m=1"})[0].starts_with("RONDO_?[31m is set"));
}

TEST_CASE("a pace that is refused is that of RONDO_PACE, or of the configuration", "[launch]") {
  testing::require_all_ok(testing::run_ranks(How::kForks, 1, [&](int) {
    set_environment({{"RONDO_PACE", "fast"}});
    Config config;
    config.rank = 0;
    config.world_size = 1;
    const auto variable = Communicator::create(config);
    expect(variable.status().message().starts_with("RONDO_PACE: pace 'fast'"),
           variable.status().to_string());
    config.pace = "slow";
    const auto field = Communicator::create(config);
    expect(field.status().message().starts_with("pace 'slow'"), field.status().to_string());
  }));
}

TEST_CASE("the first communicator of a process warns of unknown variables, once", "[launch]") {
  const testing::TempDirectory place;
  const std::string said = place.path() + "/said";
  testing::require_all_ok(testing::run_ranks(How::kForks, 1, [&](int) {
    set_environment({{"RONDO_TIMOUT", "5"}, {"RONDO_LOG", ""}});
    expect(std::freopen(said.c_str(), "w", stderr) != nullptr, "stderr to a file");
    for (const char* name : {"one", "two"}) {
      Config config;
      config.rank = 0;
      config.world_size = 1;
      config.rendezvous = place.path() + "/" + name;
      auto world = Communicator::create(config);
      expect(world.ok(), world.status().to_string());
    }
  }));
  std::ifstream file(said);
  std::string line;
  int warnings = 0;
  while (std::getline(file, line)) {
    if (line.starts_with("[rondo] [warning] RONDO_TIMOUT is set, ")) ++warnings;
  }
  CHECK(warnings == 1);
}

TEST_CASE("RONDO_TERMINAL names the pipes that lead to a terminal", "[launch]") {
  testing::require_all_ok(testing::run_ranks(How::kForks, 1, [](int) {
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
      set_environment({{"RONDO_TERMINAL", names}});
      expect_eq(stdout_is_terminal(), stdout_is, "stdout with " + names);
      expect_eq(stderr_is_terminal(), stderr_is, "stderr with " + names);
    };
    check("", false, false);
    check(first, true, false);
    check(second, false, true);
    check(first + "," + second, true, true);
    check("1" + first, false, false);
    check(first + "1", false, false);
  }));
}

TEST_CASE("a timeout set in the program goes before RONDO_TIMEOUT, ten minutes too", "[launch]") {
  testing::require_all_ok(testing::run_ranks(How::kForks, 1, [](int) {
    const testing::TempDirectory place;
    set_environment({{"RONDO_TIMEOUT", "soon"}});  // refused where it counts
    Config config;
    config.rank = 0;
    config.world_size = 1;
    config.rendezvous = place.path();
    const auto by_variable = Communicator::create(config);
    expect(!by_variable.ok(), "RONDO_TIMEOUT did not count");
    expect(by_variable.status().message().find("'soon'") != std::string::npos,
           by_variable.status().to_string());
    config.timeout = std::chrono::minutes{10};
    const auto by_program = Communicator::create(config);
    expect(by_program.ok(), by_program.status().to_string());
  }));
}

TEST_CASE("RONDO_BOOTSTRAP_TIMEOUT is how long a rank waits for others, unless the program says",
          "[launch]") {
  testing::require_all_ok(testing::run_ranks(How::kForks, 1, [](int) {
    const testing::TempDirectory place;
    Config config;
    config.rank = 0;
    config.world_size = 2;
    config.rendezvous = place.path();
    const auto said = [&](const char* text) {
      set_environment({{"RONDO_BOOTSTRAP_TIMEOUT", text}});
      return Communicator::create(config).status().to_string();
    };
    const auto says = [&](const char* text, const std::string& part) {
      const std::string all = said(text);
      expect(all.find(part) != std::string::npos, all);
    };
    says("0.3", "rank 1 of 2 did not come within 0.3 s");
    says("soon", "RONDO_BOOTSTRAP_TIMEOUT is 'soon': it must be a number of seconds");
    config.bootstrap_timeout = std::chrono::milliseconds{200};
    says("soon", "rank 1 of 2 did not come within 0.2 s");
    config.bootstrap_timeout = std::chrono::milliseconds{-1};
    says("1", "Config::bootstrap_timeout is -1 ms; it must not be negative");
  }));
}

TEST_CASE("RONDO_HOST_TIMEOUT is a second at least", "[launch]") {
  testing::require_all_ok(testing::run_ranks(How::kForks, 1, [](int) {
    Config config;
    config.rank = 0;
    config.world_size = 1;
    for (const char* text : {"0.999", "-1", "never"}) {
      set_environment({{"RONDO_HOST_TIMEOUT", text}});
      const Status status = Communicator::create(config).status();
      expect(status.message().find(std::string("RONDO_HOST_TIMEOUT is '") + text) == 0,
             status.to_string());
    }
    for (const char* text : {"1", "1e9"}) {
      set_environment({{"RONDO_HOST_TIMEOUT", text}});
      const auto made = Communicator::create(config);
      expect(made.ok(), made.status().to_string());
    }
  }));
}

TEST_CASE("place_from_launcher() says the same without meeting anybody", "[launch]") {
  testing::require_all_ok(testing::run_ranks(How::kForks, 1, [](int) {
    set_environment(pals(0, 2));
    auto place = place_from_launcher();
    expect(place.ok() && place->has_value(), place.status().to_string());
    expect_eq((*place)->rank, 2, "rank");
    expect_eq((*place)->world_size, 3, "world size");
    expect_eq((*place)->local_rank, 2, "local rank");
    expect_eq((*place)->local_world_size, 3, "local world size");
    set_environment({});
    auto nobody = place_from_launcher();
    expect(nobody.ok() && !nobody->has_value(), "a place without a launcher");
  }));
}

}  // namespace
}  // namespace rondo
