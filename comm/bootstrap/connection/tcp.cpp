// See tcp.hpp.
#include "comm/bootstrap/connection/tcp.hpp"

#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <initializer_list>
#include <random>
#include <sstream>

#include "comm/base/refuse.hpp"
#include "comm/base/variables.hpp"
#include "rondo/log.hpp"

namespace rondo::comm {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;
using transport::UniqueFd;

constexpr seconds kResolveEvery{1};
constexpr seconds kEachAddress{2};
constexpr int kMostTries = 100;

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
Result<UniqueFd> tcp_socket(const SocketAddress& address) {
  UniqueFd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
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
    case EADDRNOTAVAIL:  // IPv6 without an address to come from
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
                              {IPPROTO_TCP, TCP_USER_TIMEOUT,
                               static_cast<int>(std::min<int64_t>(limit.count(), INT_MAX))}});
}

namespace {

/// The port of a meeting that has just ended can be used at once, and one that is reserved.
void share_port(int fd) {
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
}

int port_of(int fd) {
  const auto own = address_of(fd);
  if (!own) return 0;
  return ntohs(own->storage.ss_family == AF_INET
                   ? reinterpret_cast<const sockaddr_in&>(own->storage).sin_port
                   : reinterpret_cast<const sockaddr_in6&>(own->storage).sin6_port);
}

Result<std::optional<UniqueFd>> listen_at(const SocketAddress& address, const std::string& text) {
  auto fd = RONDO_TRY(tcp_socket(address));
  share_port(fd.get());
  if (bind(fd.get(), address.get(), address.bytes) == 0 && listen(fd.get(), SOMAXCONN) == 0) {
    return std::optional<UniqueFd>(std::move(fd));
  }
  if (errno == EADDRINUSE) return std::optional<UniqueFd>();
  if (errno == EADDRNOTAVAIL) {
    return Status(Code::kInvalidArgument,
                  "rank 0 cannot listen at " + text + ": that is no address of this host");
  }
  return system_status("rank 0 cannot listen at " + text, errno);
}

Result<std::optional<UniqueFd>> connect_to(const SocketAddress& address, const std::string& text,
                                           Deadline deadline) {
  auto fd = RONDO_TRY(tcp_socket(address));
  int error = 0;
  if (connect(fd.get(), address.get(), address.bytes) != 0) error = errno;
  if (error == EINPROGRESS) {
    pollfd writable{fd.get(), POLLOUT, 0};
    auto ready = RONDO_TRY(poll_until({&writable, 1}, deadline));
    socklen_t size = sizeof error;
    if (!ready) {
      error = ETIMEDOUT;
    } else if (getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) {
      error = errno;
    }
  }
  if (error == 0) {
    // Without a listener a socket can connect to itself, if the port is an ephemeral one.
    const auto own = address_of(fd.get()), other = address_of(fd.get(), getpeername);
    if (own && other && own->bytes == other->bytes &&
        std::memcmp(&own->storage, &other->storage, own->bytes) == 0) {
      return std::optional<UniqueFd>();
    }
    return std::optional<UniqueFd>(std::move(fd));
  }
  if (may_come_later(error)) return std::optional<UniqueFd>();
  return system_status("cannot connect to " + text, error);
}

/// Binds to a port of the range, from a random one on; `claim` finishes the job, with 0 or an errno.
/// The first round takes ports that no socket has, the second also those that are reserved, or that
/// connections which have just ended keep.
Result<TcpListener> bind_in(const std::string& address, PortRange range, int (*claim)(int fd)) {
  const int ports = range.last - range.first + 1;
  const int start = static_cast<int>(std::random_device{}() % static_cast<unsigned>(ports));
  const int tries = range.first == 0 ? kMostTries : 2 * ports;
  for (int i = 0; i < tries; ++i) {
    auto at = RONDO_TRY(parse_address(address, range.first + (start + i) % ports));
    auto fd = RONDO_TRY(tcp_socket(at));
    if (range.first != 0 && i >= ports) share_port(fd.get());
    const int error = bind(fd.get(), at.get(), at.bytes) != 0 ? errno : claim(fd.get());
    if (error == 0) {
      const int port = port_of(fd.get());
      return TcpListener{.socket = std::move(fd), .port = port};
    }
    if (error == EADDRNOTAVAIL) return refuse(address + " is no address of this host");
    if (error != EADDRINUSE) return system_status("cannot use a port of " + address, error);
  }
  return Status(Code::kResourceExhausted, range.first == 0
                                              ? "no port is free at " + address
                                              : "RONDO_PORTS is " + std::to_string(range.first) +
                                                    "-" + std::to_string(range.last) +
                                                    ", and none of them is free at " + address +
                                                    ": give it more ports");
}

}  // namespace

Result<TcpPlace> TcpPlace::parse(const std::string& text) {
  TcpPlace place;
  place.text_ = text;
  const std::string rest = text.substr(kTcpScheme.size());
  const size_t colon = rest.rfind(':');
  std::istringstream list(rest.substr(0, colon));
  for (std::string host; std::getline(list, host, ',');) {
    const bool in_brackets = host.starts_with('[') && host.ends_with(']');
    if (!in_brackets && host.find(':') != std::string::npos) break;
    place.hosts_.push_back(in_brackets ? host.substr(1, host.size() - 2) : host);
    if (place.hosts_.back().empty()) break;
  }
  if (colon == std::string::npos || !list.eof() || place.hosts_.empty() ||
      place.hosts_.back().empty()) {
    return refuse("the rendezvous is " + text + ": it must be tcp://HOST:PORT, or [HOST] for IPv6");
  }
  auto number = RONDO_TRY(parse_number("the port of " + text, rest.substr(colon + 1)));
  if (number == 0 || number > 65535) {
    return refuse("the port of " + text + " must be from 1 to 65535");
  }
  place.port_ = number;
  return place;
}

