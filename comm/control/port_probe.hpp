// Whether a process of another host has ended: its host refuses a connection to the port at which it
// listens as long as it lives.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "transport/memory/unique_fd.hpp"

namespace rondo::comm {

/// One process's port. One thread. Never waits. A refusal is final. Nothing else is: a connection that
/// is accepted, reset or not answered says nothing about the end of the process.
class PortProbe {
 public:
  PortProbe(std::string address, int port) : address_(std::move(address)), port_(port) {}

  /// Looks what the last connection attempt gave, and begins another one if it is time: ever less
  /// often.
  bool is_refused();

 private:
  void conclude(int error);

  std::string address_;
  int port_;
  bool refused_ = false;
  transport::UniqueFd socket_;
  int64_t began_ns_ = 0;
  int64_t pause_ns_ = 0;  // from an attempt's beginning until the next one's; longer each time
};

}  // namespace rondo::comm
