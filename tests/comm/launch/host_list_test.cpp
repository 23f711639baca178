// --hosts and hostfiles as text.
#include "comm/launch/host_list.hpp"

#include "tests/harness/catch.hpp"

namespace rondo::run {
namespace {

std::string show(const Result<std::vector<JobHost>>& hosts) {
  if (!hosts.ok()) return hosts.status().message();
  std::string text;
  for (const JobHost& host : *hosts) text += host.name + "=" + std::to_string(host.ranks) + " ";
  return text;
}

TEST_CASE("lists of hosts", "[hosts]") {
  CHECK(show(parse_hosts("a", 1)) == "a=1 ");
  CHECK(show(parse_hosts("a,b:3,c", 4)) == "a=4 b=3 c=4 ");
  CHECK(show(parse_hosts("a:2,b:1,a:1", 1)) == "a=3 b=1 ");
  CHECK(show(parse_hosts("10.0.0.1:2,[fd77::1]:3,fd77::2,[fd77::3]", 1)) ==
        "10.0.0.1=2 fd77::1=3 fd77::2=1 fd77::3=1 ");
  for (const char* wrong : {"", ",", "a,,b", "a:", "a:x", "a:-1", ":2", "[fd77::1", "[fd77::1]2",
                            "a:0", "a:2000", "--flag"}) {
    INFO(wrong);
    const auto hosts = parse_hosts(wrong, 1);
    REQUIRE_FALSE(hosts.ok());
    CHECK(hosts.status().code() == Code::kInvalidArgument);
  }
}

TEST_CASE("hostfiles in the formats of Open MPI, MPICH and others", "[hosts]") {
  CHECK(show(parse_hostfile("# all\n\na slots=2\nb:3\n  c 4 # comment\nd\n"
                            "e slots=1 max_slots=8\nfd77::1 slots=2\n",
                            "file", 5)) == "a=2 b=3 c=4 d=5 e=1 fd77::1=2 ");
  CHECK(show(parse_hostfile("a\na\n", "file", 1)) == "a=2 ");
  CHECK(show(parse_hostfile("# none\n", "file", 1)) == "file names no host");
  CHECK(show(parse_hostfile("a\nb cores=2\n", "file", 1)).rfind("file:2: \"cores=2\"", 0) == 0);
  CHECK(show(parse_hostfile("a slots=x\n", "file", 1)).rfind("file:1: ", 0) == 0);
}

}  // namespace
}  // namespace rondo::run
