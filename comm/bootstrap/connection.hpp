// One authenticated unix stream socket that carries frames and descriptors. Waits at most until a
// deadline.
#pragma once

#include <poll.h>

#include <chrono>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/bootstrap/wire.hpp"
#include "rondo/status.hpp"
#include "transport/shm/unique_fd.hpp"

namespace rondo::comm {

using Deadline = std::chrono::steady_clock::time_point;

/// As poll(), until the deadline, undisturbed by signals. Returns whether anything is ready.
Result<bool> poll_until(std::span<pollfd> descriptors, Deadline deadline);

/// "socket: Too many open files ...": kResourceExhausted, with the limit, where descriptors or
/// memory ran out, else kSystem.
Status system_status(const std::string& what, int error);

/// Thread-compatible; owns its socket.
class Connection {
 public:
  Connection() = default;
  Connection(transport::UniqueFd socket, size_t max_payload_bytes)
      : socket_(std::move(socket)), parser_(max_payload_bytes) {}

  int fd() const { return socket_.get(); }
  bool is_open() const { return socket_.valid(); }
  void close() { socket_.reset(); }

  /// Sends one frame with descriptors. kPeerDied: the other side has closed. kTimeout: it does not
  /// read.
  Status send(Kind kind, uint32_t sequence, std::string_view payload, std::span<const int> fds,
              Deadline deadline);

  /// A frame and its descriptors.
  struct Received {
    Frame frame;
    std::vector<transport::UniqueFd> fds;
  };
  /// What can be had without waiting: a whole frame or nothing. kPeerDied: the other side has
  /// closed, and all it sent has been returned before.
  Result<std::optional<Received>> try_receive();

 private:
  Result<bool> read_some();

  transport::UniqueFd socket_;
  FrameParser parser_{0};
  std::deque<transport::UniqueFd> fds_;
};

}  // namespace rondo::comm
