// Sending and receiving over the bootstrap's sockets.
#include "comm/bootstrap/connection.hpp"

#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <thread>

namespace rondo::comm {
namespace {

/// An error of a socket whose other end has closed, or whose host has failed.
bool is_gone(int error) {
  switch (error) {
    case EPIPE:
    case ECONNRESET:
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH:
      return true;
    default:
      return false;
  }
}

/// `control`: room for CMSG_SPACE of the descriptors; outlives the message.
void attach(std::span<const int> fds, char* control, msghdr& message) {
  message.msg_control = control;
  message.msg_controllen = CMSG_SPACE(fds.size_bytes());
  cmsghdr* const attached = CMSG_FIRSTHDR(&message);
  attached->cmsg_level = SOL_SOCKET;
  attached->cmsg_type = SCM_RIGHTS;
  attached->cmsg_len = CMSG_LEN(fds.size_bytes());
  std::memcpy(CMSG_DATA(attached), fds.data(), fds.size_bytes());
}

}  // namespace

Result<bool> poll_until(std::span<pollfd> descriptors, Deadline deadline) {
  constexpr int64_t kInterruptEveryMs = 10, kLongestMs = 60'000;
  const int64_t most_ms = deadline.can_be_interrupted() ? kInterruptEveryMs : kLongestMs;
  while (true) {
    RONDO_TRY(deadline.check_interrupt());
    const int64_t left_ms = deadline.left().count();
    const int64_t wait_ms = std::clamp<int64_t>(left_ms, 0, most_ms);
    const int ready = poll(descriptors.data(), descriptors.size(), static_cast<int>(wait_ms));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return system_status("poll", errno);
    if (ready == 0 && left_ms <= wait_ms) return false;
  }
}

Status system_status(const std::string& what, int error) {
  const std::string text = what + ": " + std::strerror(error);
  rlimit limit{};
  switch (error) {
    case EMFILE:
    case ETOOMANYREFS:
      getrlimit(RLIMIT_NOFILE, &limit);
      return Status(Code::kResourceExhausted, text + " (RLIMIT_NOFILE is " +
                                                  std::to_string(limit.rlim_cur) +
                                                  "; raise it with ulimit -n)");
    case ENFILE:
      return Status(Code::kResourceExhausted, text + " (of the whole system: fs.file-max)");
    case ENOMEM:
    case ENOBUFS:
      return Status(Code::kResourceExhausted, text);
    default:
      return Status(Code::kSystem, text);
  }
}

Status Connection::send(FrameKind kind, uint32_t sequence, std::string_view payload,
                        std::span<const int> fds, Deadline deadline) {
  RONDO_CHECK(fds.size() <= kMaxFdsPerFrame, "%zu", fds.size());
  FrameHeader header{.magic = kFrameMagic,
                     .kind = kind,
                     .fd_count = static_cast<uint16_t>(fds.size()),
                     .sequence = sequence,
                     .length = static_cast<uint32_t>(payload.size())};
  iovec parts[2] = {{&header, sizeof header}, {const_cast<char*>(payload.data()), payload.size()}};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxFdsPerFrame)];
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  if (!fds.empty()) attach(fds, control, message);

  while (parts[0].iov_len + parts[1].iov_len > 0) {
    ssize_t sent = sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (is_gone(errno)) return Status(Code::kPeerDied, "it has closed");
      // As many descriptors are in flight as the user may have open: wait until peers have received
      // some.
      if (errno == ETOOMANYREFS && !deadline.has_passed()) {
        RONDO_TRY(deadline.check_interrupt());
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        continue;
      }
      if (errno != EAGAIN) return system_status("sendmsg", errno);
      pollfd writable{socket_.get(), POLLOUT, 0};
      auto ready = poll_until({&writable, 1}, deadline);
      if (!ready.ok()) return ready.status();
      if (!*ready) return Status(Code::kTimeout, "it does not read what it is sent");
      continue;
    }
    message.msg_control = nullptr;  // descriptors went with the first byte
    message.msg_controllen = 0;
    for (iovec& part : parts) {
      const size_t taken = std::min<size_t>(part.iov_len, static_cast<size_t>(sent));
      part.iov_base = static_cast<char*>(part.iov_base) + taken;
      part.iov_len -= taken;
      sent -= static_cast<ssize_t>(taken);
    }
  }
  return {};
}

Result<bool> Connection::read_some() {
  char bytes[1 << 16];
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 253)];
  iovec part{bytes, sizeof bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (trusted_) {  // without room for them the kernel closes descriptors
    message.msg_control = control;
    message.msg_controllen = sizeof control;
  }
  ssize_t got = 0;
  do {
    got = recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got < 0 && errno == EAGAIN) return false;
  if (got == 0 || (got < 0 && is_gone(errno))) return Status(Code::kPeerDied, "it has closed");
  if (got < 0) return system_status("recvmsg", errno);

  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
      fds_.emplace_back(fd);
    }
  }
  if ((message.msg_flags & MSG_CTRUNC) && !trusted_) {
    return Status(Code::kBootstrap, "received descriptors before the proof of the job's secret");
  }
  if (message.msg_flags & MSG_CTRUNC) return system_status("receiving descriptors", EMFILE);
  parser_.feed(bytes, static_cast<size_t>(got));
  return true;
}

Result<std::optional<Connection::Received>> Connection::try_receive() {
  while (true) {
    auto frame = parser_.next();
    if (!frame.ok()) return frame.status();
    if (*frame) {
      Received received{.frame = std::move(**frame), .fds = {}};
      if (fds_.size() < received.frame.fd_count) {
        return Status(Code::kBootstrap, "descriptors were lost on the way");
      }
      const auto end = fds_.begin() + received.frame.fd_count;
      std::move(fds_.begin(), end, std::back_inserter(received.fds));
      fds_.erase(fds_.begin(), end);
      return std::optional<Received>(std::move(received));
    }
    auto read = read_some();
    if (!read.ok()) return read.status();
    if (!*read) return std::optional<Received>();
  }
}

}  // namespace rondo::comm
