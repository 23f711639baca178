// Descriptors that travel between processes of a host (SCM_RIGHTS), and packets that carry them, on
// local sockets that keep packets apart (SOCK_SEQPACKET, SOCK_DGRAM). Nothing here waits.
#pragma once

#include <sys/socket.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/status.hpp"
#include "transport/memory/unique_fd.hpp"

namespace rondo::comm {

/// The kernel lets so many travel at once.
inline constexpr size_t kMostFdsAtOnce = 253;

/// Room for a message's descriptors; outlives the message.
struct alignas(cmsghdr) FdRoom {
  char bytes[CMSG_SPACE(sizeof(int) * kMostFdsAtOnce)];
};
/// REQUIRES: at most kMostFdsAtOnce, and one at least.
void attach(std::span<const int> fds, FdRoom& room, msghdr& message);
/// Adds those of a message that was received with room for them.
void take_fds(msghdr& message, std::vector<transport::UniqueFd>& into);

struct Packet {
  std::string text{};
  std::vector<transport::UniqueFd> fds{};
  bool has_lost_fds = false;  // this process may not have more descriptors
};
inline constexpr size_t kMostPacketBytes = 8192;

Status send_packet(int socket, std::string_view text, std::span<const int> fds);
/// Empty: there is none. kPeerDied: the other end has closed.
Result<std::optional<Packet>> receive_packet(int socket);

}  // namespace rondo::comm
