// One authenticated unix stream socket that carries frames and descriptors. Waits at most until a
// deadline.
#pragma once

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/bootstrap/wire.hpp"
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

/// As poll(), until the deadline, undisturbed by signals. Returns whether anything is ready; an
/// error where the deadline's interrupt gives one.
Result<bool> poll_until(std::span<pollfd> descriptors, Deadline deadline);

/// "socket: Too many open files ...": kResourceExhausted, with the limit, if descriptors or memory
/// ran out, else kSystem.
Status system_status(const std::string& what, int error);

/// Thread-compatible; owns its socket. Before trust() it takes frames of a status' size and no
/// descriptors.
class Connection {
 public:
  Connection() = default;
  explicit Connection(transport::UniqueFd socket) : socket_(std::move(socket)) {}

  /// The other side has proved the job's secret.
  void trust(size_t max_payload_bytes) {
    trusted_ = true;
    parser_.allow(max_payload_bytes);
  }

  int fd() const { return socket_.get(); }
  bool is_open() const { return socket_.valid(); }
  void close() { socket_.reset(); }

  /// Sends one frame with descriptors. kPeerDied: the other side has closed. kTimeout: it does not
  /// read.
  Status send(FrameKind kind, uint32_t sequence, std::string_view payload, std::span<const int> fds,
              Deadline deadline);

  /// A frame and its descriptors.
  struct Received {
    Frame frame;
    std::vector<transport::UniqueFd> fds;
  };
  /// A whole frame, or nothing if none has arrived. kPeerDied: the other side has closed, and all
  /// its frames have been returned. kBootstrap: it sent what it must not.
  Result<std::optional<Received>> try_receive();

 private:
  Result<bool> read_some();

  transport::UniqueFd socket_;
  bool trusted_ = false;
  FrameParser parser_{kMaxStatusBytes};
  std::vector<transport::UniqueFd> fds_;  // no deque: moving one takes memory
};

}  // namespace rondo::comm
