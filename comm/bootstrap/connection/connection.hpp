// One stream socket that carries frames: on a unix socket with descriptors, on TCP with
// authentication codes. Waits at most until a deadline, or not at all.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/bootstrap/connection/wire.hpp"
#include "rondo/status.hpp"
#include "transport/memory/unique_fd.hpp"

namespace rondo::comm {

/// What may end a wait early: a status that is not ok does, and the wait returns it.
using Interrupt = std::function<Status()>;

/// When a wait ends at the latest, and what may end it before. The interrupt, if any, outlives it.
class Deadline {
 public:
  using Time = std::chrono::steady_clock::time_point;
  Deadline(Time at, const Interrupt* interrupt = nullptr) : at_(at), interrupt_(interrupt) {}

  bool has_passed() const { return std::chrono::steady_clock::now() >= at_; }
  std::chrono::milliseconds left() const {
    return std::chrono::ceil<std::chrono::milliseconds>(at_ - std::chrono::steady_clock::now());
  }
  bool is_before(Time time) const { return at_ < time; }
  /// The same, but at `time` if that is earlier.
  Deadline at_most(Time time) const { return {std::min(at_, time), interrupt_}; }
  Deadline operator+(std::chrono::milliseconds more) const { return {at_ + more, interrupt_}; }

  bool can_be_interrupted() const { return interrupt_ != nullptr && *interrupt_; }
  Status check_interrupt() const { return can_be_interrupted() ? (*interrupt_)() : Status(); }

 private:
  Time at_;
  const Interrupt* interrupt_;
};

/// "60 s", "0.5 s".
std::string name_duration(std::chrono::milliseconds duration);

/// As poll(), until the deadline, undisturbed by signals. Returns whether anything is ready; an
/// error where the deadline's interrupt gives one.
Result<bool> poll_until(std::span<pollfd> descriptors, Deadline deadline);

/// "socket: Too many open files ...": kResourceExhausted, with the limit, if descriptors or memory
/// ran out, else kSystem.
Status system_status(const std::string& what, int error);

/// The error for a connection to `who` that was lost with `error`, a Connection's. If the other end has
/// closed it: "WHO ENDED MOMENT", for instance "rank 1 ended during gather". If not, the process may
/// live: "no connection to WHO MOMENT: REASON".
Status lost_peer(const std::string& who, const std::string& ended, const std::string& moment,
                 const Status& error);

/// Thread-compatible; owns its socket. Before trust() it takes frames of a status' size and no
/// descriptors. After an error of the other side's bytes, or an error in the middle of a frame, it
/// is of no more use.
class Connection {
 public:
  /// What try_send() lets wait for a peer that does not read.
  static constexpr size_t kMaxQueuedBytes = size_t{4} << 20;

  Connection() = default;
  explicit Connection(transport::UniqueFd socket) : socket_(std::move(socket)) {}

  /// The other side has proved the job's secret. With `keys`, from now on all frames both ways carry
  /// codes (frame_mac.hpp): for TCP. On a unix socket the kernel has named the other side's user,
  /// and no one else can write into it.
  void trust(size_t max_payload_bytes, const FrameKeys* keys = nullptr);
  /// Of frames received from now on.
  void allow(size_t max_payload_bytes) { parser_.allow(max_payload_bytes); }

  int fd() const { return socket_.get(); }
  bool is_open() const { return socket_.valid(); }
  /// What is queued is lost.
  void close() { socket_.reset(); }

  /// Sends one frame with descriptors, after what is queued. kPeerDied: the other side has closed,
  /// or its host does not answer. kTimeout: it does not read.
  Status send(FrameKind kind, uint32_t sequence, std::string_view payload, std::span<const int> fds,
              Deadline deadline);

  /// Sends one frame without waiting: what the socket does not take is queued for flush(). kTimeout:
  /// the other side does not read, and more than kMaxQueuedBytes would wait for it; the frame is
  /// dropped. REQUIRES: payload.size() <= kMaxQueuedBytes / 2.
  Status try_send(FrameKind kind, uint32_t sequence, std::string_view payload);
  /// Sends what it can of the queue without waiting. Call it when poll() gives POLLOUT.
  Status flush();
  /// Whether something is queued: then poll() for POLLOUT.
  bool wants_to_write() const { return queued_bytes() > 0; }
  size_t queued_bytes() const { return queue_.size() - queue_start_; }

  /// A frame and its descriptors.
  struct Received {
    Frame frame;
    std::vector<transport::UniqueFd> fds;
  };
  /// A whole frame, or nothing if none has arrived. kPeerDied: the other side has closed or does not
  /// answer, and all its frames have been returned. kBootstrap: it sent what it must not, or its
  /// frames were changed on the way; so do all later calls.
  Result<std::optional<Received>> try_receive();

 private:
  class Outgoing;
  ssize_t write_some(msghdr& message);
  void note_loss(int error);
  Status drain(Deadline deadline);
  Status await_room(Deadline deadline) const;
  bool is_unix() const;
  Result<bool> read_some();

  transport::UniqueFd socket_;
  bool trusted_ = false;
  bool is_cut_ = false;               // a frame was sent in part: no other can follow
  int lost_by_ = 0;                   // the first error that says more, if there was one
  std::optional<FrameMac> send_mac_;  // nothing: frames have no codes
  std::string queue_;
  size_t queue_start_ = 0;  // of what the socket has not taken
  FrameParser parser_{kMaxStatusBytes};
  std::vector<transport::UniqueFd> fds_;  // no deque: moving one takes memory
};

}  // namespace rondo::comm
