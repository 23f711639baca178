// Sizes on the command line and the sweeps made of them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "comm/base/size.hpp"

namespace rondo::bench {

using base::parse_size;

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
