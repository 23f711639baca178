// See interface.hpp.
#include "comm/bootstrap/connection/interface.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <strings.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <sstream>

#include "comm/base/refuse.hpp"
#include "comm/base/variables.hpp"
#include "comm/bootstrap/connection/connection.hpp"
#include "transport/memory/unique_fd.hpp"

namespace rondo::comm {
namespace {

using transport::UniqueFd;

SocketAddress address_from(const sockaddr* any) {
  SocketAddress address;
  address.bytes = any->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  std::memcpy(&address.storage, any, address.bytes);
  return address;
}

/// The address's bytes: 4 or 16.
std::pair<const uint8_t*, size_t> bytes_of(const SocketAddress& address) {
  if (address.storage.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address.storage);
    return {reinterpret_cast<const uint8_t*>(&v4.sin_addr), 4};
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address.storage);
  return {reinterpret_cast<const uint8_t*>(&v6.sin6_addr), 16};
}

/// Interfaces that container engines and hypervisors make for what runs on this host.
bool is_internal(const Interface& interface) {
  if (is_loopback(interface)) return true;
  const auto starts = [&](const char* prefix) { return interface.name.starts_with(prefix); };
  return starts("docker") || starts("virbr") || starts("veth") || starts("br-") || starts("cni") ||
         starts("podman") || starts("lxcbr") || starts("lxdbr");
}

/// Whether the first `bits` bits of both are equal.
bool is_in(const SocketAddress& address, const SocketAddress& network, int bits) {
  if (address.storage.ss_family != network.storage.ss_family) return false;
  const auto [ours, size] = bytes_of(address);
  const uint8_t* theirs = bytes_of(network).first;
  for (size_t i = 0; i < size && bits > 0; ++i, bits -= 8) {
    const unsigned shift = bits < 8 ? static_cast<unsigned>(8 - bits) : 0;
    if (ours[i] >> shift != theirs[i] >> shift) return false;
  }
  return true;
}

struct NetworkPrefix {
  SocketAddress address;
  int bits = 0;
};

/// "10.0.0.0/8"; an address alone is a network of one. Nothing: an interface's name.
Result<std::optional<NetworkPrefix>> parse_network(const std::string& text) {
  const size_t slash = text.find('/');
  const auto address = parse_address(text.substr(0, slash), 0);
  if (!address.ok() && slash == std::string::npos) return std::optional<NetworkPrefix>();
  if (!address.ok()) return refuse("\"" + text + "\" is no network");
  const int most = address->storage.ss_family == AF_INET ? 32 : 128;
  if (slash == std::string::npos) return std::optional<NetworkPrefix>({*address, most});
  const auto bits = parse_number("the prefix", text.substr(slash + 1));
  if (!bits.ok() || *bits > most) {
    return refuse("\"" + text + "\" is no network: its prefix is from 0 to " +
                  std::to_string(most));
  }
  return std::optional<NetworkPrefix>({*address, *bits});
}

/// The first that `part` of RONDO_INTERFACE means; null: this host has none.
Result<const Interface*> find(const std::vector<Interface>& interfaces, const std::string& part) {
  auto network = RONDO_TRY(parse_network(part));
  for (const Interface& each : interfaces) {
    if (!network) {
      if (each.name == part) return &each;
      continue;
    }
    const auto address = parse_address(each.address, 0);
    if (address.ok() && is_in(*address, network->address, network->bits)) return &each;
  }
  return nullptr;
}

std::string name_all(const std::vector<Interface>& interfaces) {
  std::string text;
  for (const Interface& each : interfaces) {
    text += (text.empty() ? "" : ", ") + each.name + " " + each.address;
  }
  return text.empty() ? "none" : text;
}

const Interface* find_address(const std::vector<Interface>& interfaces,
                              const SocketAddress& address) {
  const std::string text = text_of(address);
  for (const Interface& each : interfaces) {
    if (each.address == text) return &each;
  }
  return nullptr;
}

/// What the kernel would send from: connecting a datagram socket sends nothing. The destinations
/// are of the networks reserved for documentation.
const Interface* find_default_route(const std::vector<Interface>& interfaces) {
  for (const char* far : {"203.0.113.1", "2001:db8::1"}) {
    const auto there = parse_address(far, 9);
    const UniqueFd fd(socket(there->storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!fd.valid() || connect(fd.get(), there->get(), there->bytes) != 0) continue;
    const auto own = address_of(fd.get());
    if (!own) continue;
    const Interface* found = find_address(interfaces, *own);
    if (found != nullptr && !is_internal(*found)) return found;
  }
  return nullptr;
}

}  // namespace

std::optional<SocketAddress> address_of(int socket, int (*call)(int, sockaddr*, socklen_t*)) {
  SocketAddress address;
  address.bytes = sizeof address.storage;
  if (call(socket, reinterpret_cast<sockaddr*>(&address.storage), &address.bytes) != 0) return {};
  return address;
}

std::pair<std::vector<SocketAddress>, int> resolve_name(const std::string& name, int port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int error = getaddrinfo(name.c_str(), std::to_string(port).c_str(), &hints, &found);
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(found, freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* each = error == 0 ? found : nullptr; each != nullptr; each = each->ai_next) {
    addresses.push_back(address_from(each->ai_addr));
  }
  return {std::move(addresses), error};
}

Result<std::vector<Interface>> list_interfaces() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return system_status("cannot list the network interfaces", errno);
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owned(first, freeifaddrs);
  std::vector<Interface> found;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next) {
      if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != family ||
          (each->ifa_flags & IFF_UP) == 0) {
        continue;
      }
      const SocketAddress address = address_from(each->ifa_addr);
      const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address.storage);
      if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr)) continue;
      // For an address with a label of its own, "eth0:1".
      const std::string label = each->ifa_name;
      found.push_back({.name = label.substr(0, label.find(':')), .address = text_of(address)});
    }
  }
  return found;
}

