// _v collectives for tests on devices, with gaps between their blocks.
#pragma once

#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "tests/comm/device/calls.hpp"

namespace rondo::device::test {

/// What rank r gives block b; zero for some, several slots for others.
inline size_t block_count(int r, int b) { return static_cast<size_t>((r * 5 + b * 3) % 4) * 70; }

struct Varying {
  Collective collective;
  std::function<Status(Communicator&, const int32_t* in, int32_t* out, const CallOptions&)> issue;
};

inline std::vector<Varying> varying_calls(int size) {
  std::vector<size_t> counts, offsets;
  size_t end = 2;
  for (int b = 0; b < size; ++b) {
    counts.push_back(block_count(1, b));
    offsets.push_back(end);
    end += counts.back() + 3;  // gaps
  }
  constexpr DataType kType = DataType::kInt32;
  using C = Communicator;
  using O = CallOptions;
  return {{Collective::kAllGatherV,
           [=](C& c, const int32_t* in, int32_t* out, const O& options) {
             return c.all_gather_v(in, out, counts, offsets, kType, options);
           }},
          {Collective::kReduceScatterV,
           [=](C& c, const int32_t* in, int32_t* out, const O& options) {
             return c.reduce_scatter_v(in, out, counts, offsets, kType, ReduceOp::kSum, options);
           }},
          {Collective::kGatherV,
           [=](C& c, const int32_t* in, int32_t* out, const O& options) {
             return c.gather_v(in, out, counts, offsets, kType, size - 1, options);
           }},
          {Collective::kScatterV,
           [=](C& c, const int32_t* in, int32_t* out, const O& options) {
             return c.scatter_v(in, out, counts, offsets, kType, size / 2, options);
           }},
          {Collective::kAllToAllV, [=](C& c, const int32_t* in, int32_t* out, const O& options) {
             std::vector<size_t> in_counts, out_counts;
             for (int p = 0; p < size; ++p) {
               in_counts.push_back(block_count(c.rank(), p));
               out_counts.push_back(block_count(p, c.rank()));
             }
             return c.all_to_all_v(in, in_counts, {}, out, out_counts, {}, kType, options);
           }}};
}

inline constexpr size_t kRoom = 8 * 300;

inline Ints filled(int rank) {
  Ints in(kRoom);
  std::iota(in.begin(), in.end(), rank * 10'000);
  return in;
}

/// Of varying_calls(), where nothing has been written: -1.
using VaryingResults = std::vector<std::vector<Ints>>;  // [call][rank]

inline VaryingResults varying_results(int size) {
  return VaryingResults(varying_calls(size).size(), std::vector<Ints>(size, Ints(kRoom, -1)));
}

/// What the calls give in the host's memory.
inline VaryingResults varying_on_host(int size) {
  const auto calls = varying_calls(size);
  VaryingResults results = varying_results(size);
  run_on_host(size, [&](Communicator& c) {
    const Ints in = filled(c.rank());
    for (size_t i = 0; i < calls.size(); ++i) {
      testing::expect_ok(calls[i].issue(c, in.data(), results[i][c.rank()].data(), {}), "_v");
    }
  });
  return results;
}

/// Every call on every rank, `turns` times; then compares with the host's results. Further turns need
/// the room that programs of earlier calls have, so each call ends before the next one.
inline void compare_varying(World& world, int turns = 1) {
  const auto calls = varying_calls(world.size());
  VaryingResults found = varying_results(world.size());
  std::vector<Ints> in;
  for (int rank = 0; rank < world.size(); ++rank) in.push_back(filled(rank));
  for (int turn = 0; turn < turns; ++turn) {
    for (size_t i = 0; i < calls.size(); ++i) {
      for (int rank = 0; rank < world.size(); ++rank) {
        must(calls[i].issue(world[rank], in[rank].data(), found[i][rank].data(),
                            world.on_stream(rank)));
      }
      if (turns > 1) world.synchronize();
    }
  }
  finish(world);
  CHECK(found == varying_on_host(world.size()));
}

}  // namespace rondo::device::test
