// What the schedule tests have in common: the list of all built-in algorithms, and how large the
// tests are.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "comm/schedule/verifier.hpp"
#include "tests/harness/catch.hpp"

namespace rondo::schedule::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

/// Matches a message that contains `words`.
inline auto says(const std::string& words) {
#if __has_include(<catch2/catch_all.hpp>)
  return Catch::Matchers::ContainsSubstring(words);
#else
  return Catch::Matchers::Contains(words);
#endif
}

inline std::vector<std::pair<Collective, Algorithm>> builtins() {
  std::vector<std::pair<Collective, Algorithm>> all;
  for (int c = 0; c < kCollectives; ++c) {
    for (int a = 0; a < kAlgorithms; ++a) {
      const auto collective = static_cast<Collective>(c);
      const auto algorithm = static_cast<Algorithm>(a);
      if (has(collective, algorithm)) all.emplace_back(collective, algorithm);
    }
  }
  return all;
}

/// Slots of 16 floats: little data reaches many rounds. `min_slice_bytes` 0: as many slices as the
/// FIFOs take.
inline Limits tiny(uint32_t depth, int channels = 1) {
  return {.element_bytes = 4,
          .slot_bytes = 64,
          .depth = depth,
          .channels = channels,
          .align = 4,
          .min_slice_bytes = 0};
}

inline std::string describe(const Shape& s, const Limits& limits) {
  return std::string(name(s.algorithm)) + " " + std::string(name(s.collective)) + " of " +
         std::to_string(s.count) + " elements, " + std::to_string(s.ranks) + " ranks, root " +
         std::to_string(s.root) + (s.in_place ? ", in place" : "") + ", depth " +
         std::to_string(limits.depth) + ", channels " + std::to_string(limits.channels);
}

inline Operation operation(const Shape& shape, const Limits& limits) {
  INFO(describe(shape, limits));
  Result<Operation> made = make_operation(shape, limits);
  if (!made.ok()) FAIL(made.status().to_string());
  return std::move(*made);
}

/// The verdict on one operation, or on a sequence.
inline Status verdict(const std::vector<Operation>& operations, const Limits& limits) {
  return verify(operations, limits).status();
}

}  // namespace rondo::schedule::test
