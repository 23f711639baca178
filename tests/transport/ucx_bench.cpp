// Latency and bandwidth of the UCX transport between two network namespaces:
//   transport_ucx_bench [SLOT_BYTES [DEPTH]]
// Beside it, ucx_perftest over the same kind of cable shows what UCX itself does.
#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "tests/transport/ranks.hpp"

namespace rondo::transport::test {
namespace {

double now_s() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Both ends of a rank's links on channel 0.
struct Ends {
  Rank& self;
  Sender& sender;
  Receiver& receiver;
  unsigned waits = 0;

  void push() {
    if (const Status status = self.transport.progress(0); !status.ok()) {
      std::fprintf(stderr, "%s\n", status.to_string().c_str());
      std::_Exit(1);
    }
  }
  bool try_send(size_t bytes, const std::byte* from = nullptr) {
    std::byte* const slot = sender.try_acquire(bytes);
    if (slot != nullptr && from != nullptr) std::memcpy(slot, from, bytes);
    return slot != nullptr && sender.try_publish(bytes, 1);
  }
  void send(size_t bytes) {
    while (!try_send(bytes)) wait();
  }
  /// Spins, but not for long: the processors may be fewer than the programs.
  void wait() {
    push();
    if (++waits % 64 == 0) ::sched_yield();
  }
  bool try_receive() {
    Delivery delivery{};
    if (!receiver.try_peek(&delivery)) return false;
    receiver.release();
    return true;
  }
  void receive() {
    while (!try_receive()) wait();
  }
  void flush() {
    while (!sender.flushed() || !receiver.flushed()) wait();
  }
};

/// Calls `turn` often; the median and the mean, in microseconds. Where other programs use the
/// processors, the median is what counts.
template <class Turn>
void time_turns(const char* name, const Ends& ends, double divisor, Turn turn) {
  constexpr int kTurns = 20'000;
  std::vector<double> times;
  for (int i = 0; i < kTurns; ++i) {
    const double start = now_s();
    turn();
    times.push_back((now_s() - start) / divisor * 1e6);
  }
  std::sort(times.begin(), times.end());
  if (ends.self.rank == 0) {
    const double mean = std::accumulate(times.begin(), times.end(), 0.0) / kTurns;
    std::printf("%-40s %8.2f us median %8.2f us mean\n", name, times[times.size() / 2], mean);
    std::fflush(stdout);
  }
}

/// Moves `bytes` one way, or both ways at once, several times; the fastest and the median. `fills`:
/// copied into the slots from memory, as an engine does; the difference is what sending from that
/// memory would save.
void time_stream(Ends& ends, size_t bytes, bool both, bool fills) {
  const std::vector<std::byte> memory(fills ? bytes : 0, std::byte{1});
  const size_t slot = ends.sender.capacity();
  const size_t slots = (bytes + slot - 1) / slot;
  std::vector<double> times;
  for (int run = 0; run < 25; ++run) {
    if (ends.self.rank == 0) {  // one starts the other
      ends.send(8);
    } else {
      ends.receive();
    }
    const double start = now_s();
    size_t to_send = both || ends.self.rank == 0 ? slots : 0;
    size_t to_receive = both || ends.self.rank == 1 ? slots : 0;
    while (to_send + to_receive > 0) {
      bool moved = false;
      const size_t next = std::min(slot, bytes);
      const std::byte* const from = fills ? memory.data() + (to_send - 1) * next : nullptr;
      if (to_send > 0 && ends.try_send(next, from)) --to_send, moved = true;
      if (to_receive > 0 && ends.try_receive()) --to_receive, moved = true;
      if (!moved) ends.wait();
    }
    ends.flush();
    if (ends.self.rank == 0) {  // the answer ends the time
      ends.receive();
    } else {
      ends.send(8);
      ends.flush();
    }
    times.push_back(now_s() - start);
  }
  std::sort(times.begin(), times.end());
  if (ends.self.rank == 0) {
    const auto total = static_cast<double>(bytes);
    std::printf("%3zu MiB %-36s %8.2f GB/s fastest %6.2f GB/s median%s\n", bytes >> 20,
                both ? "both ways" : (fills ? "one way, slots filled" : "one way"),
                total / times.front() * 1e-9, total / times[times.size() / 2] * 1e-9,
                both ? " each way" : "");
    std::fflush(stdout);
  }
}

void pin(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(cpu), &set);
  ::sched_setaffinity(0, sizeof(set), &set);
}

void measure(Rank& self) {
  pin(self.rank);
  const int peer = 1 - self.rank;
  Ends ends{self, self.transport.sender(0, peer), self.transport.receiver(0, peer), 0};
  const auto ping_pong = [&] {
    if (self.rank == 0) ends.send(8);
    ends.receive();
    if (self.rank == 1) ends.send(8);
  };
  time_turns("8 B, one way (half of a ping-pong)", ends, 2, ping_pong);
  time_turns("8 B, exchange", ends, 1, [&] {
    ends.send(8);
    ends.receive();
  });
  time_turns("8 B, exchange, flushed each time", ends, 1, [&] {
    ends.send(8);
    ends.receive();
    ends.flush();
  });
  ends.flush();
  for (const size_t mebibytes : {1, 64}) {
    time_stream(ends, mebibytes << 20, false, false);
    time_stream(ends, mebibytes << 20, false, true);
    time_stream(ends, mebibytes << 20, true, false);
  }
}

int run(size_t slot_bytes, uint32_t depth) {
  if (!is_available(Medium::kUcxHosts)) return 1;
  std::printf("slots of %zu bytes, depth %u\n", slot_bytes, depth);
  std::fflush(stdout);
  int code = 0;
  for (const std::string& failure : run_ranks(
           Medium::kUcxHosts, {.ranks = 2, .depth = depth, .slot_bytes = slot_bytes}, measure)) {
    if (failure.empty()) continue;
    std::fprintf(stderr, "%s\n", failure.c_str());
    code = 1;
  }
  return code;
}

}  // namespace
}  // namespace rondo::transport::test

int main(int argc, char** argv) {
  const size_t slot_bytes = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 256 << 10;
  const auto depth = static_cast<uint32_t>(argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 8);
  return rondo::transport::test::run(slot_bytes, depth);
}
