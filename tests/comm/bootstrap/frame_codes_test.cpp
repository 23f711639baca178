// The codes of a TCP connection's frames, without a socket.
#include <vector>

#include "comm/bootstrap/connection/wire.hpp"
#include "tests/comm/bootstrap/frame_helpers.hpp"
#include "tests/comm/bootstrap/meeting_helpers.hpp"
#include "tests/harness/catch.hpp"
#include "tests/harness/contains.hpp"

namespace rondo {
namespace {

using comm::Frame;
using comm::FrameKeys;
using comm::FrameParser;

struct Parsed {
  std::vector<Frame> frames;
  Status end;  // ok: more bytes may follow
};

Parsed parse(const comm::Digest& key, const std::string& bytes) {
  FrameParser parser(1000);
  parser.authenticate(key);
  parser.feed(bytes.data(), bytes.size());
  Parsed parsed;
  while (true) {
    auto frame = parser.next();
    parsed.end = frame.status();
    if (!frame.ok()) CHECK(parser.next().status().message() == parsed.end.message());
    if (!frame.ok() || !*frame) return parsed;
    parsed.frames.push_back(std::move(**frame));
  }
}

std::string join(const std::vector<std::string>& parts) {
  std::string all;
  for (const std::string& part : parts) all += part;
  return all;
}

TEST_CASE("the keys of a connection differ by direction, and follow from the whole handshake",
          "[frames]") {
  const comm::Challenge challenge = comm::make_challenge();
  const comm::Digest key = comm::key_of("s3cret");
  const comm::Hello hello = good_hello(1, 2, challenge), other = good_hello(1, 2, challenge);
  const FrameKeys ours = comm::frame_keys(hello, challenge, key, true);
  const FrameKeys theirs = comm::frame_keys(hello, challenge, key, false);
  CHECK(ours.send == theirs.receive);
  CHECK(ours.receive == theirs.send);
  CHECK(ours.send != ours.receive);
  CHECK(ours.send != comm::frame_keys(other, challenge, key, true).send);
  CHECK(ours.send != comm::frame_keys(hello, comm::make_challenge(), key, true).send);
  CHECK(ours.send != comm::frame_keys(hello, challenge, comm::key_of(""), true).send);
}

TEST_CASE("a frame that was altered, dropped, repeated or moved is refused, and none before it",
          "[frames]") {
  const FrameKeys keys = make_frame_keys().first;
  constexpr std::ptrdiff_t kFrames = 9;
  const std::vector<std::string> frames = frames_with_codes(keys.receive, kFrames);
  const auto refused_at = [&](std::ptrdiff_t frame, const std::vector<std::string>& sent) {
    const Parsed parsed = parse(keys.receive, join(sent));
    CHECK(parsed.frames.size() == static_cast<size_t>(frame));
    CHECK(parsed.end.code() == Code::kBootstrap);
    CHECK_THAT(parsed.end.message(), testing::contains("frame " + std::to_string(frame) + " of"));
    CHECK_THAT(parsed.end.message(), testing::contains("altered, repeated, dropped or moved"));
  };
  for (std::ptrdiff_t k = 0; k + 1 < kFrames; ++k) {
    INFO("frame " << k);
    const auto here = static_cast<size_t>(k);
    std::vector<std::string> sent = frames;
    for (size_t at = 0; at < frames[here].size(); ++at) {
      sent[here][at] = static_cast<char>(frames[here][at] ^ 0x10);
      refused_at(k, sent);
      sent[here][at] = frames[here][at];
    }
    sent[here].erase(sent[here].size() / 2, 1);
    refused_at(k, sent);
    sent = frames;
    sent.erase(sent.begin() + k);
    refused_at(k, sent);
    sent = frames;
    sent.insert(sent.begin() + k, frames[here]);
    refused_at(k + 1, sent);
    sent = frames;
    std::swap(sent[here], sent[here + 1]);
    refused_at(k, sent);
  }
}

TEST_CASE("a frame sent back, without codes, or with an altered length is refused", "[frames]") {
  const FrameKeys keys = make_frame_keys().first;
  const std::string own = frames_with_codes(keys.send, 1)[0];
  CHECK(parse(keys.send, own).end.ok());
  CHECK(parse(keys.receive, own).end.code() == Code::kBootstrap);
  const std::string plain = frame_bytes(comm::FrameKind::kBarrier, 1, "payload of some length");
  CHECK(parse(keys.receive, plain).end.code() == Code::kBootstrap);
  // A length by the header alone: more bytes than will ever come.
  std::string frame = frames_with_codes(keys.receive, 2)[1];
  frame[offsetof(comm::FrameHeader, length) + 1] = 2;
  CHECK(parse(keys.receive, frame.substr(0, 32)).end.code() == Code::kBootstrap);
}

}  // namespace
}  // namespace rondo
