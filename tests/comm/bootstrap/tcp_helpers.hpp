// What tests of a meeting over TCP need.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <string>

#include "tests/comm/bootstrap/meeting_helpers.hpp"
#include "tests/harness/catch.hpp"

namespace rondo {

/// `port` of an IPv4 address of this host.
inline sockaddr_in at_port(const char* address, int port) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  testing::expect(inet_pton(AF_INET, address, &at.sin_addr) == 1, address);
  at.sin_port = htons(static_cast<uint16_t>(port));
  return at;
}

/// A listening socket on a port of 127.0.0.1 that the kernel chose, or on `port`.
inline transport::UniqueFd listen_on_loopback(int& port) {
  transport::UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;  // rank 0 may listen there next
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address = at_port("127.0.0.1", port);
  socklen_t size = sizeof address;
  auto* any = reinterpret_cast<sockaddr*>(&address);
  testing::expect(bind(fd.get(), any, size) == 0 && listen(fd.get(), 8) == 0 &&
                      getsockname(fd.get(), any, &size) == 0,
                  "no port");
  port = ntohs(address.sin_port);
  return fd;
}

/// The next connection; the test fails if none comes.
inline transport::UniqueFd accept_one(const transport::UniqueFd& listener) {
  pollfd come{listener.get(), POLLIN, 0};
  REQUIRE(poll(&come, 1, 30'000) == 1);
  transport::UniqueFd fd(accept(listener.get(), nullptr, nullptr));
  REQUIRE(fd.valid());
  return fd;
}

/// A connection to `port`; nothing while nobody listens. `source`: another address of this host. Not
/// 127.0.0.1: from the very port the connection would be one to itself.
inline transport::UniqueFd connect_once(int port, const char* source = nullptr) {
  transport::UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto at = [](const sockaddr_in& address) {
    return reinterpret_cast<const sockaddr*>(&address);
  };
  const sockaddr_in to = at_port("127.0.0.1", port);
  if (source != nullptr) {
    const sockaddr_in from = at_port(source, 0);
    testing::expect(bind(fd.get(), at(from), sizeof from) == 0, source);
  }
  if (connect(fd.get(), at(to), sizeof to) != 0) fd.reset();
  return fd;
}

/// A connection to whoever listens at `port`, as soon as somebody does.
inline transport::UniqueFd connect_to_loopback(int port) {
  const auto until = std::chrono::steady_clock::now() + kLong;
  while (true) {
    transport::UniqueFd fd = connect_once(port);
    if (fd.valid()) return fd;
    testing::expect(std::chrono::steady_clock::now() < until, "nobody listens");
  }
}

/// Closes with a reset, as some scanners do.
inline void reset_connection(transport::UniqueFd fd) {
  const linger at_once{1, 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

/// A port at which no process listens.
inline int free_port() {
  int port = 0;
  listen_on_loopback(port);
  return port;
}

inline comm::Identity tcp_identity(int rank, int size, int port,
                                   const std::string& secret = "s3cret",
                                   const std::string& host = "127.0.0.1") {
  return {.rank = rank,
          .world_size = size,
          .local_rank = rank,
          .local_world_size = size,
          .rendezvous = "tcp://" + host + ":" + std::to_string(port),
          .secret = secret};
}

}  // namespace rondo
