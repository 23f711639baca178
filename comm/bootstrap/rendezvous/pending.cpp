// See pending.hpp.
#include "comm/bootstrap/rendezvous/pending.hpp"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace rondo::comm {
namespace {

/// The source of most connections; the first of several such in `connections`.
uint64_t busiest_source(const std::deque<PendingConnection>& connections) {
  std::vector<uint64_t> sources;
  for (const PendingConnection& each : connections) sources.push_back(each.source);
  std::ranges::sort(sources);
  const auto count = [&](uint64_t source) {
    const auto [first, last] = std::equal_range(sources.begin(), sources.end(), source);
    return static_cast<size_t>(last - first);
  };
  size_t most = 0;
  for (auto run = sources.begin(); run != sources.end();) {
    const size_t length = count(*run);
    most = std::max(most, length);
    run += static_cast<std::ptrdiff_t>(length);
  }
  return std::ranges::find_if(connections,
                              [&](const auto& each) { return count(each.source) == most; })
      ->source;
}

}  // namespace

void PendingConnections::add(PendingConnection connection) {
  if (connections_.size() >= most_) drop_one();
  connections_.push_back(std::move(connection));
}

bool PendingConnections::drop_one() {
  if (connections_.empty()) return false;
  const uint64_t source = busiest_source(connections_);
  connections_.erase(std::ranges::find(connections_, source, &PendingConnection::source));
  return true;
}

void PendingConnections::forget_closed() {
  std::erase_if(connections_, [](const auto& each) { return !each.socket.valid(); });
}

uint64_t source_of(int socket) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return 0;
  if (address.ss_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr;
  }
  if (address.ss_family != AF_INET6) return 0;
  const in6_addr& v6 = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  uint64_t source = 0;
  if (IN6_IS_ADDR_V4MAPPED(&v6)) {
    std::memcpy(&source, v6.s6_addr + 12, 4);
  } else {
    std::memcpy(&source, v6.s6_addr, sizeof source);
  }
  return source;
}

}  // namespace rondo::comm
