// Sizes on the command line and the sweeps made of them. K, M and G are binary multiples, as in
// nccl-tests; fractions and other units are refused rather than guessed.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rondo::bench {

/// "8", "64K", "32M", "1G" in bytes; nullopt for anything else, or if it does not fit size_t.
std::optional<size_t> parse_size(std::string_view text);

/// 65536 as "64K", 1000 as "1000".
std::string format_size(size_t bytes);

/// From `min` to `max`: multiplied by `factor` if that is above 1, otherwise advanced by `step`.
/// REQUIRES: min <= max, and min > 0 with a factor or step > 0 without, unless min == max.
struct Sweep {
  size_t min, max;
  size_t factor, step;
};
std::vector<size_t> sizes_of(const Sweep& sweep);

}  // namespace rondo::bench
