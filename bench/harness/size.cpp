// Parsing and printing of sizes; no output, no options.
#include "bench/harness/size.hpp"

#include <charconv>
#include <cstdint>

namespace rondo::bench {

std::optional<size_t> parse_size(std::string_view text) {
  size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{}) return std::nullopt;
  const std::string_view suffix(end, static_cast<size_t>(text.data() + text.size() - end));
  if (suffix.empty()) return value;
  int shift = 0;
  if (suffix == "K" || suffix == "k") shift = 10;
  if (suffix == "M" || suffix == "m") shift = 20;
  if (suffix == "G" || suffix == "g") shift = 30;
  if (shift == 0 || value > (SIZE_MAX >> shift)) return std::nullopt;
  return value << shift;
}

std::string format_size(size_t bytes) {
  constexpr struct {
    int shift;
    char suffix;
  } kUnits[] = {{30, 'G'}, {20, 'M'}, {10, 'K'}};
  for (const auto& unit : kUnits) {
    const size_t one = size_t{1} << unit.shift;
    if (bytes >= one && bytes % one == 0) return std::to_string(bytes >> unit.shift) + unit.suffix;
  }
  return std::to_string(bytes);
}

std::vector<size_t> sizes_of(const Sweep& sweep) {
  std::vector<size_t> sizes;
  size_t size = sweep.min;
  while (true) {
    sizes.push_back(size);
    if (size == sweep.max) break;
    if (sweep.factor > 1) {
      if (size > sweep.max / sweep.factor) break;
      size *= sweep.factor;
    } else {
      if (sweep.max - size < sweep.step) break;
      size += sweep.step;
    }
  }
  return sizes;
}

}  // namespace rondo::bench
