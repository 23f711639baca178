// Bytes that no rank sent: through the parsers directly, and over the rendezvous socket while a job
// forms.
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <functional>
#include <random>

#include "comm/bootstrap/connection/wire.hpp"
#include "comm/bootstrap/session/bootstrap.hpp"
#include "tests/comm/bootstrap/frame_helpers.hpp"
#include "tests/comm/bootstrap/meeting_helpers.hpp"
#include "tests/harness/catch.hpp"
#include "tests/harness/rank_group.hpp"

namespace rondo {
namespace {

using comm::Frame;
using comm::FrameHeader;
using comm::FrameKind;
using comm::FrameParser;
using comm::Hello;
using comm::HelloVerdict;
using comm::judge;
using testing::expect;
using testing::ForkGang;
using testing::Link;
using testing::TempDirectory;
using transport::UniqueFd;

/// A connection to rank 0, whose socket the caller has seen.
UniqueFd connect_to(const TempDirectory& place) {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof address.sun_path, "%s/world.sock", place.path().c_str());
  // Between its bind and its listen, and while its queue is full, rank 0 refuses.
  while (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    expect(errno == ECONNREFUSED, "connect: " + std::string(std::strerror(errno)));
  }
  return fd;
}

TEST_CASE("hellos are judged field by field", "[bootstrap]") {
  const comm::Challenge challenge = comm::make_challenge();
  const comm::Expected expected{.world_size = 2,
                                .name = comm::pack_name("world"),
                                .job = comm::pack_job("slurm-7-0"),
                                .key = comm::key_of("s3cret")};
  const Hello good = good_hello(1, 2, challenge);
  const auto verdict = [&](const Hello& hello) { return judge(hello, challenge, expected); };
  REQUIRE(verdict(good) == HelloVerdict::kAccept);
  Hello other = good;
  other.version += 1;
  CHECK(verdict(other) == HelloVerdict::kVersion);
  other.magic ^= 1;
  CHECK(verdict(other) == HelloVerdict::kGarbage);
  // With a proof of their own these come from the job itself ...
  const auto changed = [&](const std::function<void(Hello&)>& change) {
    Hello hello = good;
    change(hello);
    comm::prove(hello, challenge, expected.key);
    return verdict(hello);
  };
  CHECK(changed([](Hello& h) { h.rank = 2; }) == HelloVerdict::kGarbage);
  CHECK(changed([](Hello& h) { h.world_size = 3; }) == HelloVerdict::kWorldSize);
  CHECK(changed([](Hello& h) { h.name = comm::pack_name("world.1"); }) == HelloVerdict::kName);
  CHECK(changed([](Hello& h) { h.job = comm::pack_job("slurm-8-0"); }) == HelloVerdict::kName);
  // A rank without the launcher's variables.
  CHECK(changed([](Hello& h) { h.job = {}; }) == HelloVerdict::kAccept);
  // ... and without it nothing after the version can be changed, not a single byte.
  for (size_t at = offsetof(Hello, rank); at < sizeof good; ++at) {
    Hello bad = good;
    reinterpret_cast<unsigned char*>(&bad)[at] ^= 0x80;
    INFO("byte " << at);
    REQUIRE(verdict(bad) == HelloVerdict::kSecret);
  }
  // Recorded, and played to another challenge.
  REQUIRE(judge(good, comm::make_challenge(), expected) == HelloVerdict::kSecret);
  REQUIRE(verdict(good_hello(1, 2, challenge, "")) == HelloVerdict::kSecret);
}

TEST_CASE("rank 0's proof is its own, for one hello only", "[bootstrap]") {
  const comm::Challenge challenge = comm::make_challenge();
  const comm::Digest key = comm::key_of("s3cret");
  const Hello hello = good_hello(1, 2, challenge), other = good_hello(1, 2, challenge);
  const comm::Digest proof = comm::counter_proof(hello, challenge, key);
  REQUIRE(comm::equal(proof, comm::counter_proof(hello, challenge, key)));
  REQUIRE_FALSE(comm::equal(proof, hello.proof));  // echoing the rank's own proves nothing
  REQUIRE_FALSE(comm::equal(proof, comm::counter_proof(other, challenge, key)));
  REQUIRE_FALSE(comm::equal(proof, comm::counter_proof(hello, comm::make_challenge(), key)));
  REQUIRE_FALSE(comm::equal(proof, comm::counter_proof(hello, challenge, comm::key_of(""))));
}

TEST_CASE("frames come out whole however they are cut", "[bootstrap]") {
  std::mt19937 random(1);
  std::string stream;
  std::vector<std::string> payloads;
  for (uint32_t i = 1; i <= 200; ++i) {
    payloads.push_back(std::string(random() % 300, static_cast<char>(i)));
    stream += frame_bytes(FrameKind::kGather, i, payloads.back());
  }
  FrameParser parser(300);
  std::vector<Frame> frames;
  for (size_t at = 0; at < stream.size();) {
    const size_t count = std::min<size_t>(1 + random() % 50, stream.size() - at);
    parser.feed(stream.data() + at, count);
    at += count;
    while (true) {
      auto frame = parser.next();
      REQUIRE(frame.ok());
      if (!*frame) break;
      frames.push_back(std::move(**frame));
    }
  }
  REQUIRE(frames.size() == payloads.size());
  for (uint32_t i = 0; i < frames.size(); ++i) {
    REQUIRE(frames[i].sequence == i + 1);
    REQUIRE(frames[i].payload == payloads[i]);
  }
}

TEST_CASE("a frame that is too long is refused by its header alone", "[bootstrap]") {
  FrameParser parser(100);
  const std::string bytes = frame_bytes(FrameKind::kGather, 1, std::string(101, 'x'));
  parser.feed(bytes.data(), sizeof(FrameHeader));
  REQUIRE(parser.next().status().message().find("101 bytes") != std::string::npos);
}

TEST_CASE("garbage on the socket does not stop a job", "[bootstrap]") {
  TempDirectory place;
  ForkGang gang(4, [&](int i, Link& link) {
    if (i == 3) {
      link.await("attack");
      std::mt19937 random(3);
      // Slow ones that never finish their hello, more than are let wait.
      std::vector<UniqueFd> held;
      for (int k = 0; k < 300; ++k) {
        UniqueFd fd = connect_to(place);
        const comm::Challenge challenge = read_challenge(fd);
        Hello hello = good_hello(1, 3, challenge);
        std::string noise(1 + random() % 4096, '\0');
        for (char& c : noise) c = static_cast<char>(random());
        if (k % 5 == 0) send_bytes(fd, noise.data(), noise.size());
        if (k % 5 == 1) send_bytes(fd, &hello, random() % sizeof hello);
        if (k % 5 == 3) {
          hello.rank = 77;
          comm::prove(hello, challenge, comm::key_of("s3cret"));
          send_bytes(fd, &hello, sizeof hello);
          (void)hear_out(fd);  // returns because it is closed
        }
        if (k % 5 == 4) {
          hello.proof[5] ^= 1;
          send_bytes(fd, &hello, sizeof hello);
        }
        if (k % 2 == 0) held.push_back(std::move(fd));
      }
      link.announce("attacked");
      link.await("leave");
      return;
    }
    if (i == 1) link.await("go");
    meet(identity(i, 3, place));
  });
  await_in(gang, [&] { return std::filesystem::exists(place.path() + "/world.sock"); });
  gang.tell(3, "attack");
  gang.await(3, "attacked");
  gang.tell(1, "go");
  for (int rank : {0, 1, 2}) gang.await_end(rank);
  gang.tell(3, "leave");
  testing::require_all_ok(gang.join());
}

TEST_CASE("a rank that goes mad after its hello is an error for all", "[bootstrap]") {
  TempDirectory place;
  ForkGang gang(3, [&](int i, Link& link) {
    if (i == 2) {
      link.await("go");
      UniqueFd fd = connect_to(place);
      const Hello hello = good_hello(2, 4, read_challenge(fd));
      send_bytes(fd, &hello, sizeof hello);
      const std::string noise(1000, 'z');
      send_bytes(fd, noise.data(), noise.size());
      link.await("leave");
      return;
    }
    expect_no_meeting(identity(i, 4, place), kLong, Code::kBootstrap, {"rank 2 (pid "});
  });
  await_guests(gang, 1);
  gang.tell(2, "go");
  for (int rank : {0, 1}) gang.await_end(rank);
  gang.tell(2, "leave");
  testing::require_all_ok(gang.join());
}

TEST_CASE("another user is turned away before a word is said", "[bootstrap]") {
  if (geteuid() != 0) {
    WARN("not root: cannot become another user");
    return;
  }
  TempDirectory place;
  ForkGang gang(3, [&](int i, Link& link) {
    if (i == 2) {
      link.await("go");
      expect(setuid(65534) == 0, "setuid");
      UniqueFd fd = connect_to(place);
      expect(read_challenge(fd).magic == 0, "another user was spoken to");
      link.announce("turned away");
      return;
    }
    if (i == 1) link.await("go");
    meet(identity(i, 2, place));
  });
  // The directory's mode alone keeps others out; opened wide, so that the credentials have to.
  const std::string socket = place.path() + "/world.sock";
  await_in(gang, [&] { return std::filesystem::exists(socket); });
  REQUIRE(chmod(place.path().c_str(), 0755) == 0);
  REQUIRE(chmod(socket.c_str(), 0777) == 0);
  gang.tell(2, "go");
  gang.await(2, "turned away");
  REQUIRE(chmod(place.path().c_str(), 0700) == 0);
  gang.tell(1, "go");
  testing::require_all_ok(gang.join());
}

TEST_CASE("a peer's text is bounded and moves no cursor", "[bootstrap]") {
  std::string payload = comm::pack_status({Code::kTimeout, "\x1b[2J\rlost"});
  CHECK(comm::unpack_status(payload).message() == "?[2J?lost");
  payload.append(100'000, 'x');
  CHECK(comm::unpack_status(payload).message().size() == 4096);
}

}  // namespace
}  // namespace rondo
