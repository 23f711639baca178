// Which interface other hosts are to use, and listeners at it: on hosts with two networks.
#include "comm/bootstrap/connection/interface.hpp"

#include <stdlib.h>
#include <sys/socket.h>

#include "comm/bootstrap/connection/tcp.hpp"
#include "comm/bootstrap/session/bootstrap.hpp"
#include "tests/comm/bootstrap/tcp_helpers.hpp"
#include "tests/harness/hosts.hpp"

namespace rondo {
namespace {

using testing::expect;
using testing::expect_eq;
using testing::Hosts;
using testing::How;

/// Runs `body` in a process of its own on each of the hosts 0..n-1.
void on_each(const Hosts& hosts, int n, const std::function<void(int host)>& body) {
  testing::require_all_ok(testing::run_ranks(How::kForks, n, [&](int host) {
    hosts.enter_network(host);
    body(host);
  }));
}

void expect_interface(const Result<comm::Interface>& found, const std::string& name,
                      const std::string& address) {
  expect(found.ok(), found.status().to_string());
  expect_eq(found->name, name, "name");
  expect_eq(found->address, address, "address");
}

Result<comm::Interface> chosen_by(const char* list) {
  setenv("RONDO_INTERFACE", list, 1);
  auto chosen = comm::chosen_interface();
  if (!chosen.ok()) return chosen.status();
  expect(chosen->has_value(), "nothing chosen");
  return **chosen;
}

TEST_CASE("RONDO_INTERFACE names an interface, a network or several", "[interface]") {
  const Hosts hosts(1, 2);
  on_each(hosts, 1, [](int) {
    unsetenv("RONDO_INTERFACE");
    expect(!comm::chosen_interface().value().has_value(), "chosen although it is not set");
    expect_interface(chosen_by("eth1"), "eth1", "10.78.0.1");
    expect_interface(chosen_by("10.78.0.0/16"), "eth1", "10.78.0.1");
    expect_interface(chosen_by("10.77.0.1"), "eth0", "10.77.0.1");
    expect_interface(chosen_by("fd78::/16"), "eth1", "fd78::1");
    expect_interface(chosen_by("ib0,192.168.0.0/16,eth1,eth0"), "eth1", "10.78.0.1");
    expect_interface(chosen_by("lo"), "lo", "127.0.0.1");
    expect(std::system("ip addr add 10.99.0.1/24 dev eth0 label eth0:1") == 0, "ip");
    expect_interface(chosen_by("10.99.0.0/16"), "eth0", "10.99.0.1");  // what UCX calls it
    expect(std::system("ip addr del 10.99.0.1/24 dev eth0") == 0, "ip");
    for (const char* wrong : {"ib0", "192.168.0.0/16", "10.0.0.0/33", "10.0.0/8", "eth0/24"}) {
      expect_failure(chosen_by(wrong).status(), Code::kInvalidArgument,
                     {std::string("RONDO_INTERFACE is \"") + wrong});
    }
    expect_failure(chosen_by("ib0").status(), Code::kInvalidArgument,
                   {"eth0 10.77.0.1, eth1 10.78.0.1"});
  });
}

TEST_CASE("where other hosts reach this one", "[interface]") {
  const Hosts hosts(1, 2);
  on_each(hosts, 1, [](int) {
    unsetenv("RONDO_INTERFACE");
    expect_interface(comm::interface_for_others({"10.78.0.1"}), "eth1", "10.78.0.1");
    expect_interface(comm::interface_for_others({"fd78::1"}), "eth1", "fd78::1");
    // Names that lead to loopback, elsewhere, or nowhere: there is no default route either.
    for (const char* name : {"localhost", "127.0.1.1", "203.0.113.9", "no-such-host.invalid", ""}) {
      expect_interface(comm::interface_for_others({name}), "eth0", "10.77.0.1");
    }
    setenv("RONDO_INTERFACE", "eth1", 1);
    expect_interface(comm::interface_for_others({"10.77.0.1"}), "eth1", "10.78.0.1");
    unsetenv("RONDO_INTERFACE");
    expect(std::system("ip link add docker0 type bridge && ip addr add 10.1.0.1/24 dev docker0 && "
                       "ip link set docker0 up && ip addr del 10.77.0.1/24 dev eth0 && "
                       "ip route add default via 10.78.0.9") == 0,
           "ip");
    expect_interface(comm::interface_for_others({}), "eth1", "10.78.0.1");
    expect(std::system("ip link set eth0 down && ip link set eth1 down") == 0, "ip");
    expect_failure(comm::interface_for_others({}).status(), Code::kUnavailable, {""});
  });
}

TEST_CASE("ranks that meet at loopback are not reached from elsewhere", "[interface]") {
  const Hosts hosts(1);
  testing::require_all_ok(testing::run_ranks(How::kForks, 2, [&](int rank) {
    hosts.enter_network(0);
    setenv("RONDO_INTERFACE", "eth0", 1);
    comm::Identity identity = tcp_identity(rank, 2, 20'078);
    identity.secret.clear();
    const comm::Bootstrap met = must_meet(identity);
    for (const int first : {0, 1}) {
      expect(met.meeting_place(first).starts_with("tcp://127.0.0.1:"), met.meeting_place(first));
    }
  }));
}

TEST_CASE("a connection's interface", "[interface]") {
  const Hosts hosts(2, 2);
  for (const std::string& address :
       {Hosts::address(0, 1), Hosts::address_v6(0, 1), std::string("127.0.0.1")}) {
    INFO(address);
    testing::ForkGang gang(2, [&](int host, testing::Link& link) {
      const bool is_local = address == "127.0.0.1";
      hosts.enter_network(is_local ? 0 : host);
      unsetenv("RONDO_PORTS");
      const auto at = comm::parse_address(address, 20'077);
      if (host == 0) {
        setenv("RONDO_PORTS", "20077", 1);
        auto listener = comm::listen_anywhere(address);
        expect(listener.ok(), listener.status().to_string());
        link.announce("listening");
        const transport::UniqueFd fd(accept(listener->socket.get(), nullptr, nullptr));
        link.await("end");
        return;
      }
      link.await("connect");
      const transport::UniqueFd fd(socket(at->storage.ss_family, SOCK_STREAM, 0));
      expect(connect(fd.get(), at->get(), at->bytes) == 0, "connect");
      const bool is_v6 = at->storage.ss_family == AF_INET6;
      expect_interface(comm::interface_of_socket(fd.get()), is_local ? "lo" : "eth1",
                       is_local ? "127.0.0.1"
                       : is_v6  ? Hosts::address_v6(1, 1)
                                : Hosts::address(1, 1));
      link.announce("checked");
    });
    gang.await(0, "listening");
    gang.tell(1, "connect");
    gang.await(1, "checked");
    gang.tell(0, "end");
    testing::require_all_ok(gang.join());
  }
}

TEST_CASE("listeners take free ports, of RONDO_PORTS if it is set", "[interface]") {
  const Hosts hosts(1);
  on_each(hosts, 1, [](int) {
    unsetenv("RONDO_PORTS");
    auto any = comm::listen_anywhere("10.77.0.1"), v6 = comm::listen_anywhere("fd77::1");
    expect(any.ok() && v6.ok() && any->port > 0 && v6->port > 0, "any port");
    setenv("RONDO_PORTS", "20000-20002", 1);
    std::vector<comm::TcpListener> all;
    int sum = 0;
    for (int i = 0; i < 3; ++i) {
      auto one = comm::listen_anywhere("10.77.0.1");
      expect(one.ok(), one.status().to_string());
      sum += one->port;
      all.push_back(std::move(*one));
    }
    expect_eq(sum, 3 * 20'001, "sum of the ports");
    expect_failure(comm::listen_anywhere("10.77.0.1").status(), Code::kResourceExhausted,
                   {"RONDO_PORTS is 20000-20002"});
    expect_failure(comm::listen_anywhere("10.77.0.9").status(), Code::kInvalidArgument, {""});
    for (const char* wrong : {"20000-", "20002-20000", "0-7", "1-70000", "some"}) {
      setenv("RONDO_PORTS", wrong, 1);
      expect_failure(comm::listen_anywhere("10.77.0.1").status(), Code::kInvalidArgument, {wrong});
    }
    // What is reserved is nobody's by chance, but can be listened at.
    auto reserved = comm::reserve_port("10.77.0.1", {.first = 21'000, .last = 21'000});
    expect(reserved.ok() && reserved->port == 21'000, reserved.status().to_string());
    setenv("RONDO_PORTS", "21000", 1);
    expect(comm::listen_anywhere("10.77.0.1").ok(), "listening at a reserved port");
  });
}

TEST_CASE("ranks of one host or two meet at addresses of both families", "[interface]") {
  const Hosts hosts(2, 2);
  const auto check_meeting = [&](int ranks, const std::string& place, const std::string& secret,
                                 const std::vector<int>& host_of) {
    INFO(place);
    testing::require_all_ok(testing::run_ranks(How::kForks, ranks, [&](int rank) {
      hosts.enter_network(host_of[static_cast<size_t>(rank)]);
      comm::Identity id = tcp_identity(rank, ranks, 1, secret);
      id.rendezvous = place;
      comm::Bootstrap met = must_meet(id);
      expect_eq(met.hosts().hosts(), host_of.back() + 1, "hosts");
      expect(met.barrier().ok(), "barrier");
    }));
  };
  for (const char* place :
       {"tcp://10.77.0.1:29501", "tcp://10.78.0.1:29501", "tcp://[fd77::1]:29501"}) {
    check_meeting(2, place, "s3cret", {0, 1});
  }
  for (const char* secret : {"s3cret", ""}) {
    check_meeting(3, "tcp://[::1]:29501", secret, {0, 0, 0});
  }
}

TEST_CASE("a name that no resolver knows is awaited until the deadline", "[interface]") {
  for (const int rank : {0, 1}) {
    comm::Identity id = tcp_identity(rank, 2, 1);
    id.rendezvous = "tcp://no-such-host.invalid:29501";
    const Status status = comm::Bootstrap::meet(id, "world", kShort).status();
    expect_failure(status, Code::kBootstrap,
                   {"the host of tcp://no-such-host.invalid:29501 is not known"});
    REQUIRE(status.message().find("another process does") == std::string::npos);
  }
}

}  // namespace
}  // namespace rondo
