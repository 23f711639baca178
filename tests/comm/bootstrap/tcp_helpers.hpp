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

/// A listening socket on a port of 127.0.0.1 that the kernel chose, or on `port`.
inline transport::UniqueFd listen_on_loopback(int& port) {
  transport::UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;  // rank 0 may listen there next
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
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

/// A connection to whoever listens at `port`, as soon as somebody does.
inline transport::UniqueFd connect_to_loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  transport::UniqueFd fd;
  const auto until = std::chrono::steady_clock::now() + kLong;
  do {
    testing::expect(std::chrono::steady_clock::now() < until, "nobody listens");
    fd.reset(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  } while (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0);
  return fd;
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
