// Through the caches or around them: what is cheaper, found while moves are made.
#include "comm/host/slot_stores.hpp"

#include <chrono>
#include <set>
#include <thread>

#include "tests/harness/catch.hpp"

namespace rondo::engine {
namespace {

constexpr size_t kBytes = 65536;
constexpr int64_t ns(double per_line) { return static_cast<int64_t>(per_line * kBytes / 64); }

struct Costs {
  double through, around;  // ns a line
};

void touch_pages(SlotStores& stores) {
  for (int i = 0; i < SlotStores::kFresh; ++i) CHECK_FALSE(stores.next(kBytes).timed);
}

/// How many of `moves` go around the caches where that costs `costs`.
int around(SlotStores& stores, int moves, Costs costs) {
  int count = 0;
  for (int i = 0; i < moves; ++i) {
    const SlotStores::StoreTurn turn = stores.next(kBytes);
    count += turn.around ? 1 : 0;
    if (turn.timed) stores.took(turn, kBytes, ns(turn.around ? costs.around : costs.through));
  }
  return count;
}

TEST_CASE("the writer's gain has to exceed the reader's loss") {
  const float loss = SlotStores::kReaderNs[SlotStores::size_class(kBytes)];
  for (const double gain : {loss - 0.5, loss + 0.5}) {
    SlotStores stores;
    touch_pages(stores);
    around(stores, 2 * SlotStores::kTries, {.through = 2 + gain, .around = 2});
    CHECK(stores.next(kBytes).around == (gain > loss));
  }
}

TEST_CASE("a try that was interrupted does not count") {
  for (const bool interrupt_around : {false, true}) {
    SlotStores stores;
    touch_pages(stores);
    int seen = 0;
    for (int i = 0; i < 2 * SlotStores::kTries; ++i) {
      const SlotStores::StoreTurn turn = stores.next(kBytes);
      REQUIRE(turn.timed);
      const bool interrupted = turn.around == interrupt_around && seen++ < SlotStores::kTries - 1;
      stores.took(turn, kBytes, interrupted ? 4'000'000 : ns(turn.around ? 2 : 25));
    }
    CHECK(stores.next(kBytes).around);
  }
}

TEST_CASE("when the cores change, the stores do within two cycles") {
  SlotStores stores;
  around(stores, 50'000, {.through = 25, .around = 2});
  constexpr int kCycle = SlotStores::kMost;
  around(stores, 2 * kCycle, {.through = 1, .around = 2});
  CHECK(around(stores, kCycle, {.through = 1, .around = 2}) == SlotStores::kTries);
  around(stores, 2 * kCycle, {.through = 25, .around = 2});
  CHECK(around(stores, kCycle, {.through = 25, .around = 2}) == kCycle - SlotStores::kTries);
}

TEST_CASE("a move is made once, and what it takes decides") {
  SlotStores stores;
  touch_pages(stores);
  for (int i = 0; i < SlotStores::kFirst; ++i) {
    int made = 0;
    const SlotStores::StoreTurn turn = stores.next(kBytes);
    stores.make(turn, kBytes, [&] {
      ++made;
      if (!turn.around) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    });
    CHECK(made == 1);
    CHECK(turn.timed == (i < 2 * SlotStores::kTries));
    if (!turn.timed) CHECK(turn.around);
  }
}

TEST_CASE("kinds of moves that differ have places of their own") {
  std::set<size_t> kinds;
  for (const uint32_t sources : {1U, 2U}) {
    for (const uint32_t destinations : {1U, 2U}) {
      for (const size_t bytes : {SlotStores::kSmallest, size_t{2048}, size_t{4096}, size_t{8192}}) {
        const size_t kind = SlotStores::kind(sources, destinations, bytes);
        CHECK(kind < SlotStores::kKinds);
        CHECK(kinds.insert(kind).second);
      }
    }
  }
  CHECK(SlotStores::kind(7, 3, size_t{1} << 30) == SlotStores::kind(2, 2, 8192));
}

}  // namespace
}  // namespace rondo::engine
