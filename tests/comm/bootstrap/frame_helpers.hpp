// Frames as bytes, for tests that send what no Connection would.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "comm/bootstrap/connection/wire.hpp"
#include "tests/comm/bootstrap/meeting_helpers.hpp"

namespace rondo {

inline comm::FrameHeader frame_header(comm::FrameKind kind, uint32_t sequence, size_t length) {
  return {.magic = comm::kFrameMagic,
          .kind = kind,
          .fd_count = 0,
          .sequence = sequence,
          .length = static_cast<uint32_t>(length)};
}

/// Without codes.
inline std::string frame_bytes(comm::FrameKind kind, uint32_t sequence,
                               const std::string& payload) {
  const comm::FrameHeader header = frame_header(kind, sequence, payload.size());
  return std::string(reinterpret_cast<const char*>(&header), sizeof header) + payload;
}

/// With the codes of `mac`'s next frame.
inline std::string frame_with_codes(comm::FrameMac& mac, comm::FrameKind kind, uint32_t sequence,
                                    const std::string& payload) {
  const comm::FrameHeader header = frame_header(kind, sequence, payload.size());
  const comm::Tag first = mac.of_header(header), second = mac.of_payload(header, payload);
  std::string frame(reinterpret_cast<const char*>(&header), sizeof header);
  frame.append(first.begin(), first.end()).append(payload);
  if (!payload.empty()) frame.append(second.begin(), second.end());
  mac.advance();
  return frame;
}

/// The payload of frame `i` of frames_with_codes(): empty for every fifth.
inline std::string payload_of_frame(uint32_t i) {
  return std::string(i % 5 * 7, static_cast<char>('a' + i));
}

/// The first frames of a direction, numbered from 0.
inline std::vector<std::string> frames_with_codes(const comm::Digest& key, uint32_t count) {
  comm::FrameMac mac(key);
  std::vector<std::string> frames;
  for (uint32_t i = 0; i < count; ++i) {
    frames.push_back(frame_with_codes(mac, comm::FrameKind::kControl, i, payload_of_frame(i)));
  }
  return frames;
}

/// Rank 0's and rank 1's keys after a new handshake.
inline std::pair<comm::FrameKeys, comm::FrameKeys> make_frame_keys() {
  const comm::Challenge challenge = comm::make_challenge();
  const comm::Hello hello = good_hello(1, 2, challenge);
  const comm::Digest key = comm::key_of("s3cret");
  return {comm::frame_keys(hello, challenge, key, true),
          comm::frame_keys(hello, challenge, key, false)};
}

}  // namespace rondo
