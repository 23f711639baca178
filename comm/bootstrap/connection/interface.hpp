// The network interfaces of this host: which one other hosts are to use. Reads the kernel's list and
// RONDO_INTERFACE; sends nothing.
#pragma once

#include <sys/socket.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rondo/status.hpp"

namespace rondo::comm {

/// An interface that is up, with one of its addresses: "eth0", "10.77.0.1" or "fd77::1".
struct Interface {
  std::string name;
  std::string address;
};

/// Every address of every interface that is up, IPv4 before IPv6; link-local IPv6 addresses, which
/// mean nothing without their interface, are left out.
Result<std::vector<Interface>> list_interfaces();

/// What RONDO_INTERFACE names: a list of interfaces ("eth0") and networks ("10.0.0.0/8",
/// "fd77::/16"), separated by commas; the first that this host has. Nothing: it is not set.
/// kInvalidArgument: it is no such list, or this host has none of them.
Result<std::optional<Interface>> chosen_interface();

/// The interface that holds the local address of a connected socket. Also loopback, if the other end
/// is on this host. kUnavailable: none does.
Result<Interface> interface_of_socket(int fd);

/// Where this host, which others know by one of `names` (hosts' names or addresses; there may be
/// none), is reached by them: chosen_interface(), else the interface of an address that a name has
/// here, else the one with the default route, else the first that belongs to no container engine or
/// hypervisor. Never loopback, as which a host may know its own name. kUnavailable: there is no
/// other.
Result<Interface> interface_for_others(const std::vector<std::string>& names);

/// Why ranks of other hosts cannot use a loopback interface, which only RONDO_INTERFACE chooses for
/// them.
std::string unreachable(const Interface& loopback);

/// Whether `name` is a name or address of this host. Asks no name server.
bool is_this_host(const std::string& name);

/// An address of a socket; its port is in network byte order inside.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};
/// Of a socket's own end, or with getpeername() of its other one; nothing: errno says why.
std::optional<SocketAddress> address_of(int socket,
                                        int (*call)(int, sockaddr*, socklen_t*) = getsockname);
/// The addresses that a name has by this host's resolver, and getaddrinfo()'s error or 0.
std::pair<std::vector<SocketAddress>, int> resolve_name(const std::string& name, int port);
bool is_loopback(const Interface& interface);
bool is_loopback(const SocketAddress& address);
/// Not loopback, and not the address that stands for all.
bool is_of(const SocketAddress& address, const std::vector<Interface>& interfaces);
/// "10.77.0.1", "fd77::1"; empty for no IP address.
std::string text_of(const SocketAddress& address);
/// `text`: a numeric address.
Result<SocketAddress> parse_address(const std::string& text, int port);

}  // namespace rondo::comm
