// FloatingPointMode: what it sets, what it restores. Only x86 has anything to test.
#include "kernels/floating_point.hpp"

#include <limits>

#include "tests/harness/catch.hpp"
#include "tests/kernels/arena.hpp"

#if defined(__SSE2__)
namespace rondo::kernels {
namespace {

constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040, kRoundUp = 0x4000;
constexpr unsigned kMode = 0xe040;

// Runs the body in a given mode and puts the thread's own back, whatever the body threw.
struct InMode {
  explicit InMode(unsigned mode) : before(_mm_getcsr()) { _mm_setcsr((before & ~kMode) | mode); }
  ~InMode() { _mm_setcsr(before); }
  unsigned before;
};

float sum(float a, float b) {
  float result = 0;
  test::fold_into(reinterpret_cast<std::byte*>(&result),
                  {reinterpret_cast<const std::byte*>(&a), reinterpret_cast<const std::byte*>(&b)},
                  move_function(DataType::kFloat32, ReduceOp::kSum));
  return result;
}

TEST_CASE("The floating-point guard keeps denormals and rounds to nearest, then restores") {
  const float denormal = std::numeric_limits<float>::denorm_min();
  constexpr unsigned kAll = kFlushToZero | kDenormalsAreZero | kRoundUp;
  for (const unsigned mode : {kFlushToZero, kDenormalsAreZero, kRoundUp, kAll}) {
    float kept = 0, rounded = 0, without_guard = 1;
    unsigned inside = 1, after = 0;
    {
      const InMode in_mode(mode);
      without_guard = sum(denormal, denormal);
      {
        const FloatingPointMode guard;
        inside = _mm_getcsr() & kMode;
        kept = sum(denormal, denormal);
        rounded = sum(1.0f, 0x1p-30f);
        const FloatingPointMode nested;  // finds nothing to change
      }
      after = _mm_getcsr() & kMode;
    }
    CHECK(inside == 0);
    CHECK(kept == 2 * denormal);
    CHECK(rounded == 1.0f);
    CHECK(after == mode);
    if (mode == kAll) CHECK(without_guard == 0.0f);  // the guard was needed
  }
}

TEST_CASE("The floating-point guard keeps exception flags raised under it") {
  const InMode in_mode(kFlushToZero);
  _mm_setcsr(_mm_getcsr() & ~0x3fu);
  {
    const FloatingPointMode guard;
    sum(std::numeric_limits<float>::max(), std::numeric_limits<float>::max());
  }
  const unsigned flags = _mm_getcsr() & 0x3f;
  CHECK((flags & 0x08) != 0);  // overflow
}

}  // namespace
}  // namespace rondo::kernels
#endif
