// Ranks as threads and as forks; a meeting place in shared memory where forks find each other's
// arenas.
#include "tests/transport/ranks.hpp"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include "tests/transport/child.hpp"
#include "tests/transport/lazy.hpp"
#include "transport/pace/pace.hpp"
#include "transport/ucx/factory.hpp"

namespace rondo::transport::test {
namespace {

using Clock = std::chrono::steady_clock;

/// After the transport's own memory: what a forked rank shows the others so that they can map its
/// arena.
struct MeetingPlace {
  struct Card {
    pid_t pid;
    int fd;
    uint64_t bytes;
  };
  std::atomic<int> arrived;
  std::atomic<int> attached;
  Card cards[16];
  struct Address {
    size_t bytes;
    char text[8192];
  };
  Address addresses[16];              // over UCX
  alignas(64) std::byte wires[4096];  // of a pace
};

/// `counter` up by one, and wait until all ranks have come so far.
bool wait_for_all(std::atomic<int>& counter, int ranks) {
  ++counter;
  const auto deadline = Clock::now() + std::chrono::seconds(30);
  while (counter < ranks && Clock::now() < deadline) ::sched_yield();
  return counter == ranks;
}

std::string run_body(const std::unique_ptr<Transport>& transport, const shm::FifoSizes& shape,
                     int rank, const std::function<void(Rank&)>& body) {
  if (!transport) return "no transport";
  Rank self{.transport = *transport,
            .rank = rank,
            .ranks = shape.ranks,
            .channels = shape.channels,
            .failure = {}};
  body(self);
  self.flush();
  return self.failure;
}

std::unique_ptr<Transport> make(Medium medium, const shm::FifoSizes& shape, int rank,
                                std::byte* base, MeetingPlace& place,
                                std::vector<ArenaView> arenas) {
  auto made = shm::create(shape, rank, base, std::move(arenas), !is_forked(medium));
  if (!made.ok()) return nullptr;
  std::unique_ptr<Transport> transport = std::move(*made);
  if (medium == Medium::kPacedLazy) {
    transport = lazy(std::move(transport), rank, shape.ranks, shape.channels);
  }
  if (medium == Medium::kPaced || medium == Medium::kPacedLazy) {
    if (wires_bytes(shape.ranks, shape.channels) > sizeof(place.wires)) return nullptr;
    transport =
        pace(std::move(transport), {.bytes_per_second = 2e9, .latency_seconds = 5e-6},
             {.base = place.wires, .ranks = shape.ranks, .channels = shape.channels, .rank = rank});
  }
  return transport;
}

std::string ucx_rank(MeetingPlace& place, const shm::FifoSizes& shape, int rank,
                     const std::function<void(Rank&)>& body) {
  auto opened = ucx::open({.channels = shape.channels,
                           .depth = shape.depth,
                           .slot_bytes = shape.slot_bytes,
                           .interface = "lo"});
  if (!opened.ok()) return opened.status().to_string();
  const std::string& own = (*opened)->address();
  MeetingPlace::Address& shown = place.addresses[rank];
  if (own.size() > sizeof(shown.text)) return "an address of " + std::to_string(own.size());
  shown.bytes = own.size();
  std::memcpy(shown.text, own.data(), own.size());
  if (!wait_for_all(place.arrived, shape.ranks)) return "not all ranks arrived";
  std::vector<ucx::PeerAddress> peers;
  for (int peer = 0; peer < shape.ranks; ++peer) {
    const MeetingPlace::Address& of = place.addresses[peer];
    peers.push_back({.address = peer == rank ? "" : std::string(of.text, of.bytes),
                     .name = "rank " + std::to_string(peer)});
  }
  auto transport = ucx::connect(std::move(*opened), rank, std::move(peers));
  if (!transport.ok()) return transport.status().to_string();
  return run_body(*transport, shape, rank, body);
}

/// Maps the arenas of all forked ranks.
std::string attach_all(MeetingPlace& place, int ranks, int rank, std::vector<ArenaView>& arenas) {
  const auto own = export_arena();
  if (!own.ok()) return own.status().to_string();
  place.cards[rank] = {::getpid(), own.value().fd, own.value().bytes};
  if (!wait_for_all(place.arrived, ranks)) return "not all ranks arrived";
  for (int peer = 0; peer < ranks; ++peer) {
    const MeetingPlace::Card& card = place.cards[peer];
    const std::string path = "/proc/" + std::to_string(card.pid) + "/fd/" + std::to_string(card.fd);
    auto view = attach_arena(UniqueFd(::open(path.c_str(), O_RDWR | O_CLOEXEC)), card.bytes);
    if (!view.ok()) return view.status().to_string();
    arenas.push_back(std::move(*view));
  }
  if (!wait_for_all(place.attached, ranks)) return "not all ranks attached";
  const bool is_own = arenas[static_cast<size_t>(rank)].base == own_arena().base;
  return is_own ? "" : "own arena mapped twice";
}

}  // namespace

const char* to_string(Medium medium) {
  constexpr const char* kNames[] = {"threads", "forks", "paced", "paced lazy", "UCX", "UCX forks"};
  return kNames[static_cast<size_t>(medium)];
}

bool is_available(Medium medium) {
  if (!is_ucx(medium)) return true;
  static const bool has_ucx = [] {
    const std::string reason =
        in_child([] { return ucx::open({.slot_bytes = 1, .interface = "lo"}).status().message(); });
    // A child that ends otherwise than by saying why is no reason to skip.
    if (reason.empty() || reason.rfind("ended ", 0) == 0) return true;
    std::fprintf(stderr, "skipped over UCX: %s\n", reason.c_str());
    return false;
  }();
  return has_ucx;
}

bool Rank::until(const std::function<bool()>& condition, const std::string& what) {
  const auto deadline = Clock::now() + std::chrono::seconds(30);
  const bool pushes = transport.capabilities().needs_progress;
  for (int polls = 0; !condition(); ++polls) {
    for (int channel = 0; pushes && channel < channels; ++channel) {
      const Status status = transport.progress(channel);
      expect(status.ok(), "progress: " + status.to_string());
    }
    if (Clock::now() > deadline) {
      expect(false, "gave up waiting for " + what);
      return false;
    }
    // On a busy machine a rank that only yields waits a whole time slice for each message.
    if (polls < 50) {
      ::sched_yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
  return true;
}

std::byte pattern(uint64_t seed, size_t index) {
  return static_cast<std::byte>((seed * 131 + index * 7 + index / 256 + 1) & 0xff);
}

std::byte* Rank::acquire(Sender& sender, size_t bytes) {
  std::byte* slot = nullptr;
  until([&] { return (slot = sender.try_acquire(bytes)) != nullptr; }, "a free slot");
  return slot;
}

std::vector<int> Rank::peers() const {
  std::vector<int> peers;
  for (int peer = 0; peer < ranks; ++peer) {
    if (peer != rank) peers.push_back(peer);
  }
  return peers;
}

void Rank::flush() {
  for (int channel = 0; channel < channels; ++channel) {
    for (const int peer : peers()) {
      if (!failure.empty()) return;
      Sender& sender = transport.sender(channel, peer);
      Receiver& receiver = transport.receiver(channel, peer);
      until([&] { return sender.flushed() && receiver.flushed(); }, "flushed()");
    }
  }
}

void Rank::send(Sender& sender, size_t bytes, uint64_t seed) {
  std::byte* const slot = acquire(sender, bytes);
  if (slot == nullptr) return;
  for (size_t i = 0; i < bytes; ++i) slot[i] = pattern(seed, i);
  until([&] { return sender.try_publish(bytes, seed * 3 + 1); }, "publication");
}

void Rank::receive(Receiver& receiver, size_t bytes, uint64_t seed) {
  const std::string name = "message " + std::to_string(seed) + " of " + std::to_string(bytes);
  Delivery delivery{};
  if (!until([&] { return receiver.try_peek(&delivery); }, name)) return;
  expect(delivery.bytes == bytes, name + " has " + std::to_string(delivery.bytes) + " bytes");
  expect(delivery.tag == seed * 3 + 1, name + " has tag " + std::to_string(delivery.tag));
  expect(delivery.data != nullptr, name + " has no data");
  for (size_t i = 0; failure.empty() && i < bytes; ++i) {
    expect(delivery.data[i] == pattern(seed, i), name + " differs at byte " + std::to_string(i));
  }
  receiver.release();
}

std::vector<std::string> run_ranks(Medium medium, const shm::FifoSizes& shape,
                                   const std::function<void(Rank&)>& body) {
  if (!is_available(medium)) return {};
  constexpr size_t kLine = alignof(MeetingPlace);
  const size_t place_begins = (shm::bytes_needed(shape) + kLine - 1) / kLine * kLine;
  const auto segment = Segment::create("test", place_begins + sizeof(MeetingPlace));
  if (!segment.ok()) return {segment.status().to_string()};
  std::byte* const base = segment->base();
  auto& place = *reinterpret_cast<MeetingPlace*>(base + place_begins);
  const auto run = [&](int rank) {
    if (is_ucx(medium)) return ucx_rank(place, shape, rank, body);
    std::vector<ArenaView> arenas;
    std::string failure;
    if (is_forked(medium)) failure = attach_all(place, shape.ranks, rank, arenas);
    if (!failure.empty()) return failure;
    return run_body(make(medium, shape, rank, base, place, std::move(arenas)), shape, rank, body);
  };
  std::vector<std::string> failures(static_cast<size_t>(shape.ranks));
  std::vector<Child> children;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    if (is_forked(medium)) {
      children.emplace_back([&] { return run(rank); });
    } else {
      threads.emplace_back([&, rank] { failures[static_cast<size_t>(rank)] = run(rank); });
    }
  }
  for (size_t rank = 0; rank < children.size(); ++rank) failures[rank] = children[rank].text();
  for (std::thread& thread : threads) thread.join();
  return failures;
}

}  // namespace rondo::transport::test
