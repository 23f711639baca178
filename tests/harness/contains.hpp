// A matcher for text that contains another, by either version of Catch2.
#pragma once

#include <string>

#include "tests/harness/catch.hpp"

namespace rondo::testing {

inline auto contains(const std::string& part) {
#if __has_include(<catch2/catch_all.hpp>)
  return Catch::Matchers::ContainsSubstring(part);
#else
  return Catch::Matchers::Contains(part);
#endif
}

}  // namespace rondo::testing
