// One 64-bit number for a stretch of memory, with which ranks notice that they differ. Not for
// adversaries.
#pragma once

#include <cstdint>
#include <cstring>

#include "trainer/base/random.hpp"

namespace rondo::trainer {

/// Depends on every byte, on their order, and on `seed`, so that hashes can be chained.
inline uint64_t hash_bytes(const void* data, size_t bytes, uint64_t seed = 0) {
  const auto* p = static_cast<const unsigned char*>(data);
  uint64_t h = mix(seed ^ bytes);
  for (; bytes >= 8; p += 8, bytes -= 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    h = mix(h ^ word);
  }
  uint64_t tail = 0;
  if (bytes > 0) std::memcpy(&tail, p, bytes);
  return mix(h ^ tail);
}

}  // namespace rondo::trainer
