// _v collectives for tests on devices, with gaps between their blocks.
#pragma once

#include <functional>
#include <numeric>
#include <vector>

#include "rondo/rondo.hpp"

namespace rondo::device::test {

/// What rank r gives block b; zero for some, several slots for others.
inline size_t block_count(int r, int b) { return static_cast<size_t>((r * 5 + b * 3) % 4) * 70; }

using Varying = std::function<Status(Communicator&, const int32_t*, int32_t*, CallOptions)>;

inline std::vector<Varying> varying_calls(int size) {
  std::vector<size_t> counts, offsets;
  size_t end = 2;
  for (int b = 0; b < size; ++b) {
    counts.push_back(block_count(1, b));
    offsets.push_back(end);
    end += counts.back() + 3;  // gaps
  }
  const auto to_all = [size](Communicator& c, const int32_t* in, int32_t* out,
                             CallOptions options) {
    std::vector<size_t> in_counts, out_counts;
    for (int p = 0; p < size; ++p) {
      in_counts.push_back(block_count(c.rank(), p));
      out_counts.push_back(block_count(p, c.rank()));
    }
    return c.all_to_all_v(in, in_counts, {}, out, out_counts, {}, DataType::kInt32, options);
  };
  return {[=](Communicator& c, const int32_t* in, int32_t* out, CallOptions options) {
            return c.all_gather_v(in, out, counts, offsets, DataType::kInt32, options);
          },
          [=](Communicator& c, const int32_t* in, int32_t* out, CallOptions options) {
            return c.reduce_scatter_v(in, out, counts, offsets, DataType::kInt32, ReduceOp::kSum,
                                      options);
          },
          [=](Communicator& c, const int32_t* in, int32_t* out, CallOptions options) {
            return c.gather_v(in, out, counts, offsets, DataType::kInt32, size - 1, options);
          },
          [=](Communicator& c, const int32_t* in, int32_t* out, CallOptions options) {
            return c.scatter_v(in, out, counts, offsets, DataType::kInt32, size / 2, options);
          },
          to_all};
}

inline constexpr size_t kRoom = 8 * 300;

inline std::vector<int32_t> filled(int rank) {
  std::vector<int32_t> in(kRoom);
  std::iota(in.begin(), in.end(), rank * 10'000);
  return in;
}

}  // namespace rondo::device::test
