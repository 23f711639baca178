// Sets the floating-point mode of the numerical contract for one scope of one thread. Results must
// not depend on the mode of the caller's thread: -ffast-math start-up code, for example, switches
// denormals off. Leaves exception masks, flags and x87 alone. Does nothing except on x86, because
// elsewhere the default mode is the required one.
#pragma once

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace rondo::kernels {

/// In its scope: round to nearest even, denormals kept. Restores the previous mode if it changed
/// it; otherwise costs one register read and a compare. Construct it in a function that calls the
/// kernels through their pointers: the compiler may move arithmetic of the same function across it.
class FloatingPointMode {
 public:
#if defined(__SSE2__)
  FloatingPointMode() : found_(_mm_getcsr() & kMode) {
    if (found_ != 0) _mm_setcsr(_mm_getcsr() & ~kMode);
  }
  ~FloatingPointMode() {
    // Keeps exception flags raised in the scope.
    if (found_ != 0) _mm_setcsr((_mm_getcsr() & ~kMode) | found_);
  }

 private:
  // Flush to zero, rounding control, denormals are zero.
  static constexpr unsigned kMode = 0x8000 | 0x6000 | 0x0040;
  unsigned found_;

 public:
#else
  FloatingPointMode() {}
  ~FloatingPointMode() {}
#endif
  FloatingPointMode(const FloatingPointMode&) = delete;
  FloatingPointMode& operator=(const FloatingPointMode&) = delete;
};

}  // namespace rondo::kernels
