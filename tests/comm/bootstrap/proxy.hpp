// A machine in the middle: passes the bytes between a rank and rank 0 on, records them, and changes
// frames as a test wants.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "comm/bootstrap/connection/wire.hpp"
#include "tests/comm/bootstrap/tcp_helpers.hpp"

namespace rondo {

/// Serves one connection after the other at `listener`, each with one to `target_port`, on a thread
/// of its own. Make it after the forks.
class Proxy {
 public:
  enum Way { kToTarget, kFromTarget };
  /// What is passed on instead of frame `number` of that way.
  using Tamper = std::function<std::string(Way way, size_t number, const std::string& frame)>;

  /// `raw_bytes` by way: passed on before the first frame with codes. The defaults are those of the
  /// handshake.
  Proxy(transport::UniqueFd listener, int target_port, Tamper tamper,
        std::array<size_t, 2> raw_bytes = {sizeof(comm::Hello), sizeof(comm::Challenge) +
                                                                    sizeof(comm::FrameHeader) +
                                                                    sizeof(comm::Digest)})
      : listener_(std::move(listener)),
        target_port_(target_port),
        tamper_(std::move(tamper)),
        raw_bytes_(raw_bytes),
        thread_([this] { run(); }) {}
  ~Proxy() { stop(); }
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  void stop() {
    over_ = true;
    if (thread_.joinable()) thread_.join();
  }
  /// All bytes that have come, of the last connection. REQUIRES: stop() was called.
  const std::string& recorded(Way way) const { return recorded_[way]; }

 private:
  struct Stream {
    transport::UniqueFd from;
    size_t raw_left = 0, frames = 0;
    std::string waiting;  // less than a frame
  };

  void run() {
    while (!over_) {
      pollfd come{listener_.get(), POLLIN, 0};
      if (poll(&come, 1, 20) != 1) continue;
      Stream streams[2];
      streams[kToTarget].from.reset(accept(listener_.get(), nullptr, nullptr));
      streams[kFromTarget].from = connect_to_loopback(target_port_);
      for (Way way : {kToTarget, kFromTarget}) {
        streams[way].raw_left = raw_bytes_[way];
        recorded_[way].clear();
      }
      while (!over_ && pump(streams)) {
      }
    }
  }

  bool pump(Stream (&streams)[2]) {
    pollfd ready[2] = {{streams[0].from.get(), POLLIN, 0}, {streams[1].from.get(), POLLIN, 0}};
    poll(ready, 2, 20);
    for (Way way : {kToTarget, kFromTarget}) {
      if (ready[way].revents == 0) continue;
      char bytes[4096];
      const ssize_t got = recv(ready[way].fd, bytes, sizeof bytes, 0);
      if (got <= 0) return false;
      recorded_[way].append(bytes, static_cast<size_t>(got));
      streams[way].waiting.append(bytes, static_cast<size_t>(got));
      const std::string out = take(way, streams[way]);
      send_bytes(streams[1 - way].from, out.data(), out.size());
    }
    return true;
  }

  /// What can be passed on of a stream.
  std::string take(Way way, Stream& stream) {
    std::string& waiting = stream.waiting;
    const size_t raw = std::min(stream.raw_left, waiting.size());
    std::string out = waiting.substr(0, raw);
    waiting.erase(0, raw);
    stream.raw_left -= raw;
    while (true) {
      comm::FrameHeader header;
      if (waiting.size() < sizeof header) return out;
      std::memcpy(&header, waiting.data(), sizeof header);
      const size_t codes = sizeof(comm::Tag) * (header.length > 0 ? 2 : 1);
      const size_t bytes = sizeof header + header.length + codes;
      if (waiting.size() < bytes) return out;
      out += tamper_(way, stream.frames++, waiting.substr(0, bytes));
      waiting.erase(0, bytes);
    }
  }

  const transport::UniqueFd listener_;
  const int target_port_;
  const Tamper tamper_;
  const std::array<size_t, 2> raw_bytes_;
  std::array<std::string, 2> recorded_;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

}  // namespace rondo
