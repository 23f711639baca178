// TCP sockets for ranks that share no directory.
#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <initializer_list>

#include "comm/base/refuse.hpp"
#include "comm/bootstrap/launchers.hpp"
#include "comm/bootstrap/rendezvous.hpp"

namespace rondo::comm {
namespace {

using transport::UniqueFd;

struct TcpOption {
  int level, name, value;
};

/// The first error, but all that can be set are set.
Status set_options(int socket, std::initializer_list<TcpOption> options) {
  Status status;
  for (const auto& [level, name, value] : options) {
    if (setsockopt(socket, level, name, &value, sizeof value) != 0 && status.ok()) {
      status = system_status("setsockopt", errno);
    }
  }
  return status;
}

/// Accepted sockets inherit these options.
Result<UniqueFd> tcp_socket(const sockaddr_storage& address) {
  UniqueFd fd(socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return system_status("socket", errno);
  // One end may not learn that the other is gone: the host failed, or the listener closed during
  // the connect (Linux silently drops one in some thousand of those). Keepalive probes after a
  // second of silence detect it.
  (void)set_options(fd.get(), {{IPPROTO_TCP, TCP_NODELAY, 1},
                               {SOL_SOCKET, SO_KEEPALIVE, 1},
                               {IPPROTO_TCP, TCP_KEEPIDLE, 1},
                               {IPPROTO_TCP, TCP_KEEPINTVL, 1},
                               {IPPROTO_TCP, TCP_KEEPCNT, 10}});
  return fd;
}

/// Whether the error means only that rank 0 does not listen yet, or is not reachable for the
/// moment.
bool may_come_later(int error) {
  switch (error) {
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:  // accepted, closed and reset before we looked
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EAGAIN:
    case EINTR:
      return true;
    default:
      return false;
  }
}

}  // namespace

Status set_liveness(int socket, std::chrono::milliseconds limit) {
  // With TCP_USER_TIMEOUT the kernel compares the time since the last acknowledgement at every
  // keepalive probe, too, and does not count the probes.
  return set_options(socket, {{IPPROTO_TCP, TCP_NODELAY, 1},
                              {SOL_SOCKET, SO_KEEPALIVE, 1},
                              {IPPROTO_TCP, TCP_KEEPIDLE, 1},
                              {IPPROTO_TCP, TCP_KEEPINTVL, 1},
                              {IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(limit.count())}});
}

Result<socklen_t> resolve_tcp(const std::string& text, sockaddr_storage& into) {
  const std::string rest = text.substr(kTcpScheme.size());
  const size_t colon = rest.rfind(':');
  std::string host = rest.substr(0, colon);
  const bool bracketed = host.starts_with('[') && host.ends_with(']');
  if (colon == std::string::npos || host.empty() ||
      (!bracketed && host.find(':') != std::string::npos)) {
    return refuse("the rendezvous is " + text + ": it must be tcp://HOST:PORT, or [HOST] for IPv6");
  }
  if (bracketed) host = host.substr(1, host.size() - 2);
  const std::string port = rest.substr(colon + 1);
  auto number = parse_number("the port of " + text, port);
  if (!number.ok()) return number.status();
  if (*number == 0 || *number > 65535) {
    return refuse("the port of " + text + " must be from 1 to 65535");
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (error != 0) {
    return Status(Code::kBootstrap,
                  "the host of " + text + " is not known here: " + gai_strerror(error));
  }
  // Only the first: all ranks must use the same address, and rank 0 listens on one.
  const socklen_t bytes = found->ai_addrlen;
  std::memcpy(&into, found->ai_addr, bytes);
  freeaddrinfo(found);
  return bytes;
}

bool is_loopback(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    return ntohl(v4.sin_addr.s_addr) >> 24 == 127;
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  return address.ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
}

std::string peer_address(int socket) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  char host[NI_MAXHOST], port[NI_MAXSERV];
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (getpeername(socket, any, &bytes) != 0 ||
      getnameinfo(any, bytes, host, sizeof host, port, sizeof port,
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "an unknown place";
  }
  return std::string(host) + ":" + port;
}

Result<std::optional<UniqueFd>> listen_tcp(const sockaddr_storage& address, socklen_t bytes,
                                           const std::string& text) {
  auto fd = tcp_socket(address);
  if (!fd.ok()) return fd.status();
  // The port of a meeting that has just ended can be used at once.
  const int on = 1;
  setsockopt(fd->get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd->get(), reinterpret_cast<const sockaddr*>(&address), bytes) == 0 &&
      listen(fd->get(), SOMAXCONN) == 0) {
    return std::optional<UniqueFd>(std::move(*fd));
  }
  if (errno == EADDRINUSE) return std::optional<UniqueFd>();
  if (errno == EADDRNOTAVAIL) {
    return Status(Code::kInvalidArgument,
                  "rank 0 cannot listen at " + text + ": that is no address of this host");
  }
  return system_status("rank 0 cannot listen at " + text, errno);
}

Result<std::optional<UniqueFd>> connect_tcp(const sockaddr_storage& address, socklen_t bytes,
                                            const std::string& text, Deadline deadline) {
  auto fd = tcp_socket(address);
  if (!fd.ok()) return fd.status();
  int error = 0;
  if (connect(fd->get(), reinterpret_cast<const sockaddr*>(&address), bytes) != 0) error = errno;
  if (error == EINPROGRESS) {
    pollfd writable{fd->get(), POLLOUT, 0};
    auto ready = poll_until({&writable, 1}, deadline);
    if (!ready.ok()) return ready.status();
    socklen_t size = sizeof error;
    if (!*ready) {
      error = ETIMEDOUT;
    } else if (getsockopt(fd->get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) {
      error = errno;
    }
  }
  if (error == 0) {
    // Without a listener a socket can connect to itself, if the port is an ephemeral one.
    sockaddr_storage own{}, other{};
    socklen_t own_bytes = sizeof own, other_bytes = sizeof other;
    getsockname(fd->get(), reinterpret_cast<sockaddr*>(&own), &own_bytes);
    getpeername(fd->get(), reinterpret_cast<sockaddr*>(&other), &other_bytes);
    if (own_bytes == other_bytes && std::memcmp(&own, &other, own_bytes) == 0) {
      return std::optional<UniqueFd>();
    }
    return std::optional<UniqueFd>(std::move(*fd));
  }
  if (may_come_later(error)) return std::optional<UniqueFd>();
  return system_status("cannot connect to " + text, error);
}

}  // namespace rondo::comm
