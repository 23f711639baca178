#include "comm/base/wait_until.hpp"

#include <atomic>
#include <thread>

#include "tests/harness/catch.hpp"

namespace rondo::base {
namespace {

TEST_CASE("wait_until ends with what it waits for, or at its limit") {
  constexpr int64_t kMs = 1'000'000;
  CHECK(wait_until([] { return true; }, {.most_ns = 0}));
  int looks = 0;
  CHECK(wait_until([&] { return ++looks == 1000; }));
  CHECK(looks == 1000);

  const int64_t began = now_ns();
  CHECK_FALSE(wait_until([] { return false; }, {.most_ns = 20 * kMs}));
  CHECK(now_ns() - began >= 20 * kMs);

  // What becomes true while the thread was away for longer than the limit counts.
  looks = 0;
  CHECK(wait_until(
      [&] {
        if (++looks == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2));
        return looks == 2;
      },
      {.most_ns = kMs}));
}

TEST_CASE("wait_until sleeps in a long wait, and calls the thread's callback") {
  constexpr int64_t kMs = 1'000'000;
  int looks = 0, calls = 0;
  wait_callback = {.call = [](void* count) { ++*static_cast<int*>(count); }, .context = &calls};
  CHECK_FALSE(wait_until([&] { return ++looks < 0; },
                         {.most_ns = 300 * kMs, .longest_pause_ns = 100 * kMs}));
  wait_callback = {};
  CHECK(calls >= 2);
  // As many looks as a thread takes by yielding would be tens of thousands.
  int sleeping = 0;
  const int64_t began = now_ns();
  CHECK(wait_until(
      [&] {
        const int64_t waited = now_ns() - began;
        sleeping += waited > kMs ? 1 : 0;
        return waited > 300 * kMs;
      },
      {.longest_pause_ns = 100 * kMs}));
  CHECK(sleeping < 60);
}

}  // namespace
}  // namespace rondo::base
