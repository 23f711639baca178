// What only the shared-memory transport promises: where things lie, which shapes it takes, and that
// whatever a peer scribbles into shared memory is reported instead of followed.
#include <algorithm>
#include <cstring>
#include <deque>
#include <random>
#include <set>
#include <utility>

#include "rondo/memory.hpp"
#include "tests/harness/catch.hpp"
#include "tests/harness/contains.hpp"
#include "transport/shm/factory.hpp"
#include "transport/shm/layout.hpp"

namespace rondo::transport::shm::test {
namespace {

struct Range {
  size_t begin, end;
};

std::vector<Range> everything(const FifoSizes& shape) {
  const FifoLayout layout(shape);
  std::vector<Range> ranges;
  const auto add = [&](size_t begin, size_t bytes) { ranges.push_back({begin, begin + bytes}); };
  for (size_t c = 0; c < static_cast<size_t>(shape.channels); ++c) {
    for (size_t w = 0; w < static_cast<size_t>(shape.ranks); ++w) {
      add(layout.signal(c, w), sizeof(SignalLine));
      for (size_t r = 0; r < static_cast<size_t>(shape.ranks); ++r) {
        add(layout.link_release(c, w, r), sizeof(ReleaseLine));
        add(layout.link_headers(c, w, r), header_lines(shape.depth) * sizeof(HeaderLine));
        add(layout.link_data(c, w, r), layout.link_ring_bytes());
      }
      if (shape.publish_depth == 0) continue;
      add(layout.publisher_releases(c, w), static_cast<size_t>(shape.ranks) * sizeof(ReleaseLine));
      add(layout.publisher_headers(c, w), header_lines(shape.publish_depth) * sizeof(HeaderLine));
      add(layout.publisher_data(c, w), layout.publisher_ring_bytes());
    }
  }
  return ranges;
}

TEST_CASE("nothing overlaps, everything is on lines of its own and inside bytes_needed") {
  // Ranks, channels, depth, slot_bytes, publish_depth, publish_slot_bytes, ring_bytes.
  for (const FifoSizes& shape :
       {FifoSizes{1, 1, 8, 1}, FifoSizes{2, 1, 1, 1}, FifoSizes{3, 2, 3, 4096, 1, 65},
        FifoSizes{7, 3, 8, 65536, 5, 1000}, FifoSizes{3, 2, 2, 4096, 0, 0, 100'001},
        FifoSizes{2, 1, 40, 100, 41, 100}}) {
    auto ranges = everything(shape);
    std::sort(ranges.begin(), ranges.end(),
              [](const Range& a, const Range& b) { return a.begin < b.begin; });
    size_t end = 0;
    for (const Range& range : ranges) {
      REQUIRE(range.begin >= end);
      REQUIRE(range.begin % kLine == 0);
      end = range.end;
    }
    CHECK(end <= bytes_needed(shape));
  }
}

TEST_CASE("the same place in neighbouring slots falls into different cache sets") {
  for (const size_t slot_bytes : {size_t{1}, size_t{4096}, size_t{65536}, size_t{1} << 20}) {
    for (size_t distance = 1; distance < 64; ++distance) {
      CHECK(distance * stride(slot_bytes) / kLine % 64 != 0);
    }
  }
}

TEST_CASE("shapes, ranks and memory that make no sense are refused by name") {
  alignas(128) std::byte memory[128];
  const auto refused = [&](const FifoSizes& shape, int rank, std::byte* base, size_t arenas,
                           const char* part) {
    const auto made = create(shape, rank, base, std::vector<ArenaView>(arenas), false);
    CHECK(made.status().code() == Code::kInvalidArgument);
    CHECK_THAT(made.status().message(), testing::contains(part));
  };
  const FifoSizes good{.ranks = 2, .slot_bytes = 64};
  refused({.ranks = 0, .slot_bytes = 64}, 0, memory, 0, "ranks");
  refused({.ranks = 65536, .slot_bytes = 64}, 0, memory, 0, "ranks");
  refused({.ranks = 2, .channels = 0, .slot_bytes = 64}, 0, memory, 0, "channels");
  refused({.ranks = 2, .depth = 0, .slot_bytes = 64}, 0, memory, 0, "depth");
  refused({.ranks = 2, .slot_bytes = 0}, 0, memory, 0, "slot_bytes");
  refused({.ranks = 2, .slot_bytes = size_t{1} << 32}, 0, memory, 0, "slot_bytes is 4294967296");
  refused({.ranks = 2, .slot_bytes = 64, .publish_depth = 1}, 0, memory, 0, "publish_slot_bytes");
  refused({.ranks = 65535, .channels = 65535, .slot_bytes = size_t{1} << 31}, 0, memory, 0, "TiB");
  refused(good, 2, memory, 0, "rank 2");
  refused(good, -1, memory, 0, "rank -1");
  refused(good, 0, nullptr, 0, "aligned");
  refused(good, 0, memory + 64, 0, "aligned");
  refused(good, 0, memory, 3, "3 arenas for 2 ranks");
}

/// Two ranks in one thread, as if they were two processes, and the first header line between them.
struct Pair {
  explicit Pair(const FifoSizes& sizes = {.ranks = 2, .depth = 2, .slot_bytes = 1000})
      : shape(sizes) {
    segment = *Segment::create("shm-test", bytes_needed(shape));
    const std::vector<ArenaView> arenas(2, own_arena());
    writer = create(shape, 0, segment.base(), arenas, false).value();
    reader = create(shape, 1, segment.base(), arenas, false).value();
    header =
        reinterpret_cast<HeaderLine*>(segment.base() + FifoLayout(shape).link_headers(0, 0, 1));
  }
  Sender& sender() const { return writer->sender(0, 1); }
  Receiver& receiver() const { return reader->receiver(0, 0); }
  /// Where the message lies.
  std::byte* send(size_t bytes, uint64_t tag = 0) const {
    std::byte* const place = sender().try_acquire(bytes);
    REQUIRE(place != nullptr);
    REQUIRE(sender().try_publish(bytes, tag));
    return place;
  }
  Delivery peek() const {
    Delivery delivery{};
    REQUIRE(receiver().try_peek(&delivery));
    return delivery;
  }
  Delivery receive() const {
    const Delivery delivery = peek();
    receiver().release();
    return delivery;
  }
  FifoSizes shape;
  Segment segment;
  std::unique_ptr<Transport> writer, reader;
  HeaderLine* header = nullptr;
};

TEST_CASE("slots in use lie apart in their ring, whatever the messages' lengths") {
  for (const size_t ring : {size_t{0}, size_t{9000}, size_t{50'000}}) {
    Pair pair({.ranks = 2, .depth = 3, .slot_bytes = 4000, .ring_bytes = ring});
    const FifoLayout layout(pair.shape);
    const std::byte* const begin = pair.segment.base() + layout.link_data(0, 0, 1);
    Sender& sender = pair.sender();
    std::mt19937 random(7);
    const auto up_to = [&](size_t most) { return static_cast<size_t>(random()) % (most + 1); };
    std::deque<std::pair<std::byte*, size_t>> under_way;
    size_t slots = 0;
    for (int message = 0; message < 5000; ++message) {
      const size_t acquired = up_to(7) == 0 ? up_to(kShortBytes) : up_to(4000);
      std::byte* place = sender.try_acquire(acquired);
      while (place == nullptr || (!under_way.empty() && up_to(2) == 0)) {
        const Delivery delivery = pair.receive();
        REQUIRE(delivery.data == under_way.front().first);  // one mapping, so one address
        REQUIRE(delivery.bytes == under_way.front().second);
        under_way.pop_front();
        if (place == nullptr) place = sender.try_acquire(acquired);
      }
      if (acquired > kShortBytes) {
        ++slots;
        REQUIRE(place >= begin);
        REQUIRE(place + acquired <= begin + layout.link_ring_bytes());
      }
      for (const auto& [other, length] : under_way) {
        REQUIRE((place + acquired <= other || other + length <= place));
      }
      const size_t published = up_to(acquired);
      REQUIRE(sender.try_publish(published, 0));
      under_way.emplace_back(place, published);
    }
    CHECK(slots > 4000);
  }
}

TEST_CASE("slots come back after a ring's length, and a ring grows with what it carries") {
  constexpr size_t kRing = 1 << 20, kMessage = 8192;
  Pair pair({.ranks = 2, .depth = 2, .slot_bytes = 16384, .ring_bytes = kRing});
  const size_t needed = ring_bytes(2, 16384, 0);
  const std::byte* begin = pair.segment.base() + FifoLayout(pair.shape).link_data(0, 0, 1);
  std::set<const std::byte*> places;
  size_t touched = 0;
  for (size_t carried = 0; carried < 16 * kRing; carried += kMessage) {
    const std::byte* place = pair.send(kMessage);
    REQUIRE(pair.receive().data == place);
    places.insert(place);
    touched = std::max(touched, static_cast<size_t>(place - begin) + kMessage);
    CHECK(touched <= std::max(needed, carried / 2));
  }
  CHECK(places.size() >= (kRing - stride(16384)) / stride(kMessage));
  CHECK(touched <= kRing);
}

TEST_CASE("without a ring small messages use few lines: slots keep their places") {
  for (const size_t ring : {size_t{0}, size_t{1}}) {
    Pair pair({.ranks = 2, .depth = 3, .slot_bytes = 4000, .ring_bytes = ring});
    std::set<const std::byte*> places;
    for (size_t message = 0; message < 300; ++message) {
      const size_t bytes = 300 + message;
      places.insert(pair.send(bytes));
      REQUIRE(pair.receive().bytes == bytes);
    }
    CHECK((places.size() == 3 + 1) == (ring == 0));
  }
}

TEST_CASE("a header that makes no sense is reported as no data") {
  struct Wrong {
    MessageKind kind;
    uint32_t bytes;
  };
  Pair pair;
  pair.send(1000, 3);
  CHECK(pair.peek().data != nullptr);
  const MessageKind slot = pair.header->kind;
  for (const Wrong& wrong : {Wrong{slot, 1001},
                             {slot, ~0u},
                             {MessageKind::kInline, 41},
                             {MessageKind::kShort, kShortBytes + 1},
                             {MessageKind{0}, 8},
                             {MessageKind{5}, 8},
                             {MessageKind{~0u}, 8}}) {
    INFO(static_cast<uint32_t>(wrong.kind) << ", " << wrong.bytes << " bytes");
    pair.header->kind = wrong.kind;
    pair.header->bytes = wrong.bytes;
    CHECK(pair.peek().data == nullptr);
    if (wrong.kind == slot) CHECK(pair.peek().bytes == wrong.bytes);
    CHECK(pair.peek().tag == 3);
  }
}

TEST_CASE("a sequence from elsewhere is no message") {
  Pair pair;
  for (const uint64_t sequence : {uint64_t{2}, uint64_t{3}, ~uint64_t{0}}) {
    pair.header->sequence = sequence;
    Delivery delivery{};
    CHECK(!pair.receiver().try_peek(&delivery));
  }
}

TEST_CASE("what needs no full slot may be further ahead than there are slots") {
  Pair pair;
  Sender& sender = pair.sender();
  uint64_t sent = 0, received = 0;
  const auto put = [&](size_t bytes) {
    std::byte* const place = sender.try_acquire(bytes);
    if (place == nullptr) return false;
    std::memset(place, static_cast<int>(sent), bytes);
    return sender.try_publish(bytes, sent++);
  };
  const auto get = [&](size_t bytes) {
    const Delivery delivery = pair.peek();
    CHECK((delivery.tag == received && delivery.bytes == bytes));
    CHECK(delivery.data[0] == static_cast<std::byte>(received));
    CHECK(delivery.data[bytes - 1] == static_cast<std::byte>(received));
    pair.receiver().release();
    ++received;
  };
  for (int lap = 0; lap < 5; ++lap) {  // laps of header lines and of slots drift apart
    REQUIRE(put(1000));
    REQUIRE(put(999));
    REQUIRE(!put(998));  // both slots are taken, and
    for (const size_t bytes : {41, 8, 256}) REQUIRE(put(bytes));
    while (put(8)) continue;
    REQUIRE(!put(41));
    REQUIRE(sent - received == kLeastHeaderLines);
    get(1000);
    REQUIRE(!put(1000));  // a slot is free, but not this message's
    REQUIRE(put(40));
    get(999);
    for (const size_t bytes : {41, 8, 256}) get(bytes);
    while (received + 2 < sent) get(8);
    REQUIRE(!put(1000));  // a message's slot is free when the one `depth` before it is released
    get(8);
    REQUIRE(put(1000));
    get(40);
    get(1000);
  }
}

TEST_CASE("what needs no full slot waits for the slowest reader, too") {
  FifoSizes shape{.ranks = 3, .slot_bytes = 64, .publish_depth = 2, .publish_slot_bytes = 100};
  const Segment segment = *Segment::create("shm-test", bytes_needed(shape));
  std::vector<std::unique_ptr<Transport>> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.push_back(create(shape, rank, segment.base(), {}, true).value());
  }
  Sender& publisher = ranks[0]->publisher(0);
  const auto put = [&](bool refers, uint64_t message) {
    const int memory = 0;
    if (refers) {
      return publisher.try_publish_reference(ranks[0]->refer(&memory, sizeof(int)), sizeof(int),
                                             message);
    }
    return publisher.try_acquire(8) != nullptr && publisher.try_publish(8, message);
  };
  const auto get = [&](int rank, uint64_t message) {
    Receiver& reader = ranks[static_cast<size_t>(rank)]->subscription(0, 0);
    Delivery delivery{};
    REQUIRE(reader.try_peek(&delivery));
    CHECK(delivery.tag == message);
    reader.release();
  };
  for (const bool refers : {false, true}) {
    const uint64_t first = refers ? 100 : 0;
    for (uint64_t i = 0; i < kLeastHeaderLines; ++i) REQUIRE(put(refers, first + i));
    REQUIRE(!put(refers, 0));
    for (uint64_t i = 0; i < kLeastHeaderLines; ++i) get(1, first + i);
    REQUIRE(!put(refers, 0));
    get(2, first);
    REQUIRE(put(refers, first + kLeastHeaderLines));
    REQUIRE(!put(refers, 0));
    for (uint64_t i = 1; i <= kLeastHeaderLines; ++i) get(2, first + i);
    get(1, first + kLeastHeaderLines);
    CHECK(publisher.drained());
  }
}

TEST_CASE("a release count that no reader can have reached gives no credit") {
  Pair pair;
  for (uint64_t i = 0; i < kLeastHeaderLines; ++i) pair.send(8, i);
  auto* release = reinterpret_cast<ReleaseLine*>(pair.segment.base() +
                                                 FifoLayout(pair.shape).link_release(0, 0, 1));
  for (const uint64_t count : {uint64_t{kLeastHeaderLines + 1}, uint64_t{1} << 40, ~uint64_t{0}}) {
    release->released = count;
    CHECK(pair.sender().try_acquire(8) == nullptr);
    CHECK(!pair.sender().drained());
  }
  release->released = 1;
  CHECK(pair.sender().try_acquire(8) != nullptr);
}

TEST_CASE("references outside the peer's arena resolve to nothing") {
  Pair pair;
  void* memory = alloc(4096);
  REQUIRE(memory != nullptr);
  const Reference good = pair.writer->refer(memory, 4096);
  REQUIRE(good.kind == Reference::kArena);
  const uint64_t arena_bytes = own_arena().bytes;
  const auto resolve = [&](const Reference& reference, size_t bytes) {
    return pair.reader->resolve(0, reference, bytes);
  };
  CHECK(resolve(good, 4096) == memory);
  CHECK(resolve(good, arena_bytes - good.offset) == memory);
  CHECK(resolve(good, arena_bytes - good.offset + 1) == nullptr);
  CHECK(resolve(good, ~size_t{0}) == nullptr);
  using R = Reference;
  CHECK(resolve({R::kNone, good.arena, 0}, 1) == nullptr);
  CHECK(resolve({7, good.arena, 0}, 1) == nullptr);
  CHECK(resolve({R::kArena, good.arena + 1, 0}, 1) == nullptr);
  CHECK(resolve({R::kArena, good.arena, arena_bytes}, 0) == nullptr);
  CHECK(resolve({R::kArena, good.arena, ~uint64_t{0}}, 2) == nullptr);
  // An address is another process's business, however good it looks.
  CHECK(resolve({R::kAddress, 0, reinterpret_cast<uintptr_t>(memory)}, 1) == nullptr);

  const size_t too_long = arena_bytes - good.offset + 1;
  REQUIRE(pair.sender().try_publish_reference(good, too_long, 1));
  CHECK(pair.peek().data == nullptr);
  CHECK(pair.peek().bytes == too_long);
  rondo::dealloc(memory);
}

TEST_CASE("without arenas nothing is referred to, and nothing resolves") {
  const FifoSizes shape{.ranks = 2, .slot_bytes = 64};
  auto segment = Segment::create("shm-test", bytes_needed(shape));
  REQUIRE(segment.ok());
  auto transport = create(shape, 0, segment->base(), {}, false).value();
  auto lonely = create(shape, 0, segment->base(), {own_arena(), ArenaView{}}, false).value();
  void* memory = alloc(64);
  CHECK(transport->refer(memory, 64).kind == Reference::kNone);
  CHECK(lonely->refer(memory, 64).kind == Reference::kArena);
  CHECK(lonely->resolve(1, {.kind = Reference::kArena, .arena = 0, .offset = 0}, 1) == nullptr);
  CHECK(!transport->capabilities().publish);
  rondo::dealloc(memory);
}

}  // namespace
}  // namespace rondo::transport::shm::test
