// The fixture that tests with several hosts stand on.
#include "tests/harness/hosts.hpp"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/harness/catch.hpp"
#include "tests/harness/rank_group.hpp"

namespace rondo::testing {
namespace {

/// "refused": the other host is there, and nothing listens. "lost": no answer for half a second.
std::string knock(const Hosts& hosts, int from, const std::string& at) {
  const ProgramResult ran = run_program(
      hosts.on(from, {"timeout", "0.5", "bash", "-c", "LC_ALL=C; echo > /dev/tcp/" + at + "/9"}));
  if (ran.exit_code == 124) return "lost";
  return ran.err.find("Connection refused") != std::string::npos ? "refused" : ran.err;
}

char state_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string stat;
  std::getline(file, stat);
  const size_t name_end = stat.rfind(')');
  return name_end == std::string::npos ? ' ' : stat[name_end + 2];
}

TEST_CASE("hosts have names, addresses and networks of their own", "[hosts]") {
  const Hosts hosts(2, 2);
  for (const std::string& address :
       {Hosts::address(1), Hosts::address(1, 1), Hosts::address_v6(1), Hosts::address_v6(1, 1),
        Hosts::name(1), std::string("h1-v6")}) {
    INFO(address);
    CHECK(knock(hosts, 0, address) == "refused");
  }
  CHECK(run_program(hosts.on(1, {"hostname"})).out == "h1\n");
  CHECK(run_program(hosts.on(1, {"getent", "ahostsv4", "h1"})).out.rfind("127.0.1.1", 0) == 0);
  CHECK(run_program(hosts.on(0, {"sh", "-c", "exit 7"})).exit_code == 7);
  std::vector<std::string> words = hosts.agent();
  words.insert(words.end(), {"10.77.0.2", "hostname;", "pwd;", "echo", "$SECRET"});
  CHECK(run_program(words, {"HOME=/tmp", "SECRET=hidden"}).out == "h1\n/tmp\n\n");
}

TEST_CASE("two groups of hosts do not see each other", "[hosts]") {
  const Hosts one(1), other(2);
  CHECK(knock(other, 0, Hosts::address(1)) == "refused");
  CHECK(knock(one, 0, Hosts::address(1)) != "refused");
}

TEST_CASE("a cut link loses packets, and a mended one does not", "[hosts]") {
  const Hosts hosts(2, 2);
  hosts.cut(1);
  CHECK(knock(hosts, 0, Hosts::address(1)) != "refused");
  CHECK(knock(hosts, 1, Hosts::address(0)) != "refused");
  CHECK(knock(hosts, 0, Hosts::address(1, 1)) == "refused");
  hosts.mend(1);
  CHECK(knock(hosts, 0, Hosts::address(1)) == "refused");
}

TEST_CASE("netem delays, where the kernel has it", "[hosts]") {
  const Hosts hosts(2);
  if (!hosts.netem(0, {"delay", "700ms"})) {
    WARN("this kernel has no netem: not tested");
    return;
  }
  CHECK(knock(hosts, 0, Hosts::address(1)) == "lost");
}

TEST_CASE("the processes of a host freeze, thaw and end with it", "[hosts]") {
  pid_t sleeper = -1;
  {
    const Hosts hosts(1);
    run_program(hosts.on(0, {"sh", "-c", "sleep 1000 >/dev/null 2>&1 &"}));
    REQUIRE(hosts.processes(0).size() == 1);
    sleeper = hosts.processes(0)[0];
    hosts.freeze(0);
    CHECK(state_of(sleeper) == 'T');
    hosts.thaw(0);
    CHECK(state_of(sleeper) != 'T');
  }
  const char state = state_of(sleeper);
  CHECK((state == ' ' || state == 'Z'));
}

TEST_CASE("the hosts of a killed test go with the next test's start", "[hosts]") {
  const std::string tool = RONDO_SOURCE "/tests/harness/hosts";
  const ProgramResult made = run_program({"sh", "-c", "'" + tool + "' up $$ 1"});
  REQUIRE(made.exit_code == 0);
  const std::string group = made.out.substr(0, made.out.size() - 1);
  REQUIRE(std::filesystem::exists("/run/netns/" + group + "-0"));
  { const Hosts next(1); }
  for (const char* part : {"-0", "-net"}) {
    CHECK_FALSE(std::filesystem::exists("/run/netns/" + group + part));
    CHECK_FALSE(std::filesystem::exists("/etc/netns/" + group + part));
  }
}

}  // namespace
}  // namespace rondo::testing
