// Sending and receiving over the bootstrap's sockets.
#include "comm/bootstrap/connection/connection.hpp"

#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <thread>

#include "comm/base/wait_callback.hpp"
#include "comm/bootstrap/connection/packet.hpp"

namespace rondo::comm {
namespace {

constexpr std::string_view kHasClosed = "it has closed";

/// What an error of a socket says about its other end; empty: it is this end's.
std::string loss(int error) {
  switch (error) {
    case EPIPE:
      return std::string(kHasClosed);
    case ECONNRESET:
    case ECONNABORTED:
      return "the connection was reset";
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case EHOSTDOWN:
    case ENETUNREACH:
    case ENETDOWN:
      return std::string("its host does not answer: ") + std::strerror(error);
    default:
      return {};
  }
}

Status socket_status(const char* call, int error) {
  const std::string lost = loss(error);
  return lost.empty() ? system_status(call, error) : Status(Code::kPeerDied, lost);
}

Status not_reading() { return Status(Code::kTimeout, "it does not read what it is sent"); }

}  // namespace

Status lost_peer(const std::string& who, const std::string& ended, const std::string& moment,
                 const Status& error) {
  if (error.message() == kHasClosed) return {Code::kPeerDied, who + " " + ended + " " + moment};
  return {Code::kPeerDied, "no connection to " + who + " " + moment + ": " + error.message()};
}

std::string name_duration(std::chrono::milliseconds duration) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", static_cast<double>(duration.count()) / 1000.0);
  return text;
}

