// The floating-point mode that the numerical contract asks for, for one scope of one thread.
// Results must not depend on what the caller's thread happens to be set to: -ffast-math start-up
// code, for one, switches denormals off. Does not touch exception masks, flags or x87. Elsewhere
// than on x86 it does nothing: there the default mode is the wanted one.
#pragma once

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace rondo::kernels {

/// While it lives: round to nearest even, denormals kept. Restores what it found, and only if it
/// changed anything; one register read and a compare otherwise. Construct it in a function that
/// calls the kernels through their pointers: the compiler may move arithmetic of the same function
/// across it.
class FloatingPointMode {
 public:
#if defined(__SSE2__)
  FloatingPointMode() : found_(_mm_getcsr() & kMode) {
    if (found_ != 0) _mm_setcsr(_mm_getcsr() & ~kMode);
  }
  ~FloatingPointMode() {
    // Exception flags raised meanwhile stay.
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
