// The UCX transport's own promises: what happens to the links when a peer is killed, leaves, or
// writes nonsense, what flushed() guarantees, and how a transport ends.
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>

#include "tests/harness/catch.hpp"
#include "tests/harness/contains.hpp"
#include "tests/transport/child.hpp"
#include "tests/transport/ranks.hpp"
#include "transport/memory/unique_fd.hpp"
#include "transport/ucx/context.hpp"
#include "transport/ucx/endpoint.hpp"
#include "transport/ucx/factory.hpp"
#include "transport/ucx/wire.hpp"

namespace rondo::transport::test {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

ucx::Settings settings(size_t slot_bytes, uint32_t depth = 4) {
  return {.channels = 1, .depth = depth, .slot_bytes = slot_bytes, .interface = "lo"};
}

/// `address` as if it came from slots of `slot_bytes`.
std::string disguised(std::string address, size_t slot_bytes) {
  const uint64_t claimed = slot_bytes;
  std::memcpy(address.data() + offsetof(ucx::AddressHeader, slot_bytes), &claimed, sizeof(claimed));
  return address;
}

/// Two ranks of one thread. Either thinks that the other's slots are as large as its own.
struct Pair {
  explicit Pair(size_t first = 1000, size_t second = 1000) {
    std::unique_ptr<ucx::Opened> opened[2];
    const size_t bytes[2] = {first, second};
    for (int rank = 0; rank < 2; ++rank) opened[rank] = ucx::open(settings(bytes[rank])).value();
    const std::string addresses[2] = {opened[0]->address(), opened[1]->address()};
    for (int rank = 0; rank < 2; ++rank) {
      std::vector<ucx::PeerAddress> peers(2);
      peers[static_cast<size_t>(1 - rank)] = {disguised(addresses[1 - rank], bytes[rank]),
                                              "rank " + std::to_string(1 - rank) + " on host b"};
      ranks[rank] = ucx::connect(std::move(opened[rank]), rank, std::move(peers)).value();
    }
  }
  Sender& sender(int rank) { return ranks[rank]->sender(0, 1 - rank); }
  Receiver& receiver(int rank) { return ranks[rank]->receiver(0, 1 - rank); }

  /// Pushes both ranks, while both exist, until `done`; false: not within 20 s.
  template <class Condition>
  bool until(Condition done) {
    const auto start = Clock::now();
    while (!done()) {
      for (int rank = 0; rank < 2; ++rank) {
        if (ranks[rank]) status[rank] = ranks[rank]->progress(0);
      }
      if (seconds_since(start) > 20) return false;
    }
    return true;
  }
  void send(int rank, size_t bytes, uint64_t word) {
    std::byte* slot = nullptr;
    REQUIRE(until([&] { return (slot = sender(rank).try_acquire(bytes)) != nullptr; }));
    std::memset(slot, static_cast<int>(word), bytes);
    REQUIRE(sender(rank).try_publish(bytes, word));
  }
  Delivery receive(int rank) {
    Delivery delivery{};
    REQUIRE(until([&] { return receiver(rank).try_peek(&delivery); }));
    return delivery;
  }
  /// Each has had a message of the other.
  void connect() {
    for (int rank = 0; rank < 2; ++rank) {
      send(rank, 8, 1);
      receive(1 - rank);
      receiver(1 - rank).release();
    }
    REQUIRE(until([&] { return sender(0).flushed() && sender(1).flushed(); }));
  }

  std::unique_ptr<Transport> ranks[2];
  Status status[2];
};

/// While it lives, new sockets of UCX take little, so that a rest of a message stays in UCX.
class NarrowSockets {
 public:
  explicit NarrowSockets(bool narrow) {
    for (const char* name : kNames) {
      if (narrow) ::setenv(name, "8k", 1);
    }
  }
  ~NarrowSockets() {
    for (const char* name : kNames) ::unsetenv(name);
  }
  NarrowSockets(const NarrowSockets&) = delete;
  NarrowSockets& operator=(const NarrowSockets&) = delete;

