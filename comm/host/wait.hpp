// The one wait loop's patience: spin, then yield, then sleep on the rank's doorbell. A wrong policy
// costs three orders of magnitude: spinning when ranks outnumber cores burns the time slice that
// the awaited rank needs, sleeping when they do not costs tens of microseconds a wake-up. So the
// budget comes from threads against CPUs.
#pragma once

#include <cstdint>

#include "comm/base/clock.hpp"
#include "comm/board/board.hpp"

namespace rondo::engine {

struct WaitPolicy {
  uint32_t spins;    // polls before the first yield
  int64_t yield_ns;  // how long to yield before sleeping
  /// Beside this thread its rank computes, on the same CPU: a yield would last as long as that
  /// thread's turn, some milliseconds, while who sleeps is let in when it is woken
  /// (ask_for_short_turns). So it does not yield unless a caller waits (CallerWaits).
  bool beside_computing = false;
};

/// For `threads` threads of all local ranks that may wait or work at once, on `cpus` CPUs; `paced`:
/// messages take so long that sleeping is always right.
WaitPolicy wait_policy(int threads, int cpus, bool paced);

/// `policy` where a poll also moves what is on a wire, which takes as long as tens of plain polls.
WaitPolicy over_wire(WaitPolicy policy);

/// For progress threads beside `threads` threads of their ranks.
WaitPolicy progressing_policy(int threads, int cpus, bool paced);

/// While it lives, a thread of this process waits for an asynchronous operation, and does not
/// compute.
class CallerWaits {
 public:
  CallerWaits();
  ~CallerWaits();
  CallerWaits(const CallerWaits&) = delete;
  CallerWaits& operator=(const CallerWaits&) = delete;
};

/// Whether a wait sleeps at once, because who has the CPU computes.
bool gives_way(const WaitPolicy& policy, bool may_sleep);

/// For the calling thread, which works little and must be prompt: it is let in at once when it
/// wakes, also while another thread computes on its CPU. Linux 6.12 and later; does nothing before.
void ask_for_short_turns();

/// To be called once per process before any Waiter sleeps: lets ringers do without a fence (see
/// Board::ring).
void register_for_wakeups();

inline void cpu_pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

/// One wait. Not thread-safe; one per waiting thread.
class Waiter {
 public:
  Waiter(const WaitPolicy& policy, const board::Board& board) : policy_(policy), board_(&board) {}
  ~Waiter() { disarm(); }
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  /// Something moved: the next wait starts afresh.
  void reset() {
    polls_ = 0;
    start_ns_ = 0;
    disarm();
  }

  /// Nothing moved: a moment's pause, or false when the wait has lasted long enough for idle().
  bool spin() {
    if (polls_ >= policy_.spins) return false;
    ++polls_;
    cpu_pause();
    return true;
  }

  /// Nothing moved, and spinning is over: yields or sleeps, and returns whether a slow check (peers
  /// alive? same operation? deadline?) is due. That is once a millisecond; a sleeping
  /// thread checks when it wakes, after at most 5 ms. `ready_at_ns`: when
  /// something is known to become ready, 0: unknown. `may_sleep`: nothing else needs this thread
  /// (else it naps for moments only).
  bool idle(int64_t ready_at_ns, bool may_sleep);

  /// When the wait left its spin phase; 0: it has not.
  int64_t start_ns() const { return start_ns_; }

 private:
  void disarm();

  WaitPolicy policy_;
  const board::Board* board_;
  uint32_t polls_ = 0;
  bool armed_ = false;
  uint32_t bell_ = 0;
  int64_t start_ns_ = 0;
  int64_t next_check_ns_ = 0;
};

}  // namespace rondo::engine