/// Fills addresses_, unless it has been tried within the last second.
bool TcpPlace::resolve() {
  if (!addresses_.empty()) return true;
  if (resolve_again_ && steady_clock::now() < *resolve_again_) return false;
  resolve_again_ = steady_clock::now() + kResolveEvery;
  std::string why;
  for (const std::string& host : hosts_) {
    const int error = resolve(host);
    if (error != 0) why = gai_strerror(error);
  }
  if (!addresses_.empty()) {
    trouble_.clear();
    return true;
  }
  if (trouble_.empty()) {
    trouble_ = "; the host of " + text_ + " is not known here: " + why;
    log(LogLevel::kWarn, trouble_.substr(2) + "; trying again every second");
  }
  return false;
}

/// Appends the addresses of one name; returns getaddrinfo()'s error, or 0.
int TcpPlace::resolve(const std::string& host) {
  auto [addresses, error] = resolve_name(host, port_);
  const bool only_here = std::all_of(addresses.begin(), addresses.end(),
                                     [](const SocketAddress& each) { return is_loopback(each); });
  const bool is_name = host != "localhost" && !parse_address(host, port_).ok();
  if (outward_ && only_here && is_name && (!addresses.empty() || is_this_host(host))) {
    const auto interface = interface_for_others({host});
    if (interface.ok()) addresses = {*parse_address(interface->address, port_)};
  }
  addresses_.insert(addresses_.end(), addresses.begin(), addresses.end());
  return addresses.empty() ? error : 0;
}

bool TcpPlace::is_loopback_only() {
  return resolve() && std::all_of(addresses_.begin(), addresses_.end(),
                                  [](const SocketAddress& each) { return is_loopback(each); });
}

std::string TcpPlace::trouble() const {
  if (addresses_.empty()) return trouble_;
  for (const SocketAddress& each : addresses_) {
    if (!is_loopback(each)) return {};
  }
  return "; that is " + text_of(addresses_.front()) + " here, which no other host reaches";
}

void TcpPlace::prefer_outward() { outward_ = true; }

Result<std::optional<UniqueFd>> TcpPlace::listen() {
  if (!resolve()) return std::optional<UniqueFd>();
  if (addresses_.size() == 1) return listen_at(addresses_[0], text_);
  auto interfaces = RONDO_TRY(list_interfaces());
  auto chosen = RONDO_TRY(chosen_interface());
  const SocketAddress* best = addresses_.data();
  for (const SocketAddress& each : addresses_) {
    if (chosen && text_of(each) == chosen->address) return listen_at(each, text_);
    if (!is_of(*best, interfaces) && is_of(each, interfaces)) best = &each;
  }
  return listen_at(*best, text_);
}

Result<std::optional<UniqueFd>> TcpPlace::try_connect(Deadline deadline) {
  if (!resolve()) return std::optional<UniqueFd>();
  for (const SocketAddress& each : addresses_) {
    const Deadline until =
        addresses_.size() == 1 ? deadline : deadline.at_most(steady_clock::now() + kEachAddress);
    auto connected = connect_to(each, text_, until);
    if (!connected.ok() || *connected) return connected;
  }
  return std::optional<UniqueFd>();
}

Result<PortRange> port_range() {
  const auto text = variable("RONDO_PORTS");
  if (!text) return PortRange{};
  const size_t dash = text->find('-');
  const auto first = parse_number("RONDO_PORTS", text->substr(0, dash));
  const auto last =
      dash == std::string::npos ? first : parse_number("RONDO_PORTS", text->substr(dash + 1));
  if (!first.ok() || !last.ok() || *first < 1 || *last > 65535 || *first > *last) {
    return refuse("RONDO_PORTS is \"" + *text +
                  "\": it must be FIRST-LAST, as in 20000-20100, from 1 to 65535");
  }
  return PortRange{.first = *first, .last = *last};
}

Result<TcpListener> listen_anywhere(const std::string& address) {
  auto range = RONDO_TRY(port_range());
  return bind_in(address, range, [](int fd) { return ::listen(fd, SOMAXCONN) == 0 ? 0 : errno; });
}

Result<TcpListener> reserve_port(const std::string& address, PortRange range) {
  return bind_in(address, range, [](int fd) {
    share_port(fd);
    return 0;
  });
}

namespace {

/// Of one end of a socket, with ":PORT" or without.
std::string text_of_end(const std::optional<SocketAddress>& end, bool with_port) {
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (!end || getnameinfo(end->get(), end->bytes, host, sizeof host, port, sizeof port,
                          NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "an unknown place";
  }
  return with_port ? std::string(host) + ":" + port : host;
}

}  // namespace

std::string peer_address(int socket) { return text_of_end(address_of(socket, getpeername), true); }
std::string peer_host(int socket) { return text_of_end(address_of(socket, getpeername), false); }
std::string own_host(int socket) { return text_of_end(address_of(socket), false); }

}  // namespace rondo::comm