Result<std::optional<Interface>> chosen_interface() {
  const auto list = variable("RONDO_INTERFACE");
  if (!list) return std::optional<Interface>();
  auto interfaces = RONDO_TRY(list_interfaces());
  std::istringstream parts(*list);
  for (std::string part; std::getline(parts, part, ',');) {
    auto found = find(interfaces, part);
    if (!found.ok()) {
      return refuse("RONDO_INTERFACE is \"" + *list + "\": " + found.status().message());
    }
    if (*found != nullptr) return std::optional<Interface>(**found);
  }
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  return refuse("RONDO_INTERFACE is \"" + *list + "\", but host " + host +
                " has no such interface that is up; it has " + name_all(interfaces));
}

Result<Interface> interface_of_socket(int fd) {
  const auto own = address_of(fd);
  if (!own) return system_status("getsockname", errno);
  auto interfaces = RONDO_TRY(list_interfaces());
  if (const Interface* found = find_address(interfaces, *own)) return *found;
  // All of 127.0.0.0/8 is this host's.
  if (is_loopback(*own)) return Interface{.name = "lo", .address = text_of(*own)};
  return Status(Code::kUnavailable, "no interface of this host has the address " + text_of(*own) +
                                        "; it has " + name_all(interfaces));
}

Result<Interface> interface_for_others(const std::vector<std::string>& names) {
  auto chosen = RONDO_TRY(chosen_interface());
  if (chosen) return *chosen;
  auto interfaces = RONDO_TRY(list_interfaces());
  for (const std::string& name : names) {
    for (const SocketAddress& address : resolve_name(name, 0).first) {
      const Interface* found = find_address(interfaces, address);
      if (found != nullptr && !is_loopback(*found)) return *found;
    }
  }
  if (const Interface* found = find_default_route(interfaces)) return *found;
  const auto outward = std::find_if_not(interfaces.begin(), interfaces.end(), is_internal);
  if (outward != interfaces.end()) return *outward;
  return Status(Code::kUnavailable,
                "this host has no network interface that other hosts could reach; it has " +
                    name_all(interfaces) + ". RONDO_INTERFACE names one that they can");
}

std::string unreachable(const Interface& loopback) {
  return "RONDO_INTERFACE is \"" + variable("RONDO_INTERFACE").value_or("") + "\", which is " +
         loopback.name + " with " + loopback.address +
         ": ranks of other hosts cannot reach that. Name an interface between the hosts, or unset "
         "it";
}

bool is_this_host(const std::string& name) {
  if (name == "localhost" || name == "::1" || name.starts_with("127.")) return true;
  char host[256] = {};
  if (gethostname(host, sizeof host - 1) == 0 && *host != '\0') {
    // One of both may lack the domain.
    const std::string own = host;
    const bool has_domains =
        own.find('.') != std::string::npos && name.find('.') != std::string::npos;
    const std::string ours = has_domains ? own : own.substr(0, own.find('.'));
    const std::string theirs = has_domains ? name : name.substr(0, name.find('.'));
    if (strcasecmp(ours.c_str(), theirs.c_str()) == 0) return true;
  }
  const auto interfaces = list_interfaces();
  const auto address = parse_address(name, 0);
  return interfaces.ok() && address.ok() && find_address(*interfaces, *address) != nullptr;
}

bool is_loopback(const Interface& interface) {
  const auto address = parse_address(interface.address, 0);
  return address.ok() && is_loopback(*address);
}

bool is_loopback(const SocketAddress& address) {
  if (address.storage.ss_family == AF_INET) return *bytes_of(address).first == 127;
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address.storage);
  return address.storage.ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
}

bool is_of(const SocketAddress& address, const std::vector<Interface>& interfaces) {
  return !is_loopback(address) && find_address(interfaces, address) != nullptr;
}

std::string text_of(const SocketAddress& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const int family = address.storage.ss_family;
  if (family != AF_INET && family != AF_INET6) return {};
  const char* done = inet_ntop(family, bytes_of(address).first, text.data(), text.size());
  return done == nullptr ? std::string() : done;
}

Result<SocketAddress> parse_address(const std::string& text, int port) {
  SocketAddress address;
  auto& v4 = reinterpret_cast<sockaddr_in&>(address.storage);
  auto& v6 = reinterpret_cast<sockaddr_in6&>(address.storage);
  if (inet_pton(AF_INET, text.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(static_cast<uint16_t>(port));
    address.bytes = sizeof v4;
  } else if (inet_pton(AF_INET6, text.c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(static_cast<uint16_t>(port));
    address.bytes = sizeof v6;
  } else {
    return refuse("\"" + text + "\" is no address of a host");
  }
  return address;
}

}  // namespace rondo::comm
