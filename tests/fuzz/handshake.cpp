// Hellos and challenges. Input: a hello and a challenge, cut anywhere.
#include "comm/bootstrap/connection/wire.hpp"
#include "tests/comm/bootstrap/meeting_helpers.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace rondo::fuzz {
namespace {

using comm::HelloVerdict;

struct Handshake {
  comm::Challenge challenge = comm::make_challenge();
  comm::Hello hello = good_hello(1, 4, challenge);
};

/// The one that rank 0 accepts.
const Handshake& good() {
  static const Handshake handshake;
  return handshake;
}

/// What is seen early is what is seen at the end.
template <class Message>
std::optional<HelloVerdict> check_beginnings(const Message& message) {
  std::optional<HelloVerdict> seen;
  for (size_t received = 0; received <= sizeof message; ++received) {
    const auto now = judge_beginning(message, received);
    must(!seen || now == seen, "a verdict stays");
    must(!now || *now == HelloVerdict::kGarbage || *now == HelloVerdict::kVersion, "two verdicts");
    seen = now;
  }
  return seen;
}

}  // namespace

void run(std::string_view input) {
  Reader reader(input);
  const auto hello = reader.take<comm::Hello>();
  const auto challenge = reader.take<comm::Challenge>();
  const comm::Expected expected{
      .world_size = 4, .name = comm::pack_name("world"), .job = {}, .key = comm::key_of("s3cret")};
  const HelloVerdict verdict = judge(hello, good().challenge, expected);
  const auto early = check_beginnings(hello);
  if (early) must(*early == verdict, "the early verdict is the last");
  if (!early) must(verdict != HelloVerdict::kVersion, "a version is seen early");
  const bool is_good = bytes_of(hello) == bytes_of(good().hello);
  must((verdict == HelloVerdict::kAccept) == is_good, "only the proven hello is accepted");
  must(is_good || verdict <= HelloVerdict::kSecret, "nothing unproven is said to be of this job");
  check_beginnings(challenge);
  must(!comm::equal(comm::counter_proof(hello, challenge, expected.key), hello.proof), "no echo");
}

std::vector<std::string> seeds() {
  comm::Hello version = good().hello, garbage = good().hello;
  version.version = 2;
  garbage.magic = 0;
  const std::string challenge = bytes_of(good().challenge);
  return {bytes_of(good().hello) + challenge, bytes_of(version) + challenge,
          bytes_of(garbage) + challenge, bytes_of(good().hello)};
}

}  // namespace rondo::fuzz
