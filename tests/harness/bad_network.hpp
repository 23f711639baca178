// A bad network between hosts: delays, losses, copies, wrong orders, narrow links and partitions.
// What netem does, for kernels without it, and for each direction between two hosts apart.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>

#include "tests/harness/hosts.hpp"

namespace rondo::testing {

/// What becomes of the frames (of at most 1514 bytes) that one host sends to another.
struct Wire {
  std::chrono::microseconds delay{0};
  std::chrono::microseconds jitter{0};  // more delay, up to this: frames overtake each other
  double lost = 0, doubled = 0;         // shares of all frames, 0 to 1
  double bytes_per_s = 0;               // 0: no limit. 256 KiB wait, more is lost

  static Wire none() { return {.lost = 1}; }
};

/// Takes the place of the bridge of eth0 until it is destroyed: a process passes the frames on.
/// Wires are perfect at first. Thread rule: one thread; no other one while it is constructed, which
/// forks. The hosts outlive it; Hosts::cut() and mend() are not for them meanwhile.
class BadNetwork {
 public:
  /// Frames since the construction.
  struct Counts {
    uint64_t passed, lost, doubled, overtaken;
  };

  BadNetwork(const Hosts& hosts, unsigned seed);
  ~BadNetwork();
  BadNetwork(const BadNetwork&) = delete;
  BadNetwork& operator=(const BadNetwork&) = delete;

  /// In this direction, from now on; frames that wait already are not affected.
  void set(int from, int to, const Wire& wire) { (void)ask({from, to, wire}); }
  /// In all directions.
  void set_all(const Wire& wire);
  /// Nothing passes between the host and the others, in either direction.
  void cut(int host);
  Counts counts() { return ask({-1, -1, {}}); }

 private:
  struct Request {
    int from, to;  // -1: the counts only
    Wire wire;
  };
  class Relay;
  Counts ask(const Request& request) const;

  const Hosts& hosts_;
  int socket_ = -1;
  pid_t relay_ = -1;
};

}  // namespace rondo::testing
