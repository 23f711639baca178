// Ranks as threads and as forks; a meeting place in shared memory where forks find each other's
// arenas.
#include "tests/transport/ranks.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include "tests/transport/cable.hpp"
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
  Address addresses[16];               // over UCX
  std::atomic<int> moved, cabled, up;  // into network namespaces of their own
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
                                std::byte* base, std::vector<ArenaView> arenas) {
  auto made = shm::create(shape, rank, base, std::move(arenas), !is_forked(medium));
  if (!made.ok()) return nullptr;
  const auto paced = [](std::unique_ptr<Transport> inner) {
    return pace(std::move(inner), {.bytes_per_second = 2e9, .latency_seconds = 5e-6});
  };
  const auto lazily = [&] { return lazy(std::move(*made), rank, shape.ranks, shape.channels); };
  switch (medium) {
    case Medium::kThreads:
    case Medium::kForks:
      return std::move(*made);
    case Medium::kPaced:
      return paced(std::move(*made));
    case Medium::kLazy:
    case Medium::kLazyForks:
      return lazily();
    case Medium::kPacedLazy:
      return paced(lazily());
    case Medium::kMixed:
      return lazy_between(std::move(*made), rank, shape.ranks, shape.channels);
    case Medium::kUcx:
    case Medium::kUcxForks:
    case Medium::kUcxHosts:
      return nullptr;
  }
  return nullptr;
}

/// Moves this process into a network of its own, with a cable to the other's.
std::string plug_in(MeetingPlace& place, int rank) {
  if (std::string failure = leave_network(); !failure.empty()) return failure;
  place.cards[rank].pid = ::getpid();
  if (!wait_for_all(place.moved, 2)) return "not all ranks moved";
  if (rank == 0) {
    if (std::string failure = lay_cable(place.cards[1].pid); !failure.empty()) return failure;
  }
  if (!wait_for_all(place.cabled, 2)) return "no cable";
  if (std::string failure = take_address(rank + 1); !failure.empty()) return failure;
  return wait_for_all(place.up, 2) ? await_carrier() : "not all ranks have an address";
}

