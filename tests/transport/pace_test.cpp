// Pace: what is written as a speed, and that nothing is seen before its time. The clock read before
// publishing gives a lower bound of the due time, so a slow machine cannot make these fail.
#include "transport/pace/pace.hpp"

#include <time.h>

#include <cmath>
#include <cstring>

#include "tests/harness/catch.hpp"
#include "tests/harness/contains.hpp"
#include "transport/memory/segment.hpp"
#include "transport/shm/factory.hpp"

namespace rondo::transport::test {
namespace {

int64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{1'000'000'000} * now.tv_sec + now.tv_nsec;
}

/// Three ranks of one paced transport, driven by the test's own thread.
struct PacedRanks {
  explicit PacedRanks(PaceOptions options) {
    const shm::FifoSizes shape{.ranks = 3, .channels = 2, .slot_bytes = 100'000};
    segment = *Segment::create("pace-test", shm::bytes_needed(shape));
    wires = *Segment::create("pace-test", wires_bytes(3, 2));
    for (int rank = 0; rank < 3; ++rank) {
      ranks.push_back(pace(shm::create(shape, rank, segment.base(), {}, true).value(), options,
                           {.base = wires.base(), .ranks = 3, .channels = 2, .rank = rank}));
    }
  }
  Segment segment, wires;
  std::vector<std::unique_ptr<Transport>> ranks;
};

void publish(Sender& sender, size_t bytes, uint64_t tag) {
  std::byte* slot = sender.try_acquire(bytes);
  REQUIRE(slot != nullptr);
  std::memset(slot, static_cast<int>(tag), bytes);
  REQUIRE(sender.try_publish(bytes, tag));
}

/// Polls until the next message is there; when that was.
int64_t arrival(Receiver& receiver, Delivery* delivery) {
  while (!receiver.try_peek(delivery)) {
  }
  return now_ns();
}

TEST_CASE("a pace is parsed") {
  const auto is = [](const char* text, double bytes_per_second, double latency) {
    INFO(text);
    const auto options = parse_pace(text);
    REQUIRE(options.ok());
    CHECK(options.value().bytes_per_second == Approx(bytes_per_second));
    CHECK(options.value().latency_seconds == Approx(latency));
  };
  is("1GB/s,20us", 1e9, 20e-6);
  is("500MB/s", 500e6, 0);
  is("100Mbit/s", 12.5e6, 0);
  is("1.5Gbit/s,3ms", 187.5e6, 3e-3);
  is("8000B/s,1s", 8000, 1);
  is("64KB/s,500ns", 64e3, 5e-7);
  const auto unlimited = parse_pace("inf,20us");
  REQUIRE(unlimited.ok());
  CHECK(std::isinf(unlimited.value().bytes_per_second));
}

TEST_CASE("what is no pace is named, with an example") {
  for (const char* text :
       {"",         ",",           "1",           "1GB",        "GB/s",      "1GB/s,",
        "1GB/s,20", "1GB/s,us",    "1GB/s,20us,", "1GB/s 20us", "-1GB/s",    "0GB/s",
        "1B/s",     "nanGB/s",     "infGB/s",     "inf,inf",    "1e400GB/s", "1GB/s,-1us",
        "1GB/s,2h", "1GB/s,4000s", "inf,nanus"}) {
    INFO(text);
    const auto options = parse_pace(text);
    CHECK(options.status().code() == Code::kInvalidArgument);
    CHECK_THAT(options.status().message(),
               testing::contains(std::string("'").append(text).append("'")) &&
                   testing::contains("1GB/s,20us"));
  }
}

TEST_CASE("nothing is seen before bytes / bandwidth + latency, and ready_at_ns says when") {
  PacedRanks paced({.bytes_per_second = 100e6, .latency_seconds = 2e-3});
  const int64_t before = now_ns();
  publish(paced.ranks[0]->sender(0, 1), 90'000, 7);  // 0.9 ms on the wire
  Receiver& receiver = paced.ranks[1]->receiver(0, 0);
  CHECK(receiver.ready_at_ns() == 0);
  Delivery delivery{};
  const bool early = receiver.try_peek(&delivery);
  const int64_t ready = receiver.ready_at_ns();
  CHECK((early ? ready == 0 : ready >= before + 2'900'000));
  CHECK(arrival(receiver, &delivery) >= before + 2'900'000);
  CHECK(delivery.bytes == 90'000);
  CHECK(delivery.tag == 7);
  CHECK(delivery.data[89'999] == std::byte{7});
  CHECK(receiver.ready_at_ns() == 0);
  CHECK(receiver.try_peek(&delivery));
  receiver.release();
  CHECK(!receiver.try_peek(&delivery));
  CHECK(receiver.ready_at_ns() == 0);
}

TEST_CASE("all links of a rank share its wire; other ranks have their own") {
  PacedRanks paced({.bytes_per_second = 100e6, .latency_seconds = 0});
  const int64_t before = now_ns();
  publish(paced.ranks[0]->sender(0, 1), 90'000, 1);
  publish(paced.ranks[0]->sender(1, 1), 90'000, 2);
  publish(paced.ranks[0]->sender(0, 2), 90'000, 3);
  publish(paced.ranks[1]->sender(0, 2), 1'000, 4);
  Delivery delivery{};
  CHECK(arrival(paced.ranks[2]->receiver(0, 0), &delivery) >= before + 2'700'000);
  CHECK(delivery.tag == 3);
  CHECK(arrival(paced.ranks[1]->receiver(1, 0), &delivery) >= before + 1'800'000);
  CHECK(delivery.tag == 2);
  CHECK(arrival(paced.ranks[1]->receiver(0, 0), &delivery) >= before + 900'000);
  CHECK(delivery.tag == 1);
  CHECK(arrival(paced.ranks[2]->receiver(0, 1), &delivery) >= before + 10'000);
  CHECK(delivery.tag == 4);
}

/// Polls until `peer`'s counter is seen at `value`; when that was.
int64_t sees(Transport& transport, int channel, int peer, uint64_t value) {
  while (transport.seen(channel, peer) != value) {
  }
  return now_ns();
}

TEST_CASE("a signal is seen after the latency, and signal_ready_at_ns says when") {
  PacedRanks paced({.bytes_per_second = 100e6, .latency_seconds = 3e-3});
  Transport& one = *paced.ranks[1];
  CHECK(one.seen(0, 0) == 0);
  CHECK(one.signal_ready_at_ns(0, 0) == 0);
  const int64_t before = now_ns();
  paced.ranks[0]->signal(0, 5);
  const bool early = one.seen(0, 0) == 5;
  const int64_t ready = one.signal_ready_at_ns(0, 0);
  CHECK((early ? ready == 0 : ready >= before + 3'000'000));
  CHECK(sees(one, 0, 0, 5) >= before + 3'000'000);
  CHECK(one.signal_ready_at_ns(0, 0) == 0);
  CHECK(one.seen(1, 0) == 0);  // another channel
  // A signal that follows before the first one was looked at is seen, too.
  paced.ranks[0]->signal(1, 6);
  paced.ranks[0]->signal(1, 7);
  CHECK(sees(*paced.ranks[2], 1, 0, 7) >= before + 3'000'000);
}

TEST_CASE("when a signal arrives, the time of the next one is known at once") {
  PacedRanks paced({.bytes_per_second = 1e9, .latency_seconds = 0.2});
  Transport& one = *paced.ranks[1];
  paced.ranks[0]->signal(0, 1);
  CHECK(one.seen(0, 0) == 0);
  const int64_t first = one.signal_ready_at_ns(0, 0);
  while (now_ns() < first) {
  }
  paced.ranks[0]->carry(0, 0, 1'000'000'000);  // a second on the wire
  paced.ranks[0]->signal(0, 2);
  // The bell that announces it has rung: nobody would call seen() again before its time.
  CHECK(one.seen(0, 0) == 1);
  CHECK(one.signal_ready_at_ns(0, 0) > first + 900'000'000);
}

TEST_CASE(
    "bytes in peers' buffers take the wire of the rank that they leave, before the next signal") {
  PacedRanks paced({.bytes_per_second = 100e6, .latency_seconds = 1e-3});
  const int64_t before = now_ns();
  // Rank 1 and rank 2 read 90 KB each from rank 0's buffer: 0.9 ms each on its one wire.
  CHECK(paced.ranks[1]->carry(0, 0, 90'000) >= before + 1'900'000);
  CHECK(paced.ranks[2]->carry(1, 0, 90'000) >= before + 2'800'000);
  // Rank 0 writes as much into rank 1's: it need not wait, but its signal comes after it.
  CHECK(paced.ranks[0]->carry(0, 0, 90'000) == 0);
  paced.ranks[0]->signal(0, 1);
  paced.ranks[1]->signal(0, 1);
  paced.ranks[2]->signal(1, 1);
  CHECK(sees(*paced.ranks[1], 0, 0, 1) >= before + 3'700'000);
  CHECK(sees(*paced.ranks[0], 0, 1, 1) >= before + 2'900'000);
  CHECK(sees(*paced.ranks[0], 1, 2, 1) >= before + 3'800'000);
}

TEST_CASE("a message too short to be paced is reported, not read") {
  const shm::FifoSizes shape{.ranks = 2, .slot_bytes = 100};
  auto segment = Segment::create("pace-test", shm::bytes_needed(shape));
  REQUIRE(segment.ok());
  auto wires = Segment::create("pace-test", wires_bytes(2, 1));
  auto plain = shm::create(shape, 0, segment->base(), {}, true).value();
  auto paced = pace(shm::create(shape, 1, segment->base(), {}, true).value(),
                    {.bytes_per_second = 1e9, .latency_seconds = 0},
                    {.base = wires->base(), .ranks = 2, .channels = 1, .rank = 1});
  publish(plain->sender(0, 1), 7, 1);
  Delivery delivery{};
  CHECK(paced->receiver(0, 0).try_peek(&delivery));
  CHECK(delivery.data == nullptr);
}

}  // namespace
}  // namespace rondo::transport::test
