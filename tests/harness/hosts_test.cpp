// The fixture that tests with several hosts stand on.
#include "tests/harness/hosts.hpp"

#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/harness/bad_network.hpp"
#include "tests/harness/catch.hpp"
#include "tests/harness/rank_group.hpp"

namespace rondo::testing {
namespace {

/// "refused": the other host is there, and nothing listens. "lost": no answer in that time.
std::string knock(const Hosts& hosts, int from, const std::string& at,
                  const char* seconds = "0.5") {
  const ProgramResult ran = run_program(
      hosts.on(from, {"timeout", seconds, "bash", "-c", "LC_ALL=C; echo > /dev/tcp/" + at + "/9"}));
  if (ran.exit_code == 124) return "lost";
  return ran.err.find("Connection refused") != std::string::npos ? "refused" : ran.err;
}

struct Seen {
  int came = 0;     // of those that were sent, at least once
  int doubled = 0;  // more of them
  int late = 0;     // after one that was sent later
  double first_ms = 0, last_ms = 0;
};

/// Numbered datagrams from one host to another.
class Datagrams {
 public:
  Datagrams(const Hosts& hosts, int from, int to) {
    std::thread([&] {  // of which the network is another one for a while
      hosts.enter_network(from);
      from_ = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
      hosts.enter_network(to);
      to_ = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    })
        .join();
    sockaddr_in at{.sin_family = AF_INET, .sin_port = htons(9999), .sin_addr = {}, .sin_zero = {}};
    const int bytes = 8 << 20;  // all of one send(), which reads none before it has sent all
    REQUIRE(setsockopt(to_, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes) == 0);
    REQUIRE(bind(to_, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0);
    REQUIRE(inet_pton(AF_INET, Hosts::address(to).c_str(), &at.sin_addr) == 1);
    REQUIRE(connect(from_, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0);
  }
  ~Datagrams() {
    close(from_);
    close(to_);
  }
  Datagrams(const Datagrams&) = delete;
  Datagrams& operator=(const Datagrams&) = delete;

  /// Until none has come for a while; longer while fewer than `at_least` came, because a relay may
  /// get no CPU.
  Seen send(int count, int at_least = 0) const {
    const auto patience_ms = [&](const Seen& so_far) {
      return so_far.came < at_least ? 20'000 : 1000;
    };
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    Seen seen;
    std::vector<int> times(static_cast<size_t>(count));
    int newest = -1;
    for (int i = 0; i < count; ++i) REQUIRE(::send(from_, &i, sizeof i, 0) == sizeof i);
    for (pollfd ready{to_, POLLIN, 0}; poll(&ready, 1, patience_ms(seen)) > 0;) {
      int i = -1;
      REQUIRE(recv(to_, &i, sizeof i, 0) == sizeof i);
      seen.last_ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
      if (seen.came == 0) seen.first_ms = seen.last_ms;
      ++(times.at(static_cast<size_t>(i))++ == 0 ? seen.came : seen.doubled);
      seen.late += i < newest ? 1 : 0;
      newest = std::max(newest, i);
    }
    return seen;
  }

 private:
  int from_ = -1, to_ = -1;
};

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
    CHECK(knock(hosts, 0, address, "10") == "refused");
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
  CHECK(knock(other, 0, Hosts::address(1), "10") == "refused");
  CHECK(knock(one, 0, Hosts::address(1)) != "refused");
}

TEST_CASE("a cut link loses packets, and a mended one does not", "[hosts]") {
  const Hosts hosts(2, 2);
  hosts.cut(1);
  CHECK(knock(hosts, 0, Hosts::address(1)) != "refused");
  CHECK(knock(hosts, 1, Hosts::address(0)) != "refused");
  CHECK(knock(hosts, 0, Hosts::address(1, 1), "10") == "refused");
  hosts.mend(1);
  CHECK(knock(hosts, 0, Hosts::address(1), "10") == "refused");
}

TEST_CASE("a bad network delays, loses, doubles, mixes and holds up what it is told to",
          "[hosts]") {
  using std::chrono::microseconds;
  const Hosts hosts(2);
  const Datagrams line(hosts, 0, 1);
  BadNetwork network(hosts, 1);
  // The kernel keeps some 270 datagrams while it asks where a host is; afterwards up to 1000 that
  // wait for a busy CPU (net.core.netdev_max_backlog).
  REQUIRE(line.send(1, 1).came == 1);
  const Seen perfect = line.send(400, 400);
  CHECK((perfect.came == 400 && perfect.doubled == 0 && perfect.late == 0));

  network.set(0, 1, {.delay = microseconds{30'000}});
  CHECK(line.send(10, 10).first_ms >= 30);

  network.set(0, 1, {.lost = 0.3});
  const Seen lossy = line.send(400);
  CHECK((lossy.came > 220 && lossy.came < 340));

  network.set(0, 1, {.doubled = 0.3});
  const Seen doubled = line.send(400, 400);
  CHECK((doubled.came == 400 && doubled.doubled > 60 && doubled.doubled < 180));

  network.set(0, 1, {.jitter = microseconds{20'000}});
  const Seen mixed = line.send(400, 400);
  CHECK((mixed.came == 400 && mixed.late > 40));

  network.set(0, 1, {.bytes_per_s = 100'000});
  const Seen slow = line.send(400, 400);  // of 46 bytes each
  CHECK((slow.came == 400 && slow.last_ms > 150));

  const BadNetwork::Counts counts = network.counts();
  CHECK((counts.lost > 60 && counts.doubled > 60 && counts.overtaken > 40));

  network.set_all({});
  network.cut(1);
  CHECK(line.send(10).came == 0);
}

TEST_CASE("of a bad network one direction can be cut, and after it all is well", "[hosts]") {
  const Hosts hosts(3);
  {
    BadNetwork network(hosts, 1);
    network.set(0, 1, Wire::none());
    CHECK(Datagrams(hosts, 0, 1).send(10).came == 0);
    CHECK(Datagrams(hosts, 1, 0).send(10).came == 0);  // nobody says where host 1 is
    CHECK(Datagrams(hosts, 2, 1).send(10, 10).came == 10);
    CHECK(knock(hosts, 2, Hosts::address(0), "10") == "refused");
    CHECK(knock(hosts, 0, Hosts::address(1)) != "refused");
  }
  // The kernel asks once a second where host 1 is.
  CHECK(knock(hosts, 0, Hosts::address(1), "10") == "refused");
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
