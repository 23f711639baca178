// How patient a wait is, by how many threads there are for how many CPUs.
#include "comm/host/wait.hpp"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <thread>

#include "tests/harness/catch.hpp"

namespace rondo::engine {
namespace {

TEST_CASE("who waits with a CPU of its own spins; who shares one yields; paced, it sleeps") {
  CHECK(wait_policy(2, 2, false).spins > 0);
  CHECK(wait_policy(3, 2, false).spins == 0);
  CHECK(wait_policy(3, 2, false).yield_ns > 0);
  CHECK(wait_policy(1, 2, true).spins == 0);
  CHECK(wait_policy(1, 2, true).yield_ns == 0);
}

TEST_CASE(
    "a progress thread gives way to its rank unless there is a CPU for it, or a caller waits") {
  CHECK(progressing_policy(2, 4, false).spins == wait_policy(2, 4, false).spins);
  CHECK_FALSE(progressing_policy(2, 4, false).beside_computing);
  for (const int cpus : {1, 2, 3}) CHECK(progressing_policy(2, cpus, false).beside_computing);
  CHECK(progressing_policy(2, 2, false).spins > 0);  // for about as long as falling asleep takes
  CHECK(progressing_policy(2, 1, false).spins == 0);
  CHECK(progressing_policy(2, 2, true).spins == 0);
  CHECK(progressing_policy(2, 2, true).yield_ns == 0);
}

TEST_CASE("who sleeps at once is beside a rank that computes, and can be woken") {
  register_for_wakeups();
  const WaitPolicy beside = progressing_policy(2, 2, false);
  // Where the system has no membarrier nobody sleeps at once.
  const bool can_be_woken = syscall(SYS_membarrier, 0, 0, 0) > 0;
  CHECK(gives_way(beside, true) == can_be_woken);
  CHECK_FALSE(gives_way(beside, false));  // other communicators need this thread
  CHECK_FALSE(gives_way(wait_policy(4, 2, false), true));
  {
    const CallerWaits first;
    { const CallerWaits second; }
    CHECK_FALSE(gives_way(beside, true));
  }
  CHECK(gives_way(beside, true) == can_be_woken);
}

// The first fields of struct sched_attr, and the one that is asked for.
struct Attributes {
  uint32_t size, policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t runtime;
  std::array<uint64_t, 3> rest;
};

Attributes attributes_of_this_thread() {
  Attributes a{};
  const unsigned size = sizeof a;
  REQUIRE(syscall(SYS_sched_getattr, 0, &a, size, 0) == 0);
  return a;
}

TEST_CASE("short turns change nothing else, and one thread only") {
  const Attributes before = attributes_of_this_thread();
  Attributes after{};
  std::thread([&after] {
    ask_for_short_turns();
    after = attributes_of_this_thread();
  }).join();
  CHECK(after.policy == before.policy);
  CHECK(after.nice == before.nice);
  // 0 on kernels that do not tell: before 6.12.
  if (before.runtime != 0) CHECK(after.runtime == 100'000);
  CHECK(attributes_of_this_thread().runtime == before.runtime);
}

}  // namespace
}  // namespace rondo::engine
