// Printing of sizes, and sweeps; no output, no options.
#include "bench/harness/size.hpp"

namespace rondo::bench {

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