std::string ucx_rank(Medium medium, MeetingPlace& place, const shm::FifoSizes& shape, int rank,
                     const std::function<void(Rank&)>& body) {
  const bool cabled = medium == Medium::kUcxHosts;
  if (cabled) {
    if (std::string failure = plug_in(place, rank); !failure.empty()) return failure;
  }
  auto opened = ucx::open({.channels = shape.channels,
                           .depth = shape.depth,
                           .slot_bytes = shape.slot_bytes,
                           .interface = cabled ? kCable : "lo"});
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

std::vector<std::string> run_threads(Medium medium, const shm::FifoSizes& shape,
                                     const std::function<void(Rank&)>& body) {
  auto segment = Segment::create("test", shm::bytes_needed(shape) + sizeof(MeetingPlace));
  if (!segment.ok()) return {segment.status().to_string()};
  auto* place = reinterpret_cast<MeetingPlace*>(segment->base() + shm::bytes_needed(shape));
  std::vector<std::string> failures(static_cast<size_t>(shape.ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      std::string& failure = failures[static_cast<size_t>(rank)];
      if (is_ucx(medium)) {
        failure = ucx_rank(medium, *place, shape, rank, body);
      } else {
        failure = run_body(make(medium, shape, rank, segment->base(), {}), shape, rank, body);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return failures;
}

std::string forked_rank(Medium medium, const shm::FifoSizes& shape, int rank, std::byte* base,
                        const std::function<void(Rank&)>& body) {
  auto* place = reinterpret_cast<MeetingPlace*>(base + shm::bytes_needed(shape));
  if (is_ucx(medium)) return ucx_rank(medium, *place, shape, rank, body);
  const auto own = export_arena();
  if (!own.ok()) return own.status().to_string();
  place->cards[rank] = {::getpid(), own.value().fd, own.value().bytes};
  if (!wait_for_all(place->arrived, shape.ranks)) return "not all ranks arrived";
  std::vector<ArenaView> arenas;
  for (int peer = 0; peer < shape.ranks; ++peer) {
    const MeetingPlace::Card& card = place->cards[peer];
    const std::string path = "/proc/" + std::to_string(card.pid) + "/fd/" + std::to_string(card.fd);
    auto view = attach_arena(UniqueFd(::open(path.c_str(), O_RDWR | O_CLOEXEC)), card.bytes);
    if (!view.ok()) return view.status().to_string();
    arenas.push_back(std::move(*view));
  }
  if (!wait_for_all(place->attached, shape.ranks)) return "not all ranks attached";
  if (arenas[static_cast<size_t>(rank)].base != own_arena().base) return "own arena mapped twice";
  return run_body(make(medium, shape, rank, base, std::move(arenas)), shape, rank, body);
}

std::vector<std::string> run_forks(Medium medium, const shm::FifoSizes& shape,
                                   const std::function<void(Rank&)>& body) {
  auto segment = Segment::create("test", shm::bytes_needed(shape) + sizeof(MeetingPlace));
  if (!segment.ok()) return {segment.status().to_string()};
  std::vector<pid_t> children;
  std::vector<UniqueFd> pipes;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    int ends[2];
    if (::pipe(ends) != 0) return {"no pipe"};
    pipes.emplace_back(ends[0]);
    UniqueFd writing(ends[1]);
    const pid_t child = ::fork();
    if (child == 0) {
      const std::string failure = forked_rank(medium, shape, rank, segment->base(), body);
      const auto written = ::write(writing.get(), failure.data(), failure.size());
      ::_exit(failure.empty() && written == 0 ? 0 : 1);
    }
    children.push_back(child);
  }
  std::vector<std::string> failures;
  for (size_t rank = 0; rank < children.size(); ++rank) {
    std::string text;
    char buffer[512];
    ssize_t got = 0;
    while ((got = ::read(pipes[rank].get(), buffer, sizeof(buffer))) > 0) {
      text.append(buffer, static_cast<size_t>(got));
    }
    int status = 0;
    ::waitpid(children[rank], &status, 0);
    if (status != 0 && text.empty()) text = "rank ended with status " + std::to_string(status);
    failures.push_back(text);
  }
  return failures;
}

}  // namespace

const char* to_string(Medium medium) {
  switch (medium) {
    case Medium::kThreads:
      return "threads";
    case Medium::kForks:
      return "forks";
    case Medium::kPaced:
      return "paced";
    case Medium::kLazy:
      return "lazy";
    case Medium::kLazyForks:
      return "lazy forks";
    case Medium::kPacedLazy:
      return "paced lazy";
    case Medium::kMixed:
      return "mixed";
    case Medium::kUcx:
      return "UCX";
    case Medium::kUcxForks:
      return "UCX forks";
    case Medium::kUcxHosts:
      return "UCX hosts";
  }
  return "?";
}

bool is_available(Medium medium) {
  const auto says = [](const char* what, const std::string& reason) {
    if (reason.rfind("ended by signal", 0) == 0) return true;  // no reason to skip
    if (!reason.empty()) std::fprintf(stderr, "skipped over %s: %s\n", what, reason.c_str());
    return reason.empty();
  };
  if (!is_ucx(medium)) return true;
  static const bool has_ucx = says(
      "UCX",
      in_child([] { return ucx::open({.slot_bytes = 1, .interface = "lo"}).status().message(); }));
  if (!has_ucx || medium != Medium::kUcxHosts) return has_ucx;
  static const bool has_hosts = says("two hosts", why_no_cables());
  return has_hosts;
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

void Rank::flush() {
  for (int link = 0; link < channels * ranks && failure.empty(); ++link) {
    const int channel = link / ranks, peer = link % ranks;
    if (peer == rank) continue;
    Sender& sender = transport.sender(channel, peer);
    Receiver& receiver = transport.receiver(channel, peer);
    until([&] { return sender.flushed() && receiver.flushed(); }, "flushed()");
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
  return is_forked(medium) ? run_forks(medium, shape, body) : run_threads(medium, shape, body);
}

}  // namespace rondo::transport::test
