// Sizes on a command line. K, M and G are binary multiples, as in nccl-tests; fractions and other units
// are refused rather than guessed.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <system_error>

namespace rondo::base {

/// "8", "64K", "32M", "1G" in bytes; nullopt for anything else, or if it does not fit.
inline std::optional<uint64_t> parse_size(std::string_view text) {
  uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [unit, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{}) return std::nullopt;
  if (unit == end) return value;
  const size_t power = std::string_view("KkMmGg").find(*unit) / 2 + 1;
  if (power > 3 || unit + 1 != end || value > UINT64_MAX >> (10 * power)) return std::nullopt;
  return value << (10 * power);
}

}  // namespace rondo::base
