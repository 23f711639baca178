// What comes through an agent's pipes, as bytes: the greeting, frames, and noise without bounds.
#include "comm/launch/frames.hpp"

#include <stdexcept>

#include "comm/launch/agent_lines.hpp"
#include "tests/harness/catch.hpp"

namespace rondo::run {
namespace {

TEST_CASE("noise, the greeting and frames, cut anywhere", "[hosts]") {
  const std::string noise = "Welcome\nrondo-run frames\nno end of line ";
  const std::string stream = noise + greeting() + pack(RunMessage::kAlive) +
                             pack(RunMessage::kLine, "one\ntwo") + pack(RunMessage::kAlive);
  for (size_t piece = 1; piece <= stream.size(); ++piece) {
    INFO(piece);
    FrameReader reader;
    std::string heard, kinds;
    for (size_t at = 0; at < stream.size(); at += piece) {
      reader.feed(std::string_view(stream).substr(at, piece));
      while (auto frame = reader.next()) kinds += static_cast<char>(frame->kind) + frame->payload;
      heard += reader.take_noise();
    }
    CHECK(heard == noise);
    CHECK(reader.version());
    CHECK(kinds == "aoone\ntwoa");
  }
}

TEST_CASE("a stream without a greeting is all noise", "[hosts]") {
  FrameReader reader;
  const std::string text =
      "rondo-run frames, version " + std::string(10'000, 'x') + "\n" + greeting().substr(0, 20);
  reader.feed(text);
  CHECK_FALSE(reader.next());
  reader.finish();
  CHECK_FALSE(reader.version());
  CHECK(reader.take_noise() == text);
}

// Both took minutes when every byte was looked at again for each of the others.
TEST_CASE("many small frames, and a line without an end in single bytes, take no time", "[hosts]") {
  FrameReader frames;
  frames.feed(greeting());
  std::string many;
  constexpr int kFrames = 2'000'000;
  for (int i = 0; i < kFrames; ++i) many += pack(RunMessage::kAlive);
  frames.feed(many);
  int count = 0;
  while (frames.next()) ++count;
  CHECK(count == kFrames);

  FrameReader noisy;
  AgentLines lines;
  for (int i = 0; i < 4'000'000; ++i) {
    noisy.feed("x");
    if (noisy.next()) FAIL("a frame of noise");
    lines.feed(noisy.take_noise());
  }
  noisy.finish();
  lines.feed(noisy.take_noise());
  lines.finish();
  const auto shown = lines.take();
  REQUIRE(shown.size() == 1);
  CHECK(shown[0] == std::string(AgentLines::kLongest, 'x') + std::string(AgentLines::kCut) + "\n");
}

TEST_CASE("a frame larger than any that is sent is refused at its header", "[hosts]") {
  FrameReader reader;
  reader.feed(greeting() + "t\xff\xff\xff\xff");
  CHECK_THROWS_AS(reader.next(), std::length_error);
}

TEST_CASE("an agent's lines are cut and show no control characters", "[hosts]") {
  AgentLines lines;
  lines.feed("one\r\n\033[31mtwo\n");
  lines.feed(std::string(AgentLines::kLongest, 'a') + "\n");
  lines.feed(std::string(AgentLines::kLongest + 1, 'b'));
  lines.feed(std::string(1000, 'b') + "\nthree");
  lines.finish();
  const auto shown = lines.take();
  REQUIRE(shown.size() == 5);
  CHECK(shown[0] == "one\n");
  CHECK(shown[1] == "?[31mtwo\n");
  CHECK(shown[2] == std::string(AgentLines::kLongest, 'a') + "\n");
  CHECK(shown[3] == std::string(AgentLines::kLongest, 'b') + std::string(AgentLines::kCut) + "\n");
  CHECK(shown[4] == "three\n");
}

}  // namespace
}  // namespace rondo::run