 private:
  static constexpr const char* kNames[] = {"UCX_TCP_SNDBUF", "UCX_TCP_RCVBUF"};
};

bool no_ucx() { return !is_available(Medium::kUcx); }

// The first test here: UCX is loaded once in a process.
TEST_CASE("loading UCX leaves the environment as it is, and to the threads that read it") {
  char** const before = environ;
  std::atomic<bool> ends = false;
  std::thread reader([&] {
    while (!ends) (void)std::getenv("NO_SUCH_VARIABLE");
  });
  const bool is_absent = no_ucx() || !ucx::open(settings(1000)).ok();
  ends = true;
  reader.join();
  if (is_absent) return;
  CHECK(environ == before);
  CHECK(std::getenv("UCX_WARN_UNUSED_ENV_VARS") == nullptr);
}

TEST_CASE("a message longer than the slot is shown without data, and the next one is read") {
  if (no_ucx()) return;
  Pair pair(1000, 2000);
  pair.send(1, 1500, 7);
  CHECK(pair.receive(0).data == nullptr);
  pair.receiver(0).release();
  pair.send(1, 1000, 8);
  const Delivery next = pair.receive(0);
  REQUIRE(next.data != nullptr);
  CHECK(next.bytes == 1000);
  CHECK(next.tag == 8);
}

/// A peer that writes what it likes: rank 1, beside a transport of rank 0.
struct Stranger {
  Stranger() : context(settings(1000)) {
    auto opened = ucx::open(settings(1000)).value();
    const std::string address = opened->address();
    REQUIRE(context.open().ok());
    std::vector<ucx::PeerAddress> peers(2);
    peers[1] = {context.address(), "rank 1 on host b"};
    channel.calls = &context.calls();
    channel.worker = context.worker(0);
    const ucx::PeerAddress victim_address{address, "the victim"};
    endpoint.emplace(channel,
                     ucx::split_address(victim_address, settings(1000), address).value()[0],
                     "the victim");
    endpoint->open();
    outbound.endpoint = &*endpoint;
    victim = ucx::connect(std::move(opened), 0, std::move(peers)).value();
    Delivery nothing{};
    victim->receiver(0, 1).try_peek(&nothing);
  }
  ~Stranger() {
    channel.closing = true;
    endpoint->close();
    while (!endpoint->is_closed()) push();
  }
  void push() {
    channel.calls->worker_progress(channel.worker);
    status = victim->progress(0);
  }
  void write(const void* data, size_t bytes, uint64_t tag) {
    endpoint->send(data, bytes, tag, &outbound);
    while (outbound.busy) push();
  }
  /// The victim's first message.
  Delivery delivery() {
    Delivery shown{};
    const auto start = Clock::now();
    while (!victim->receiver(0, 1).try_peek(&shown) && seconds_since(start) < 20) push();
    return shown;
  }

