// See frame_mac.hpp. A code is over: frame's number (8 bytes), part (8: 0 header, 1 payload), header,
// payload.
#include "comm/bootstrap/connection/frame_mac.hpp"

#include <sodium.h>

#include "comm/bootstrap/connection/wire.hpp"

namespace rondo::comm {

Tag FrameMac::of(uint64_t part, const FrameHeader& header, std::string_view payload) const {
  const struct {
    uint64_t number, part;
    FrameHeader header;
  } start{number_, part, header};
  static_assert(sizeof start == 32);
  static_assert(sizeof(Tag) >= crypto_generichash_BYTES_MIN);
  crypto_generichash_state state;
  crypto_generichash_init(&state, key_.data(), key_.size(), sizeof(Tag));
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(&start), sizeof start);
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(payload.data()),
                            payload.size());
  Tag tag;
  crypto_generichash_final(&state, tag.data(), tag.size());
  return tag;
}

Tag FrameMac::of_header(const FrameHeader& header) const { return of(0, header, {}); }

Tag FrameMac::of_payload(const FrameHeader& header, std::string_view payload) const {
  return of(1, header, payload);
}

bool FrameMac::equal(const char* received, const Tag& expected) {
  return sodium_memcmp(received, expected.data(), expected.size()) == 0;
}

}  // namespace rondo::comm
