// A machine in the middle of a connection with codes: whatever it does to the stream, the frames
// that come out are the first of those that went in. Input: changes of 4 bytes, each of a place and
// what to do there.
#include <algorithm>

#include "comm/bootstrap/connection/wire.hpp"
#include "tests/comm/bootstrap/frame_helpers.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace rondo::fuzz {
namespace {

constexpr uint32_t kFrames = 8;

struct Change {
  uint16_t at;
  uint8_t what, value;
};

std::string change(std::string stream, const Change& change) {
  const size_t at = change.at % (stream.size() + 1);
  const size_t count = change.value + size_t{1};
  switch (change.what % 4) {
    case 0:
      if (at < stream.size()) stream[at] = static_cast<char>(stream[at] ^ change.value);
      break;
    case 1:
      stream.erase(at, count);
      break;
    case 2:
      stream.insert(at, stream.substr(at, count));
      break;
    default:
      stream = stream.substr(at) + stream.substr(0, at);
  }
  return stream;
}

}  // namespace

void run(std::string_view input) {
  const comm::Digest key = comm::key_of("s3cret");
  const std::vector<std::string> sent = frames_with_codes(key, kFrames);
  std::string stream;
  for (const std::string& frame : sent) stream += frame;
  const std::string original = stream;
  for (Reader reader(input); !reader.is_empty() && stream.size() < 10'000;) {
    stream = change(stream, reader.take<Change>());
  }
  size_t whole = 0, common = 0;  // frames that were left as they were
  const auto differs = std::ranges::mismatch(stream, original).in1;
  for (; whole < kFrames; ++whole) {
    common += sent[whole].size();
    if (static_cast<size_t>(differs - stream.begin()) < common) break;
  }
  comm::FrameParser parser(1 << 20);
  parser.authenticate(key);
  parser.feed(stream.data(), stream.size());
  size_t got = 0;
  while (true) {
    auto frame = parser.next();
    if (!frame.ok() || !*frame) break;
    must((*frame)->payload == payload_of_frame(static_cast<uint32_t>(got)), "a frame is as sent");
    must((*frame)->sequence == got, "frames are in order");
    ++got;
  }
  must(got == whole, "every frame before the change comes out, and none after");
}

std::vector<std::string> seeds() {
  return {"", bytes_of(Change{20, 0, 1}), bytes_of(Change{32, 1, 0}), bytes_of(Change{50, 2, 60}),
          bytes_of(Change{100, 3, 0}) + bytes_of(Change{3, 0, 255})};
}

}  // namespace rondo::fuzz
