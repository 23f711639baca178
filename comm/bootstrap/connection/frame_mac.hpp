// Authentication codes of a TCP connection's frames. Keyed BLAKE2b: it hashes a header and a payload
// where they lie, and needs no key or nonce of its own for each frame, so that no mistake with a
// nonce can reveal the key. Not encryption.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace rondo::comm {

struct FrameHeader;
using Digest = std::array<unsigned char, 32>;
using Tag = std::array<unsigned char, 16>;

/// The keys of one connection's two directions, as one of its ends uses them.
struct FrameKeys {
  Digest send, receive;
};

/// One direction of a connection. A code covers the frame's number in this direction, so that a
/// frame that was altered, repeated, dropped or moved on the way has a wrong one. The header has a
/// code of its own: a length is believed only when it is known to be the sender's.
class FrameMac {
 public:
  explicit FrameMac(const Digest& key) : key_(key) {}

  Tag of_header(const FrameHeader& header) const;
  Tag of_payload(const FrameHeader& header, std::string_view payload) const;
  /// In constant time.
  static bool equal(const char* received, const Tag& expected);

  /// The next codes are of the next frame.
  void advance() { ++number_; }
  uint64_t number() const { return number_; }

 private:
  Tag of(uint64_t part, const FrameHeader& header, std::string_view payload) const;

  Digest key_;
  uint64_t number_ = 0;
};

}  // namespace rondo::comm
