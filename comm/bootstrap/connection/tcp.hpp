// TCP sockets for ranks that share no directory: rank 0's place, and listeners at any free port.
#pragma once

#include <netinet/in.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "comm/bootstrap/connection/connection.hpp"
#include "comm/bootstrap/connection/interface.hpp"
#include "rondo/status.hpp"
#include "transport/memory/unique_fd.hpp"

namespace rondo::comm {

inline const std::string kTcpScheme = "tcp://";
inline bool is_tcp(const std::string& rendezvous) { return rendezvous.starts_with(kTcpScheme); }

/// As it stands before ":PORT": an IPv6 address in brackets.
inline std::string bracketed(const std::string& address) {
  return address.find(':') == std::string::npos ? address : "[" + address + "]";
}

/// tcp://HOST:PORT, or [HOST] for IPv6; several names or addresses of the same host are separated by
/// commas. A name is resolved by the system's resolver and with its timeouts, once; while it is unknown, as that of a pod which is not ready, again every second. One
/// thread.
class TcpPlace {
 public:
  /// kInvalidArgument: not such a text.
  static Result<TcpPlace> parse(const std::string& text);

  /// Whether every address that the name has here is a loopback one.
  bool is_loopback_only();
  /// For a job with a secret: a name that is this host's own and that it resolves to loopback only,
  /// as Debian sets it up, means the interface for other hosts.
  void prefer_outward();

  /// Listens at the address of this host that the name has, at RONDO_INTERFACE's if it has several.
  /// Nothing: the port is taken, or the name is not known yet. kInvalidArgument: no address of this
  /// host.
  Result<std::optional<transport::UniqueFd>> listen();
  /// A connected non-blocking socket. Tries all addresses of the name; where it has several, each
  /// for two seconds. Nothing: no listener, or the name is not known yet.
  Result<std::optional<transport::UniqueFd>> try_connect(Deadline deadline);

  /// "; the host of ... is not known here: ...", or that other hosts cannot reach it, or nothing.
  std::string trouble() const;

 private:
  bool resolve();

  int resolve(const std::string& host);

  std::string text_;
  std::vector<std::string> hosts_;
  int port_ = 0;
  bool outward_ = false;
  std::vector<SocketAddress> addresses_;
  std::string trouble_;
  std::optional<std::chrono::steady_clock::time_point> resolve_again_;
};

/// A range of ports, both ends included; {0, 0}: any.
struct PortRange {
  int first = 0, last = 0;
};
/// RONDO_PORTS: "20000-20100", or one port. Nothing set: any.
Result<PortRange> port_range();

struct TcpListener {
  transport::UniqueFd socket;
  int port = 0;
};
/// Listens at a numeric address of this host and a free port of RONDO_PORTS. kResourceExhausted: all
/// of them are taken.
Result<TcpListener> listen_anywhere(const std::string& address);

/// A port for others to listen at: bound, so that no program gets it by chance, but not listened at.
/// A listener with SO_REUSEADDR, as rondo's and most servers', can have it while this is held.
/// `range`'s first free one.
Result<TcpListener> reserve_port(const std::string& address, PortRange range);

/// For a TCP connection that is kept: sends small frames at once, and fails with kPeerDied when the
/// other host has vanished: `limit` after data that it does not acknowledge, and at most 1 s later
/// when there is none. A peer that lets a full window of data wait for so long fails too. `limit` is
/// at least 1 s.
Status set_liveness(int socket, std::chrono::milliseconds limit);

/// Of the other end of a socket: "127.0.0.1:40312", or "an unknown place".
std::string peer_address(int socket);
/// The same without the port, and for this end: hosts' addresses as they have met.
std::string peer_host(int socket);
std::string own_host(int socket);

}  // namespace rondo::comm
