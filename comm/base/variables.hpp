// Environment variables, as all of comm reads them.
#pragma once

#include <charconv>
#include <cstdlib>
#include <optional>
#include <string>

#include "comm/base/refuse.hpp"
#include "rondo/status.hpp"

namespace rondo::comm {

/// The variable's text; an empty one counts as absent.
inline std::optional<std::string> variable(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return std::nullopt;
  return text;
}

/// A whole number, not negative; the error names the variable and its text.
inline Result<int> parse_number(const std::string& name, const std::string& text) {
  int value = 0;
  const char* end = text.data() + text.size();
  auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || value < 0) {
    return refuse(name + " is \"" + text + "\": it must be a whole number from 0 to 2147483647");
  }
  return value;
}

}  // namespace rondo::comm
