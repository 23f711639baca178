// Sanitized builds are ten times as slow: exhaustive tests try fewer cases there.
#pragma once

namespace rondo::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace rondo::testing
