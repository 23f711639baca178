// See packet.hpp.
#include "comm/bootstrap/connection/packet.hpp"

#include <cerrno>
#include <cstring>

#include "comm/bootstrap/connection/connection.hpp"

namespace rondo::comm {

void attach(std::span<const int> fds, FdRoom& room, msghdr& message) {
  message.msg_control = room.bytes;
  message.msg_controllen = CMSG_SPACE(fds.size_bytes());
  cmsghdr* const attached = CMSG_FIRSTHDR(&message);
  attached->cmsg_level = SOL_SOCKET;
  attached->cmsg_type = SCM_RIGHTS;
  attached->cmsg_len = CMSG_LEN(fds.size_bytes());
  std::memcpy(CMSG_DATA(attached), fds.data(), fds.size_bytes());
}

void take_fds(msghdr& message, std::vector<transport::UniqueFd>& into) {
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
      into.emplace_back(fd);
    }
  }
}

Status send_packet(int socket, std::string_view text, std::span<const int> fds) {
  iovec part{const_cast<char*>(text.data()), text.size()};
  FdRoom room;
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) attach(fds, room, message);
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return sent < 0 ? system_status("sendmsg", errno) : Status();
}

Result<std::optional<Packet>> receive_packet(int socket) {
  Packet packet;
  packet.text.resize(kMostPacketBytes);
  iovec part{packet.text.data(), packet.text.size()};
  FdRoom room;
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = room.bytes;
  message.msg_controllen = sizeof room.bytes;
  ssize_t got = 0;
  do {
    got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got < 0 && errno == EAGAIN) return std::optional<Packet>();
  if (got < 0) return system_status("recvmsg", errno);
  take_fds(message, packet.fds);
  if (got == 0) return Status(Code::kPeerDied, "it has closed");
  packet.text.resize(static_cast<size_t>(got));
  packet.has_lost_fds = (message.msg_flags & MSG_CTRUNC) != 0;
  return std::optional<Packet>(std::move(packet));
}

}  // namespace rondo::comm
