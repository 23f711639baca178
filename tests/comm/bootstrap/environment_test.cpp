// Who a rank thinks it is: every launcher's variables, and every way in which they can be wrong.
#include "comm/bootstrap/environment.hpp"

#include <unistd.h>

#include <cstdlib>
#include <map>
#include <string>

#include "tests/harness/catch.hpp"

namespace rondo {
namespace {

using comm::identity_from;

const char* const kAllVariables[] = {"RANK",
                                     "WORLD_SIZE",
                                     "LOCAL_RANK",
                                     "LOCAL_WORLD_SIZE",
                                     "MASTER_ADDR",
                                     "MASTER_PORT",
                                     "RONDO_RENDEZVOUS",
                                     "RONDO_SECRET",
                                     "TORCHELASTIC_RESTART_COUNT",
                                     "OMPI_COMM_WORLD_RANK",
                                     "OMPI_COMM_WORLD_SIZE",
                                     "OMPI_COMM_WORLD_LOCAL_RANK",
                                     "OMPI_COMM_WORLD_LOCAL_SIZE",
                                     "PMIX_NAMESPACE",
                                     "PMI_RANK",
                                     "PMI_SIZE",
                                     "MPI_LOCALRANKID",
                                     "MPI_LOCALNRANKS",
                                     "XDG_RUNTIME_DIR"};

using Variables = std::map<std::string, std::string>;

/// Exactly these variables, of those that count, while it lives.
class Environment {
 public:
  explicit Environment(const Variables& variables) {
    clear();
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  }
  ~Environment() { clear(); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  static void clear() {
    for (const char* name : kAllVariables) unsetenv(name);
  }
};

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
    REQUIRE(id->rendezvous == job_directory("29500"));
  }
  set["XDG_RUNTIME_DIR"] = "/run/me";
  set["TORCHELASTIC_RESTART_COUNT"] = "3";
  {
    Environment environment(set);
    REQUIRE(identity_from({})->rendezvous ==
            "/run/me/rondo-" + std::to_string(geteuid()) + "/29500-3");
  }
  set["RONDO_RENDEZVOUS"] = "/some/where";
  set["PMI_RANK"] = "1";  // another launcher's leftovers are not mixed in
  set["PMI_SIZE"] = "2";
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

TEST_CASE("explicit values win over the environment", "[environment]") {
  Environment environment({{"RANK", "nonsense"}, {"WORLD_SIZE", "9"}, {"MASTER_PORT", "1234"}});
  Config config;
  config.rank = 1;
  config.world_size = 2;
  auto id = identity_from(config);
  REQUIRE(id.ok());
  REQUIRE(id->rank == 1);
  REQUIRE(id->world_size == 2);
  REQUIRE(id->rendezvous == job_directory("1234"));
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
       {"LOCAL_WORLD_SIZE is 2", "WORLD_SIZE is 4", "one host"}},
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
       {"MASTER_ADDR is \"203.0.113.7\"", "one host"}},
      {{{"OMPI_COMM_WORLD_RANK", "1"}},
       Code::kInvalidArgument,
       {"OMPI_COMM_WORLD_SIZE is not set"}},
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
