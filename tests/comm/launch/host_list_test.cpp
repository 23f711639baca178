// --hosts and hostfiles as text.
#include "comm/launch/host_list.hpp"

#include "tests/harness/catch.hpp"

namespace rondo::run {
namespace {

/// The hosts that a list names, with a number of ranks for those that have none of their own.
std::string show(const Result<std::vector<JobHost>>& listed, int per_host) {
  if (!listed.ok()) return listed.status().message();
  const auto hosts = place_ranks(*listed, {.per_host = per_host});
  if (!hosts.ok()) return hosts.status().message();
  std::string text;
  for (const JobHost& host : *hosts) text += host.name + "=" + std::to_string(host.ranks) + " ";
  return text;
}

TEST_CASE("lists of hosts", "[hosts]") {
  CHECK(show(parse_hosts("a"), 1) == "a=1 ");
  CHECK(show(parse_hosts("a,b:3,c"), 4) == "a=4 b=3 c=4 ");
  CHECK(show(parse_hosts("a:2,b:1,a:1"), 1) == "a=3 b=1 ");
  CHECK(show(parse_hosts("10.0.0.1:2,[fd77::1]:3,fd77::2,[fd77::3]"), 1) ==
        "10.0.0.1=2 fd77::1=3 fd77::2=1 fd77::3=1 ");
  for (const char* wrong : {"", ",", "a,,b", "a:", "a:x", "a:-1", ":2", "[fd77::1", "[fd77::1]2",
                            "a:0", "a:2000", "--flag"}) {
    INFO(wrong);
    const auto hosts = parse_hosts(wrong);
    REQUIRE_FALSE(hosts.ok());
    CHECK(hosts.status().code() == Code::kInvalidArgument);
  }
}

TEST_CASE("a number of ranks that is refused is named alike, with its host", "[hosts]") {
  const std::string range = ": it must be from 1 to 1024";
  for (const char* number : {"0", "2000", "-1", "x", ""}) {
    INFO(number);
    const std::string of_b = "the number of ranks of host b is \"" + std::string(number) + "\"";
    CHECK(show(parse_hosts("a,b:" + std::string(number)), 1) == of_b + range);
    CHECK(show(parse_hostfile("b:" + std::string(number), "file"), 1) == "file:1: " + of_b + range);
    CHECK(show(parse_hostfile("a\nb slots=" + std::string(number), "file"), 1) ==
          "file:2: " + of_b + range);
  }
  CHECK(show(parse_hosts("a\033[31m:x"), 1).find('\033') == std::string::npos);
}

TEST_CASE("a hostfile's line that gives two numbers of ranks is refused by its number", "[hosts]") {
  for (const char* line : {"h1:2 3", "h1:2 slots=2", "h1 2 3", "h1 slots=2 slots=2"}) {
    INFO(line);
    const std::string said = show(parse_hostfile("h0\n" + std::string(line), "file"), 1);
    CHECK(said.starts_with("file:2: the number of ranks of host h1 is given twice"));
  }
  CHECK(show(parse_hostfile("h1:2 max_slots=3", "file"), 1) == "h1=2 ");
}

TEST_CASE("hostfiles in the formats of Open MPI, MPICH and others", "[hosts]") {
  CHECK(show(parse_hostfile("# all\n\na slots=2\nb:3\n  c 4 # comment\nd\n"
                            "e slots=1 max_slots=8\nfd77::1 slots=2\n",
                            "file"),
             5) == "a=2 b=3 c=4 d=5 e=1 fd77::1=2 ");
  CHECK(show(parse_hostfile("a\na\n", "file"), 1) == "a=2 ");
  CHECK(show(parse_hostfile("# none\n", "file"), 1) == "file names no host");
  CHECK(show(parse_hostfile("a\nb cores=2\n", "file"), 1).rfind("file:2: \"cores=2\"", 0) == 0);
  CHECK(show(parse_hostfile("a slots=x\n", "file"), 1).rfind("file:1: ", 0) == 0);
}

TEST_CASE("a total number of ranks fills the hosts in order", "[hosts]") {
  const auto place = [](const char* list, int total) {
    const auto hosts = place_ranks(*parse_hosts(list), {.total = total});
    if (!hosts.ok()) return hosts.status().message();
    std::string text;
    for (const JobHost& host : *hosts) text += host.name + "=" + std::to_string(host.ranks) + " ";
    return text;
  };
  CHECK(place("a:2,b:2", 4) == "a=2 b=2 ");
  CHECK(place("a:2,b:2", 3) == "a=2 b=1 ");
  CHECK(place("a:2,b:2", 2) == "a=2 ");
  CHECK(place("a,b", 4) == "a=2 b=2 ");
  CHECK(place("a,b,c", 5) == "a=2 b=2 c=1 ");
  CHECK(place("a,b,c", 2) == "a=1 b=1 ");
  CHECK(place("a,b,a", 7) == "a=5 b=2 ");
  CHECK(place("a:1,b,c:2", 6) == "a=1 b=3 c=2 ");
  CHECK(place("a:2,b:2", 5) ==
        "-n is 5, but the hosts have 4 ranks together: give them more, or leave out their numbers");
}

}  // namespace
}  // namespace rondo::run