Result<bool> poll_until(std::span<pollfd> descriptors, Deadline deadline) {
  constexpr int64_t kInterruptEveryMs = 10, kLongestMs = 60'000;
  const bool returns = deadline.can_be_interrupted() || base::wait_callback.call != nullptr;
  const int64_t most_ms = returns ? kInterruptEveryMs : kLongestMs;
  while (true) {
    base::call_back_if_due();
    RONDO_TRY(deadline.check_interrupt());
    const int64_t left_ms = deadline.left().count();
    const int64_t wait_ms = std::clamp<int64_t>(left_ms, 0, most_ms);
    const int ready = poll(descriptors.data(), descriptors.size(), static_cast<int>(wait_ms));
    if (ready > 0) return true;
    // EINVAL: these are more than RLIMIT_NOFILE.
    if (ready < 0 && errno != EINTR) return system_status("poll", errno == EINVAL ? EMFILE : errno);
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

/// A frame that has not been sent in whole, as sendmsg() takes it.
class Connection::Outgoing {
 public:
  /// `payload`, `fds` and `control` outlive it. The codes are those of the connection's next frame.
  Outgoing(FrameKind kind, uint32_t sequence, std::string_view payload, size_t fd_count,
           const std::optional<FrameMac>& mac)
      : start_{.header = {.magic = kFrameMagic,
                          .kind = kind,
                          .fd_count = static_cast<uint16_t>(fd_count),
                          .sequence = sequence,
                          .length = static_cast<uint32_t>(payload.size())},
               .code = {}} {
    RONDO_CHECK(payload.size() <= UINT32_MAX, "%zu", payload.size());
    parts_[0] = {&start_, sizeof start_.header};
    parts_[1] = {const_cast<char*>(payload.data()), payload.size()};
    parts_[2] = {&payload_code_, 0};
    if (mac) {
      start_.code = mac->of_header(start_.header);
      parts_[0].iov_len = sizeof start_;
    }
    if (mac && !payload.empty()) {
      payload_code_ = mac->of_payload(start_.header, payload);
      parts_[2].iov_len = sizeof payload_code_;
    }
    message_.msg_iov = parts_;
    message_.msg_iovlen = std::size(parts_);
  }
  Outgoing(const Outgoing&) = delete;
  Outgoing& operator=(const Outgoing&) = delete;

  msghdr& message() { return message_; }
  size_t bytes() const { return parts_[0].iov_len + parts_[1].iov_len + parts_[2].iov_len; }
  void consume(size_t sent) {
    if (sent == 0) return;
    message_.msg_control = nullptr;  // descriptors went with the first byte
    message_.msg_controllen = 0;
    for (iovec& part : parts_) {
      const size_t taken = std::min(part.iov_len, sent);
      part.iov_base = static_cast<char*>(part.iov_base) + taken;
      part.iov_len -= taken;
      sent -= taken;
    }
  }
  void append_to(std::string& queue) const {
    for (const iovec& part : parts_) {
      queue.append(static_cast<const char*>(part.iov_base), part.iov_len);
    }
  }

 private:
  struct {
    FrameHeader header;
    Tag code;
  } start_;
  static_assert(sizeof start_ == sizeof(FrameHeader) + sizeof(Tag));
  Tag payload_code_{};
  iovec parts_[3];
  msghdr message_{};
};

void Connection::trust(size_t max_payload_bytes, const FrameKeys* keys) {
  trusted_ = true;
  parser_.allow(max_payload_bytes);
  if (keys == nullptr) return;
  send_mac_.emplace(keys->send);
  parser_.authenticate(keys->receive);
}

/// One sendmsg() without waiting. Returns the bytes sent; 0: the socket takes nothing now; less: an
/// errno, negated.
ssize_t Connection::write_some(msghdr& message) {
  ssize_t sent = 0;
  do {
    sent = sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) return sent;
  const int error = errno;
  if (error == EAGAIN) return 0;
  note_loss(error);
  return -error;
}

/// The kernel says once why a connection was lost, and after that, that it has ended.
void Connection::note_loss(int error) {
  if (!loss(error).empty() && lost_by_ == 0 && error != EPIPE && !is_unix()) lost_by_ = error;
}

/// Waits until the socket takes bytes. kTimeout: the deadline.
Status Connection::await_room(Deadline deadline) const {
  pollfd writable{socket_.get(), POLLOUT, 0};
  auto ready = RONDO_TRY(poll_until({&writable, 1}, deadline));
  return ready ? Status() : not_reading();
}

Status Connection::drain(Deadline deadline) {
  RONDO_TRY(flush());
  while (wants_to_write()) {
    RONDO_TRY(await_room(deadline));
    RONDO_TRY(flush());
  }
  return {};
}

Status Connection::send(FrameKind kind, uint32_t sequence, std::string_view payload,
                        std::span<const int> fds, Deadline deadline) {
  RONDO_CHECK(fds.size() <= kMaxFdsPerFrame, "%zu", fds.size());
  if (is_cut_) return not_reading();
  RONDO_TRY(drain(deadline));
  Outgoing frame(kind, sequence, payload, fds.size(), send_mac_);
  FdRoom room;
  if (!fds.empty()) attach(fds, room, frame.message());
  while (frame.bytes() > 0) {
    const ssize_t sent = write_some(frame.message());
    if (sent > 0) {
      frame.consume(static_cast<size_t>(sent));
      is_cut_ = frame.bytes() > 0;
    } else if (sent == 0) {
      RONDO_TRY(await_room(deadline));
    } else if (sent == -ETOOMANYREFS && !deadline.has_passed()) {
      // As many descriptors are in flight as the user may have open: wait until peers have received
      // some.
      RONDO_TRY(deadline.check_interrupt());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } else {
      return socket_status("sendmsg", static_cast<int>(-sent));
    }
  }
  if (send_mac_) send_mac_->advance();
  return {};
}

Status Connection::try_send(FrameKind kind, uint32_t sequence, std::string_view payload) {
  RONDO_CHECK(payload.size() <= kMaxQueuedBytes / 2, "%zu", payload.size());
  if (is_cut_) return not_reading();
  RONDO_TRY(flush());
  Outgoing frame(kind, sequence, payload, 0, send_mac_);
  if (queued_bytes() + frame.bytes() > kMaxQueuedBytes) {
    return Status(Code::kTimeout, "it does not read what it is sent: " +
                                      std::to_string(queued_bytes()) + " bytes wait for it");
  }
  queue_.reserve(queue_.size() + frame.bytes());  // before the first byte is sent: it may throw
  if (!wants_to_write()) {
    const ssize_t sent = write_some(frame.message());
    if (sent < 0) return socket_status("sendmsg", static_cast<int>(-sent));
    frame.consume(static_cast<size_t>(sent));
  }
  if (send_mac_) send_mac_->advance();
  frame.append_to(queue_);
  return {};
}

Status Connection::flush() {
  while (wants_to_write()) {
    iovec part{queue_.data() + queue_start_, queued_bytes()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    const ssize_t sent = write_some(message);
    if (sent < 0) return socket_status("sendmsg", static_cast<int>(-sent));
    if (sent == 0) return {};
    queue_start_ += static_cast<size_t>(sent);
    if (queue_start_ >= queue_.size() / 2) {  // so that each byte is moved at most once
      queue_.erase(0, queue_start_);
      queue_start_ = 0;
    }
  }
  if (queue_.capacity() > kMaxQueuedBytes / 32) queue_ = {};
  return {};
}

/// Only the other end resets a unix socket: it has closed it without having read everything.
bool Connection::is_unix() const {
  int domain = 0;
  socklen_t size = sizeof domain;
  return getsockopt(socket_.get(), SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_UNIX;
}

Result<bool> Connection::read_some() {
  char bytes[1 << 16];
  FdRoom room;
  iovec part{bytes, sizeof bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (trusted_) {  // without room for them the kernel closes descriptors
    message.msg_control = room.bytes;
    message.msg_controllen = sizeof room.bytes;
  }
  ssize_t got = 0;
  do {
    got = recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got < 0 && errno == EAGAIN) return false;
  if (got < 0) {
    const int error = errno == ECONNRESET && is_unix() ? EPIPE : errno;
    note_loss(error);
    return socket_status("recvmsg", error);
  }
  if (got == 0) return socket_status("recvmsg", lost_by_ != 0 ? lost_by_ : EPIPE);

  take_fds(message, fds_);
  if ((message.msg_flags & MSG_CTRUNC) && !trusted_) {
    return Status(Code::kBootstrap, "received descriptors before the proof of the job's secret");
  }
  if (message.msg_flags & MSG_CTRUNC) return system_status("receiving descriptors", EMFILE);
  parser_.feed(bytes, static_cast<size_t>(got));
  return true;
}

Result<std::optional<Connection::Received>> Connection::try_receive() {
  while (true) {
    auto frame = RONDO_TRY(parser_.next());
    if (frame) {
      Received received{.frame = std::move(*frame), .fds = {}};
      if (fds_.size() < received.frame.fd_count) {
        return Status(Code::kBootstrap, "descriptors were lost on the way");
      }
      const auto end = fds_.begin() + received.frame.fd_count;
      std::move(fds_.begin(), end, std::back_inserter(received.fds));
      fds_.erase(fds_.begin(), end);
      return std::optional<Received>(std::move(received));
    }
    auto read = RONDO_TRY(read_some());
    if (!read) return std::optional<Received>();
  }
}

}  // namespace rondo::comm
