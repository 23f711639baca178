// The probe for `limit_us`: touches memory once, as fast as one core can.
#pragma once

#include "bench/harness/shape.hpp"

namespace rondo::bench {

/// Reads the first traffic.reads bytes of `in` and writes the first traffic.writes bytes of `out`
/// with non-temporal stores, copying as far as both go. REQUIRES: out aligned to 16 bytes.
void stream(const void* in, void* out, const LeastTraffic& traffic);

}  // namespace rondo::bench
