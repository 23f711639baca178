#include "comm/host/wait.hpp"

#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

namespace rondo::engine {

namespace {

constexpr int64_t kCheckEveryNs = 1'000'000;
// A sleeper looks up this often although nobody rang: it has deaths and deadlines to notice.
constexpr int64_t kSleepNs = 5'000'000;
// Without membarrier a ring can be missed; then a sleep is short.
constexpr int64_t kUnsafeSleepNs = 200'000;
// Below this much time a sleep's own cost is larger than what it saves.
constexpr int64_t kWorthSleepingNs = 15'000;
// For a thread that has links or other communicators to look after, which no single doorbell covers.
// Naps grow with the wait, or the polls of tens of waiting ranks leave no CPU to the awaited one.
constexpr int64_t kNapNs = 50'000;
constexpr int64_t kLongestNapNs = 1'000'000;
constexpr int64_t kNapsShare = 8;  // a nap prolongs a wait by an eighth, or by kNapNs

// The least that Linux grants.
constexpr uint64_t kTurnNs = 100'000;

std::atomic<bool> membarrier_works{false};

// Relaxed everywhere: it only decides how to wait.
std::atomic<int> waiting_callers{0};

timespec to_timespec(int64_t ns) { return {ns / 1'000'000'000, ns % 1'000'000'000}; }

// The kernel rounds sleeps up by the thread's timer slack, 50 us by default. Many paced messages
// take less.
template <typename Sleep>
void sleep_punctually(Sleep sleep) {
  const int slack = prctl(PR_GET_TIMERSLACK);
  prctl(PR_SET_TIMERSLACK, 1000UL);
  sleep();
  if (slack > 0) prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(slack));
}

void sleep_until(int64_t when_ns) {
  const timespec t = to_timespec(when_ns);
  sleep_punctually([&] { clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, nullptr); });
}

}  // namespace

WaitPolicy wait_policy(int threads, int cpus, bool paced) {
  if (paced) return {.spins = 0, .yield_ns = 0};
  if (threads > cpus) return {.spins = 0, .yield_ns = 1'000'000};
  return {.spins = 4000, .yield_ns = 1'000'000};
}

WaitPolicy over_wire(WaitPolicy policy) {
  constexpr uint32_t kPolls = 100;
  policy.spins = std::min(policy.spins, kPolls);
  return policy;
}

CallerWaits::CallerWaits() { waiting_callers.fetch_add(1, std::memory_order_relaxed); }
CallerWaits::~CallerWaits() { waiting_callers.fetch_sub(1, std::memory_order_relaxed); }

WaitPolicy progressing_policy(int threads, int cpus, bool paced) {
  const WaitPolicy policy = wait_policy(2 * threads, cpus, paced);
  if (policy.spins > 0) return policy;
  constexpr uint32_t kShortSpins = 500;  // tens of microseconds: as long as a sleep takes
  return {.spins = threads <= cpus && !paced ? kShortSpins : 0,
          .yield_ns = policy.yield_ns,
          .beside_computing = true};
}

void ask_for_short_turns() {
  // As <linux/sched/types.h> has it; glibc 2.36 does not.
  struct {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
    uint32_t least_clamp, most_clamp;
  } attributes{};
  constexpr unsigned kSize = sizeof attributes;
  if (syscall(SYS_sched_getattr, 0, &attributes, kSize, 0) != 0) return;
  if (attributes.policy != SCHED_OTHER) return;
  attributes.runtime = kTurnNs;
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

void register_for_wakeups() {
  static const bool registered =
      syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0;
  membarrier_works.store(registered, std::memory_order_relaxed);
}

// Without membarrier a ring may be missed, and with other queues to look after there is no bell to
// sleep on: then yields are the lesser evil.
bool gives_way(const WaitPolicy& policy, bool may_sleep) {
  return policy.beside_computing && may_sleep && membarrier_works.load(std::memory_order_relaxed) &&
         waiting_callers.load(std::memory_order_relaxed) == 0;
}

bool Waiter::idle(int64_t ready_at_ns, bool may_sleep) {
  const int64_t now = base::now_ns();
  if (start_ns_ == 0) {
    start_ns_ = now;
    next_check_ns_ = now + kCheckEveryNs;
  }
  if (now >= next_check_ns_) {
    next_check_ns_ = now + kCheckEveryNs;
    return true;
  }
  const bool knows_when = ready_at_ns > now;
  if (knows_when && ready_at_ns - now <= kWorthSleepingNs) {
    cpu_pause();  // a yield may cost a whole turn of the other thread on this CPU
    return false;
  }
  if (!knows_when && !gives_way(policy_, may_sleep) && now - start_ns_ < policy_.yield_ns) {
    sched_yield();
    return false;
  }
  if (!may_sleep) {
    const int64_t nap_ns = std::clamp((now - start_ns_) / kNapsShare, kNapNs, kLongestNapNs);
    sleep_until(knows_when ? std::min(ready_at_ns, now + nap_ns) : now + nap_ns);
    return false;
  }
  board::Doorbell& bell = board_->doorbell(board_->rank());
  if (!armed_) {
    // Announce the sleep, then have every ringer's earlier stores become visible, then let the
    // caller look once more. A ringer that published before the barrier is seen by that look; one
    // that publishes after it sees `sleeping`.
    bell_ = bell.value.load(std::memory_order_acquire);
    bell.sleeping.fetch_add(1, std::memory_order_seq_cst);
    armed_ = true;
    if (membarrier_works.load(std::memory_order_relaxed)) {
      syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0);
    }
    return false;
  }
  const int64_t longest_ns =
      membarrier_works.load(std::memory_order_relaxed) ? kSleepNs : kUnsafeSleepNs;
  const timespec limit =
      to_timespec(knows_when ? std::min(ready_at_ns - now, longest_ns) : longest_ns);
  const auto sleep = [&] {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&bell.value), FUTEX_WAIT, bell_, &limit, nullptr,
            0);
  };
  if (knows_when) {
    sleep_punctually(sleep);
  } else {
    sleep();
  }
  disarm();
  return base::now_ns() >= next_check_ns_;
}

void Waiter::disarm() {
  if (!armed_) return;
  armed_ = false;
  board_->doorbell(board_->rank()).sleeping.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace rondo::engine