  ucx::UcxContext context;
  ucx::Channel channel;
  std::optional<ucx::Endpoint> endpoint;
  ucx::Outbound outbound;
  std::unique_ptr<Transport> victim;
  Status status;
};

TEST_CASE("messages that are no messages are shown without data") {
  if (no_ucx()) return;
  const auto shown = [](const void* message, size_t bytes) {
    Stranger stranger;
    stranger.write(message, bytes, ucx::tag_of(ucx::WireKind::kData, 1, 0));
    return stranger.delivery();
  };
  const Delivery cut = shown("short", 5);
  CHECK((cut.data == nullptr && cut.bytes == 0));
  const ucx::DataHeader late{
      .word = 5, .sequence = 6, .released = 0, .bytes = 0};  // slot 0 waits for 0
  CHECK(shown(&late, sizeof(late)).data == nullptr);
}

TEST_CASE("a credit for messages that were never sent fails the link") {
  if (no_ucx()) return;
  const auto failure_after = [](const void* message, size_t bytes) {
    Stranger stranger;
    stranger.write(message, bytes, ucx::tag_of(ucx::WireKind::kControl, 1, 0));
    const auto start = Clock::now();
    while (stranger.status.ok() && seconds_since(start) < 20) stranger.push();
    return stranger.status.message();
  };
  const ucx::ControlMessage greedy{.released = 1, .leaves = 0}, odd{.released = 0, .leaves = 2};
  for (const std::string& message :
       {failure_after(&greedy, sizeof(greedy)), failure_after(&odd, sizeof(odd)),
        failure_after(&greedy, 8), failure_after("a very long control message", 27)}) {
    CHECK_THAT(message, testing::contains("nonsense from rank 1 on host b"));
  }
}

TEST_CASE("an address that makes no sense is refused, with its rank") {
  if (no_ucx()) return;
  const auto refusal = [](const std::string& address) {
    std::vector<ucx::PeerAddress> peers(2);
    peers[1] = {address, "rank 1 on host b"};
    const Status status = ucx::connect(ucx::open(settings(1000)).value(), 0, peers).status();
    CHECK(status.code() == Code::kInvalidArgument);
    return status.message();
  };
  const std::string good = ucx::open(settings(1000)).value()->address();
  std::string other_magic = good, other_version = good, huge = good;
  other_magic[0] ^= 1;
  other_version[offsetof(ucx::AddressHeader, minor)] ^= 1;
  std::memset(huge.data() + sizeof(ucx::AddressHeader), 0xff, sizeof(uint32_t));
  CHECK_THAT(refusal("x"), testing::contains("rank 1 on host b is cut off"));
  CHECK_THAT(refusal(other_magic), testing::contains("is not one"));
  CHECK_THAT(refusal(other_version), testing::contains("RONDO_UCX"));
  CHECK_THAT(refusal(disguised(good, 999)), testing::contains("slots of 999 bytes"));
  CHECK_THAT(refusal(huge), testing::contains("is cut off"));
  CHECK_THAT(refusal(good.substr(0, good.size() - 1)), testing::contains("is cut off"));
  CHECK_THAT(refusal(good + "x"), testing::contains("is too long"));
}

TEST_CASE("settings that make no sense are refused; devices that do not exist are named") {
  if (no_ucx()) return;
  ucx::Settings wrong[] = {settings(0), settings(size_t{1} << 32), settings(8, 0), settings(8)};
  wrong[3].channels = 0;
  for (const ucx::Settings& refused : wrong) {
    CHECK(ucx::open(refused).status().code() == Code::kInvalidArgument);
  }
  ucx::Settings nowhere = settings(8);
  nowhere.interface = "rondo-none";
  if (std::getenv("UCX_NET_DEVICES") == nullptr) {
    CHECK_THAT(ucx::open(nowhere).status().message(), testing::contains("rondo-none"));
  }
}

/// Listens at the port of loopback, or at any for 0; returns the port.
int take_port(UniqueFd& socket, int port) {
  socket = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  socklen_t bytes = sizeof address;
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (::bind(socket.get(), any, bytes) != 0 || ::listen(socket.get(), 1) != 0) return -1;
  return ::getsockname(socket.get(), any, &bytes) == 0 ? ntohs(address.sin_port) : -1;
}

// UCX alone would look for one without end.
TEST_CASE("where no port of the range is free, that is an error") {
  if (no_ucx() || std::getenv("UCX_TCP_PORT_RANGE") != nullptr) return;
  UniqueFd first, second;
  int port = 0;
  do {
    port = take_port(first, 0);
    REQUIRE(port > 0);
  } while (port == 65535 || take_port(second, port + 1) < 0);
  ucx::Settings taken = settings(1000);
  taken.first_port = port;
  taken.last_port = port + 1;
  const Status status = ucx::open(taken).status();
  CHECK(status.code() == Code::kResourceExhausted);
  CHECK_THAT(status.message(), testing::contains("RONDO_PORTS is " + std::to_string(port) + "-"));
  second.reset();
  CHECK(ucx::open(taken).status().to_string() == Status().to_string());
  taken.channels = 2;
  CHECK(ucx::open(taken).status().code() == Code::kResourceExhausted);
}

TEST_CASE("what has flushed arrives although its rank calls progress() no more") {
  if (no_ucx()) return;
  const size_t bytes = GENERATE(size_t{8}, size_t{3000}, size_t{8000}, size_t{30'000});
  const bool narrow = GENERATE(false, true);
  INFO(bytes << " bytes" << (narrow ? ", sockets that take little" : ""));
  const NarrowSockets sockets(narrow);
  Pair pair(1 << 20, 1 << 20);
  pair.connect();
  uint64_t sent = 0;
  for (; pair.sender(0).try_acquire(bytes) != nullptr; ++sent) {
    REQUIRE(pair.sender(0).try_publish(bytes, sent));
  }
  REQUIRE(sent >= 4);
  REQUIRE(pair.until([&] { return pair.sender(0).flushed(); }));
  for (uint64_t i = 0; i < sent; ++i) {
    Delivery delivery{};
    const auto start = Clock::now();
    while (!pair.receiver(1).try_peek(&delivery) && seconds_since(start) < 20) {
      if (!pair.ranks[1]->progress(0).ok()) break;
    }
    REQUIRE(delivery.data != nullptr);
    CHECK(delivery.tag == i);
    CHECK(delivery.bytes == bytes);
    pair.receiver(1).release();
  }
}

TEST_CASE("a rank that leaves is no failure, until something is sent to it") {
  if (no_ucx()) return;
  Pair pair;
  pair.connect();
  pair.send(0, 500, 9);
  pair.ranks[0].reset();
  CHECK(pair.receive(1).tag == 9);  // still arrives
  pair.receiver(1).release();
  REQUIRE(pair.until([&] { return pair.sender(1).flushed(); }));
  CHECK(pair.status[1].ok());
  Delivery delivery{};
  CHECK_FALSE(pair.receiver(1).try_peek(&delivery));
  CHECK(pair.status[1].ok());
  CHECK(
      pair.until([&] { return pair.sender(1).try_acquire(1) == nullptr && !pair.status[1].ok(); }));
  CHECK(pair.status[1].code() == Code::kPeerDied);
  CHECK_THAT(pair.status[1].message(), testing::contains("rank 0 on host b"));
}

TEST_CASE("a transport ends in time with messages on their way in both directions") {
  if (no_ucx()) return;
  const size_t bytes = GENERATE(size_t{100}, size_t{1} << 20);
  Pair pair(1 << 20, 1 << 20);
  for (int rank = 0; rank < 2; ++rank) {
    while (std::byte* const slot = pair.sender(rank).try_acquire(bytes)) {
      std::memset(slot, 1, bytes);
      REQUIRE(pair.sender(rank).try_publish(bytes, 1));
    }
  }
  for (int rank = 0; rank < 2; ++rank) {
    const auto start = Clock::now();
    pair.ranks[rank].reset();
    CHECK(seconds_since(start) < 10);  // a second where nothing else runs
  }
}

TEST_CASE("a forked child leaves its copy of a transport alone") {
  if (no_ucx()) return;
  Pair pair;
  pair.connect();
  CHECK(in_child([&] {
          pair.ranks[0].reset();
          return std::string();
        }) == "");
  pair.send(0, 100, 3);
  CHECK(pair.receive(1).tag == 3);
}

void check(const shm::FifoSizes& shape, const std::function<void(Rank&)>& body) {
  for (const std::string& failure : run_ranks(Medium::kUcxForks, shape, body)) CHECK(failure == "");
}

TEST_CASE("thousands of slots wrap") {
  check({.ranks = 2, .depth = 3000, .slot_bytes = 64}, [](Rank& self) {
    for (uint64_t i = 0; i < 10'000 && self.failure.empty(); ++i) {
      if (self.rank == 0) self.send(self.transport.sender(0, 1), i % 65, i);
      if (self.rank == 1) self.receive(self.transport.receiver(0, 0), i % 65, i);
    }
  });
}

TEST_CASE("large messages pass in both directions") {
  check({.ranks = 2, .channels = 2, .depth = 3, .slot_bytes = 300'000}, [](Rank& self) {
    const int peer = 1 - self.rank;
    for (uint64_t i = 0; i < 30 && self.failure.empty(); ++i) {
      const int channel = static_cast<int>(i % 2);
      const size_t bytes = i * 9973 % 300'001;
      self.send(self.transport.sender(channel, peer), bytes, i);
      self.receive(self.transport.receiver(channel, peer), bytes, i);
    }
  });
}

TEST_CASE("a killed peer is named soon, whatever this rank waits for") {
  const bool waits_to_send = GENERATE(true, false);
  const shm::FifoSizes shape{.ranks = 2, .depth = 2, .slot_bytes = 100'000};
  INFO((waits_to_send ? "sending" : "receiving"));
  if (no_ucx()) return;
  const auto failures = run_ranks(Medium::kUcxForks, shape, [&](Rank& self) {
    const int peer = 1 - self.rank;
    Sender& sender = self.transport.sender(0, peer);
    Receiver& receiver = self.transport.receiver(0, peer);
    self.send(sender, 8, 1);
    self.receive(receiver, 8, 1);
    self.flush();
    if (self.rank == 1) ::kill(::getpid(), SIGKILL);
    const auto start = Clock::now();
    Status status;
    while (status.ok() && seconds_since(start) < 10) {
      Delivery delivery{};
      if (!waits_to_send) {
        receiver.try_peek(&delivery);
      } else if (sender.try_acquire(100'000) != nullptr) {
        sender.try_publish(100'000, 2);
      }
      status = self.transport.progress(0);
    }
    self.expect(status.code() == Code::kPeerDied, "is " + status.to_string());
    self.expect(status.message().find("rank 1") != std::string::npos, status.to_string());
    self.expect(!self.transport.progress(0).ok(), "the failure did not stay");
  });
  CHECK(failures[0] == "");
  CHECK(failures[1] == "ended by signal 9");
}

}  // namespace
}  // namespace rondo::transport::test
