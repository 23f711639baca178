// The contract of transport/link.hpp, one body per promise, over every medium there is.
#include <algorithm>
#include <cstring>

#include "rondo/memory.hpp"
#include "tests/harness/catch.hpp"
#include "tests/transport/ranks.hpp"

namespace rondo::transport::test {
namespace {

constexpr size_t kSlot = 1000;

void check(Medium medium, const shm::FifoSizes& shape, const std::function<void(Rank&)>& body) {
  INFO(to_string(medium) << ", " << shape.ranks << " ranks, depth " << shape.depth);
  for (const std::string& failure : run_ranks(medium, shape, body)) CHECK(failure == "");
}

Medium any_medium() {
  return GENERATE(Medium::kThreads, Medium::kForks, Medium::kPaced, Medium::kPacedLazy,
                  Medium::kUcx, Medium::kUcxForks);
}
Medium any_mapped_medium() { return GENERATE(Medium::kThreads, Medium::kForks); }

/// Every size at which something changes: nothing, around the inline limit with and without a
/// trailer, around a cache line, a whole slot.
std::vector<size_t> edge_sizes(size_t capacity) {
  return {0,  1,  7,  8,  31, 32,  33,  39,  40,           41,      47,
          48, 49, 63, 64, 65, 255, 256, 257, capacity - 1, capacity};
}

TEST_CASE("messages arrive in order, unchanged, over many wraps") {
  const Medium medium = any_medium();
  const uint32_t depth = GENERATE(1u, 2u, 3u, 8u, 40u);
  check(medium, {.ranks = 2, .depth = depth, .slot_bytes = kSlot}, [](Rank& self) {
    const int peer = 1 - self.rank;
    const auto sizes = edge_sizes(self.transport.sender(0, peer).capacity());
    for (uint64_t i = 0; i < 12 * sizes.size() && self.failure.empty(); ++i) {
      const size_t bytes = sizes[i % sizes.size()];
      if (self.rank == 0) {
        self.send(self.transport.sender(0, peer), bytes, i);
      } else {
        self.receive(self.transport.receiver(0, peer), bytes, i);
      }
    }
  });
}

TEST_CASE("a message may be shorter than what was acquired, on both sides of the inline limit") {
  check(any_medium(), {.ranks = 2, .depth = 2, .slot_bytes = kSlot}, [](Rank& self) {
    for (const size_t bytes : {size_t{0}, size_t{8}, size_t{40}, size_t{41}, size_t{500}}) {
      if (self.rank == 0) {
        Sender& sender = self.transport.sender(0, 1);
        std::byte* const slot = self.acquire(sender, 600);
        if (slot == nullptr) return;
        for (size_t i = 0; i < bytes; ++i) slot[i] = pattern(bytes, i);
        self.until([&] { return sender.try_publish(bytes, bytes * 3 + 1); }, "publication");
      } else {
        self.receive(self.transport.receiver(0, 0), bytes, bytes);
      }
    }
  });
}

TEST_CASE("a full FIFO refuses until a slot is released, and drained() tells") {
  const Medium medium = any_medium();
  const uint32_t depth = GENERATE(1u, 2u, 5u);
  check(medium, {.ranks = 2, .channels = 2, .depth = depth, .slot_bytes = kSlot},
        [medium](Rank& self) {
          const int peer = 1 - self.rank;
          Sender& sender = self.transport.sender(0, peer);
          Receiver& receiver = self.transport.receiver(0, peer);
          const uint64_t depth_here = sender.depth();
          // Further ahead may be: on a wire messages of any kind, else those that need no slot.
          const size_t passing = is_ucx(medium) ? 300 : 8;
          const uint64_t bound = is_ucx(medium) ? 2 * depth_here : 1 << 20;
          if (self.rank == 0) {
            self.expect(sender.drained(), "not drained before the first message");
            for (uint64_t i = 0; i < depth_here; ++i) self.send(sender, 300, i);
            self.expect(passing == 300 || sender.try_acquire(300) == nullptr,
                        "a full FIFO gave a slot");
            self.expect(!sender.drained(), "drained although nothing was released");
            uint64_t sent = depth_here;
            for (; sent <= bound && sender.try_acquire(passing) != nullptr; ++sent) {
              self.send(sender, passing, sent);
            }
            self.expect(sent <= bound, "a full FIFO takes too many");
            self.expect(sender.try_acquire(300) == nullptr, "a full FIFO gave a slot");
            if (sender.takes_references()) {
              const std::vector<int> memory(4);
              const Reference reference{.kind = Reference::kArena, .arena = 0, .offset = 0};
              self.expect(!sender.try_publish_reference(reference, sizeof(int), 0),
                          "a full FIFO took a reference");
            }
            // Now the reader may release one. The message's size says how many are ahead.
            self.send(self.transport.sender(1, peer), sent - depth_here, 77);
            self.send(sender, 300, sent);
            self.until([&] { return sender.drained(); }, "drained()");
          } else {
            Delivery delivery{};
            Receiver& start = self.transport.receiver(1, peer);
            if (!self.until([&] { return start.try_peek(&delivery); }, "the start")) return;
            const uint64_t ahead = delivery.bytes;
            self.receive(start, ahead, 77);
            for (uint64_t i = 0; i < depth_here; ++i) self.receive(receiver, 300, i);
            for (uint64_t i = 0; i < ahead; ++i) self.receive(receiver, passing, depth_here + i);
            self.receive(receiver, 300, depth_here + ahead);
            self.expect(!receiver.try_peek(&delivery), "a message too many");
          }
        });
}

TEST_CASE("acquiring and peeking again gives the same slot again") {
  check(any_medium(), {.ranks = 2, .depth = 2, .slot_bytes = kSlot}, [](Rank& self) {
    if (self.rank == 0) {
      Sender& sender = self.transport.sender(0, 1);
      self.expect(self.acquire(sender, 500) == self.acquire(sender, 500), "two slots");
      self.expect(reinterpret_cast<uintptr_t>(self.acquire(sender, 500)) % 64 == 0, "alignment");
      self.expect(reinterpret_cast<uintptr_t>(self.acquire(sender, 8)) % 8 == 0, "alignment");
      self.send(sender, 500, 1);
      self.send(sender, 500, 2);
    } else {
      Receiver& receiver = self.transport.receiver(0, 0);
      Delivery first{}, again{};
      if (!self.until([&] { return receiver.try_peek(&first); }, "a message")) return;
      self.expect(receiver.try_peek(&again), "the message went away");
      self.expect(first.data == again.data && first.tag == again.tag && first.bytes == again.bytes,
                  "peeking again gave something else");
      self.receive(receiver, 500, 1);
      self.receive(receiver, 500, 2);
    }
  });
}

TEST_CASE("links of all channels and peers are independent") {
  const Medium medium = any_medium();
  check(medium, {.ranks = 4, .channels = 3, .depth = 2, .slot_bytes = 200}, [](Rank& self) {
    const auto seed = [](uint64_t channel, uint64_t from, uint64_t to, uint64_t message) {
      return ((channel * 8 + from) * 8 + to) * 1000 + message;
    };
    for (uint64_t message = 0; message < 20; ++message) {
      for (int channel = 2; channel >= 0; --channel) {
        for (const int peer : self.peers()) {
          self.send(self.transport.sender(channel, peer), message % 2 == 0 ? 24 : 190,
                    seed(channel, self.rank, peer, message));
        }
      }
      for (int channel = 0; channel < 3; ++channel) {
        for (const int peer : self.peers()) {
          self.receive(self.transport.receiver(channel, peer), message % 2 == 0 ? 24 : 190,
                       seed(channel, peer, self.rank, message));
        }
      }
      if (!self.failure.empty()) return;
    }
  });
}

TEST_CASE(
    "a pace offers buffers in place and signals, but no references in slots and no publisher") {
  check(Medium::kPaced, {.ranks = 2, .slot_bytes = kSlot}, [](Rank& self) {
    const Capabilities can = self.transport.capabilities();
    self.expect(can.references && can.signals && can.delays && !can.publish, "capabilities");
    self.expect(!self.transport.sender(0, 1 - self.rank).takes_references(), "takes references");
    self.expect(self.transport.sender(0, 1 - self.rank).capacity() == kSlot - 8, "capacity");
    int value = 0;
    self.expect(self.transport.refer(&value, sizeof(value)).kind == Reference::kAddress,
                "reference");
  });
}

TEST_CASE("a publisher reaches all its readers and waits for the slowest") {
  const Medium medium = any_mapped_medium();
  const int readers = GENERATE(1, 2, 3, 4);
  const uint32_t depth = GENERATE(1u, 3u);
  const shm::FifoSizes shape{
      .ranks = readers + 1, .slot_bytes = 64, .publish_depth = depth, .publish_slot_bytes = kSlot};
  check(medium, shape, [depth](Rank& self) {
    constexpr uint64_t kMessages = 63;
    const int slow = self.ranks - 1;
    const auto size = [](uint64_t message) { return edge_sizes(kSlot)[message % 21]; };
    if (self.rank == 0) {
      Sender& publisher = self.transport.publisher(0);
      for (uint64_t i = 0; i < depth; ++i) self.send(publisher, size(i), i);
      // All readers but the slow one say that they have released everything: still no credit.
      for (int peer = 1; peer < slow; ++peer) self.receive(self.transport.receiver(0, peer), 8, 5);
      self.expect(publisher.try_acquire(300) == nullptr, "did not wait for the slow reader");
      self.expect(!publisher.drained(), "drained without the slow reader");
      uint64_t sent = depth;
      for (; sent < kMessages && size(sent) <= 8; ++sent) self.send(publisher, size(sent), sent);
      self.send(self.transport.sender(0, slow), 8, 6);
      for (uint64_t i = sent; i < kMessages; ++i) self.send(publisher, size(i), i);
      self.until([&] { return publisher.drained(); }, "drained()");
      return;
    }
    if (self.rank == slow) self.receive(self.transport.receiver(0, 0), 8, 6);
    for (uint64_t i = 0; i < kMessages && self.failure.empty(); ++i) {
      self.receive(self.transport.subscription(0, 0), size(i), i);
      if (i + 1 == depth && self.rank != slow) self.send(self.transport.sender(0, 0), 8, 5);
    }
  });
}

TEST_CASE("every rank publishes to every other at once") {
  const Medium medium = any_mapped_medium();
  const shm::FifoSizes shape{
      .ranks = 4, .channels = 2, .slot_bytes = 64, .publish_depth = 2, .publish_slot_bytes = 300};
  check(medium, shape, [](Rank& self) {
    for (uint64_t i = 0; i < 50 && self.failure.empty(); ++i) {
      for (int channel = 0; channel < 2; ++channel) {
        self.send(self.transport.publisher(channel), i * 7 % 301,
                  i * 100 + self.rank * 10 + channel);
      }
      for (const int peer : self.peers()) {
        for (int channel = 0; channel < 2; ++channel) {
          self.receive(self.transport.subscription(channel, peer), i * 7 % 301,
                       i * 100 + static_cast<uint64_t>(peer) * 10 + channel);
        }
      }
    }
  });
}

void send_reference(Rank& self, int to, const Reference& reference) {
  Sender& sender = self.transport.sender(0, to);
  std::byte* const slot = self.acquire(sender, sizeof(reference));
  if (slot == nullptr) return;
  std::memcpy(slot, &reference, sizeof(reference));
  self.expect(sender.try_publish(sizeof(reference), 0), "publish");
}
/// The memory that the reference is to.
std::byte* receive_reference(Rank& self, int from, size_t bytes) {
  Delivery delivery{};
  Receiver& receiver = self.transport.receiver(0, from);
  if (!self.until([&] { return receiver.try_peek(&delivery); }, "the reference")) return nullptr;
  Reference reference;
  std::memcpy(&reference, delivery.data, sizeof(reference));
  std::byte* const memory = self.transport.resolve(from, reference, bytes);
  self.expect(memory != nullptr, "cannot resolve");
  return memory;
}

TEST_CASE("references show the sender's own memory, and only memory that can be shared") {
  const Medium medium = any_mapped_medium();
  const bool threads = medium == Medium::kThreads;
  const shm::FifoSizes shape{
      .ranks = 2, .depth = 2, .slot_bytes = 64, .publish_depth = 2, .publish_slot_bytes = 64};
  check(medium, shape, [threads](Rank& self) {
    constexpr size_t kBytes = 5000;
    Transport& transport = self.transport;
    if (self.rank == 1) {
      self.receive(transport.receiver(0, 0), kBytes, 4);
      self.receive(transport.subscription(0, 0), kBytes - 100, 4);
      // The sender's memory can be written in place, too.
      std::byte* const memory = receive_reference(self, 0, kBytes);
      if (memory == nullptr) return;
      memory[17] = std::byte{200};
      return transport.receiver(0, 0).release();
    }
    std::vector<std::byte> plain(kBytes);
    const auto kind = transport.refer(plain.data(), kBytes).kind;
    self.expect(kind == (threads ? Reference::kAddress : Reference::kNone), "plain memory");
    self.expect(transport.refer(nullptr, 0).kind == Reference::kNone, "null");
    auto* memory = static_cast<std::byte*>(alloc(kBytes));
    if (memory == nullptr) return self.expect(false, "no library memory");
    const Reference reference = transport.refer(memory, kBytes);
    self.expect(reference.kind == (threads ? Reference::kAddress : Reference::kArena),
                "library memory");
    if (!threads) {
      const ArenaView own = own_arena();
      const auto to_the_end = static_cast<size_t>(own.base + own.bytes - memory);
      self.expect(transport.refer(memory, to_the_end).kind == Reference::kArena, "to the end");
      self.expect(transport.refer(memory, to_the_end + 1).kind == Reference::kNone, "past the end");
    }
    for (size_t i = 0; i < kBytes; ++i) memory[i] = pattern(4, i);
    Sender& sender = transport.sender(0, 1);
    self.expect(sender.try_publish_reference(reference, kBytes, 4 * 3 + 1), "refused");
    self.expect(transport.publisher(0).try_publish_reference(reference, kBytes - 100, 4 * 3 + 1),
                "publisher refused");
    self.until([&] { return sender.drained() && transport.publisher(0).drained(); }, "drained()");
    send_reference(self, 1, reference);
    self.until([&] { return sender.drained(); }, "drained()");
    self.expect(memory[17] == std::byte{200}, "the peer's write is not seen");
    rondo::dealloc(memory);
  });
}

TEST_CASE("signals rise, and carry what was written before them") {
  const Medium medium = any_mapped_medium();
  check(medium, {.ranks = 2, .channels = 2, .slot_bytes = 64}, [](Rank& self) {
    Transport& transport = self.transport;
    const int peer = 1 - self.rank;
    auto* mine = static_cast<uint64_t*>(alloc(64));
    if (mine == nullptr) return self.expect(false, "no library memory");
    send_reference(self, peer, transport.refer(mine, 64));
    const auto* theirs =
        reinterpret_cast<const uint64_t*>(receive_reference(self, peer, sizeof(uint64_t)));
    if (theirs == nullptr) return;
    transport.receiver(0, peer).release();

    // Turns: write and signal on an odd count, the peer answers with the even one.
    uint64_t last = 0;
    for (uint64_t turn = 1; turn <= 300 && self.failure.empty(); ++turn) {
      *mine = turn * 10 + static_cast<uint64_t>(self.rank);
      transport.signal(1, 2 * turn);
      self.until(
          [&] {
            const uint64_t now = transport.seen(1, peer);
            self.expect(now >= last, "a signal fell");
            last = now;
            return now >= 2 * turn;
          },
          "the peer's signal");
      self.expect(*theirs == turn * 10 + static_cast<uint64_t>(peer), "stale data after a signal");
      self.expect(transport.seen(0, peer) == 0, "another channel's signal moved");
      transport.signal(1, 2 * turn + 1);  // has read: the peer may write again
      self.until([&] { return transport.seen(1, peer) >= 2 * turn + 1; }, "the peer's answer");
    }
    self.expect(transport.seen(1, self.rank) == 601 || !self.failure.empty(), "own signal");
  });
}

}  // namespace
}  // namespace rondo::transport::test
