// Streaming copy, read and fill. SSE2 is part of every x86-64 and its stores fill whole
// write-combining buffers, so that wider vectors gain nothing once memory is the limit. Elsewhere
// ordinary stores stand in, and the limit is pessimistic.
#include "bench/harness/stream.hpp"

#include <algorithm>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace rondo::bench {

#ifdef __SSE2__
void stream(const void* in, void* out, const LeastTraffic& traffic) {
  constexpr size_t kLine = 64 / sizeof(__m128i);
  const auto* source = static_cast<const __m128i*>(in);
  auto* destination = static_cast<__m128i*>(out);
  const size_t reads = traffic.reads / sizeof(__m128i), writes = traffic.writes / sizeof(__m128i);
  const size_t both = std::min(reads, writes) / kLine * kLine;
  size_t i = 0;
  for (; i < both; i += kLine) {
    const __m128i a = _mm_loadu_si128(source + i), b = _mm_loadu_si128(source + i + 1);
    const __m128i c = _mm_loadu_si128(source + i + 2), d = _mm_loadu_si128(source + i + 3);
    _mm_stream_si128(destination + i, a);
    _mm_stream_si128(destination + i + 1, b);
    _mm_stream_si128(destination + i + 2, c);
    _mm_stream_si128(destination + i + 3, d);
  }
  __m128i sink = _mm_setzero_si128(), sink2 = sink;
  for (size_t r = i; r + 1 < reads; r += 2) {
    sink = _mm_xor_si128(sink, _mm_loadu_si128(source + r));
    sink2 = _mm_xor_si128(sink2, _mm_loadu_si128(source + r + 1));
  }
  // Used, or the reads would be removed.
  volatile int used = _mm_cvtsi128_si32(_mm_xor_si128(sink, sink2));
  static_cast<void>(used);
  for (size_t w = i; w < writes; ++w) _mm_stream_si128(destination + w, sink);
  _mm_sfence();
}
#else
void stream(const void* in, void* out, const LeastTraffic& traffic) {
  const size_t both = std::min(traffic.reads, traffic.writes);
  std::memcpy(out, in, both);
  unsigned char sink = 0;
  for (size_t r = both; r < traffic.reads; ++r) sink ^= static_cast<const unsigned char*>(in)[r];
  volatile unsigned char used = sink;
  static_cast<void>(used);
  std::memset(static_cast<char*>(out) + both, 0, traffic.writes - both);
}
#endif

}  // namespace rondo::bench
