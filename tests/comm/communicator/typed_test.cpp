// Calls on vectors, arrays and spans: count and type are the buffers', and what does not fit is
// refused before anything moves.
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "tests/comm/communicator/worlds.hpp"

namespace {

/// A type of the caller's own, in the format of a half.
struct OwnHalf {
  uint16_t bits;
};

}  // namespace

namespace rondo {

template <>
struct DataTypeOf<OwnHalf> {
  static constexpr DataType kValue = DataType::kFloat16;
};

}  // namespace rondo

namespace rondo::testing {
namespace {

static_assert(!std::is_constructible_v<OutSpan, std::vector<float>>);  // it would be gone
#ifdef __SIZEOF_INT128__
__extension__ using Wide = __int128;
static_assert(!DataTypeOf<Wide>::kValue);
#endif
static_assert(DataTypeOf<float>::kValue == DataType::kFloat32);
static_assert(DataTypeOf<double>::kValue == DataType::kFloat64);
static_assert(DataTypeOf<bool>::kValue == DataType::kBool);
static_assert(DataTypeOf<signed char>::kValue == DataType::kInt8);
static_assert(DataTypeOf<std::byte>::kValue == DataType::kUint8);
static_assert(DataTypeOf<uint16_t>::kValue == DataType::kUint16);
static_assert(DataTypeOf<int>::kValue == DataType::kInt32);
static_assert(DataTypeOf<long long>::kValue == DataType::kInt64);
static_assert(DataTypeOf<unsigned long>::kValue == DataType::kUint64);
static_assert(!DataTypeOf<void*>::kValue.has_value());
static_assert(std::is_constructible_v<InSpan, const std::vector<float>&>);
static_assert(std::is_constructible_v<OutSpan, std::span<float>>);
static_assert(!std::is_constructible_v<OutSpan, const std::vector<float>&>);
static_assert(!std::is_constructible_v<OutSpan, std::span<const float>>);
static_assert(!std::is_constructible_v<InSpan, const std::vector<std::string>&>);
static_assert(!std::is_constructible_v<InSpan, const float*>);

/// Three ranks; blocking, or asynchronous.
void every_call(Communicator& c, bool async) {
  const int r = c.rank();
  const auto done = [&](const auto& blocking, const auto& begun, const std::string& what,
                        const std::vector<int>& got, const std::vector<int>& wanted) {
    expect_ok(async ? begun().wait() : blocking(), what);
    expect(got == wanted, what + ": another result");
  };
  const std::vector<int> one{r + 1};
  const std::array<int, 3> three{r, r + 10, r + 20};
  std::vector<int> single(1), each(3);
  done([&] { return c.all_reduce(one, single); }, [&] { return c.all_reduce_async(one, single); },
       "all_reduce", single, {6});
  const CallOptions ring{.algorithm = Algorithm::kRing};
  done([&] { return c.all_reduce(one, single, ring); },
       [&] { return c.all_reduce_async(one, single, ring); }, "all_reduce with options", single,
       {6});
  done([&] { return c.all_reduce(one, single, ReduceOp::kMax, ring); },
       [&] { return c.all_reduce_async(one, single, ReduceOp::kMax, ring); }, "max", single, {3});
  done([&] { return c.reduce_scatter(three, single); },
       [&] { return c.reduce_scatter_async(three, single); }, "reduce_scatter", single,
       {3 + 30 * r});
  done([&] { return c.all_gather(one, each); }, [&] { return c.all_gather_async(one, each); },
       "all_gather", each, {1, 2, 3});
  const InSpan root_only = r == 1 ? InSpan(one) : InSpan();
  done([&] { return c.broadcast(root_only, single, 1); },
       [&] { return c.broadcast_async(root_only, single, 1); }, "broadcast", single, {2});
  const OutSpan at_root = r == 2 ? OutSpan(single) : OutSpan();
  done([&] { return c.reduce(one, at_root, ReduceOp::kProd, 2); },
       [&] { return c.reduce_async(one, at_root, ReduceOp::kProd, 2); }, "reduce", single,
       {r == 2 ? 6 : 2});
  each.assign(3, -1);
  const OutSpan all_at_root = r == 0 ? OutSpan(each) : OutSpan();
  done([&] { return c.gather(one, all_at_root, 0); },
       [&] { return c.gather_async(one, all_at_root, 0); }, "gather", each,
       r == 0 ? std::vector{1, 2, 3} : std::vector{-1, -1, -1});
  const InSpan from_root = r == 1 ? InSpan(three) : InSpan();
  done([&] { return c.scatter(from_root, single, 1); },
       [&] { return c.scatter_async(from_root, single, 1); }, "scatter", single, {1 + 10 * r});
  done([&] { return c.all_to_all(three, each); }, [&] { return c.all_to_all_async(three, each); },
       "all_to_all", each, {10 * r, 10 * r + 1, 10 * r + 2});
  done([&] { return c.inclusive_scan(one, single); },
       [&] { return c.inclusive_scan_async(one, single); }, "inclusive_scan", single,
       {(r + 1) * (r + 2) / 2});
  done([&] { return c.exclusive_scan(one, single, ring); },
       [&] { return c.exclusive_scan_async(one, single, ring); }, "exclusive_scan", single,
       {r * (r + 1) / 2});

  // Rank 1's block is empty, the others' have one element, with a gap between.
  const std::vector<size_t> counts{1, 0, 1}, offsets{0, 0, 2};
  const std::span<const int> own = std::span(one).first(counts[static_cast<size_t>(r)]);
  const std::span<int> mine = std::span(single).first(counts[static_cast<size_t>(r)]);
  each.assign(3, -1);
  done([&] { return c.all_gather_v(own, each, counts, offsets); },
       [&] { return c.all_gather_v_async(own, each, counts, offsets); }, "all_gather_v", each,
       {1, -1, 3});
  single = {-1};
  done([&] { return c.reduce_scatter_v(three, mine, counts, offsets, ring); },
       [&] { return c.reduce_scatter_v_async(three, mine, counts, offsets, ring); },
       "reduce_scatter_v", single,
       {r == 0   ? 3
        : r == 1 ? -1
                 : 63});
  each.assign(3, -1);
  done([&] { return c.gather_v(own, each, counts, offsets, 1); },
       [&] { return c.gather_v_async(own, each, counts, offsets, 1); }, "gather_v", each,
       r == 1 ? std::vector{1, -1, 3} : std::vector{-1, -1, -1});
  single = {-1};
  done([&] { return c.scatter_v(from_root, mine, counts, {}, 1); },
       [&] { return c.scatter_v_async(from_root, mine, counts, {}, 1); }, "scatter_v", single,
       {r == 0   ? 1
        : r == 1 ? -1
                 : 11});
  const std::vector<size_t> ones{1, 1, 1};
  done([&] { return c.all_to_all_v(three, ones, {}, each, ones, {}); },
       [&] { return c.all_to_all_v_async(three, ones, {}, each, ones, {}); }, "all_to_all_v", each,
       {10 * r, 10 * r + 1, 10 * r + 2});

  const int next = (r + 1) % 3, prev = (r + 2) % 3;
  if (async) {
    Work sent = c.send_async(one, next);
    expect_ok(c.recv_async(single, prev).wait(), "recv");
    expect_ok(sent.wait(), "send");
  } else {
    expect_ok(c.group_start(), "group");
    expect_ok(c.send(one, next), "send");
    expect_ok(c.recv(single, prev), "recv");
    expect_ok(c.group_end(), "group");
  }
  expect(single == std::vector<int>{prev + 1}, "message");
}

}  // namespace

TEST_CASE("every call takes vectors, arrays and spans, blocking and not") {
  run_each({3}, [](Communicator& comm) {
    every_call(comm, false);
    every_call(comm, true);
    const std::vector<OwnHalf> in(5, {0x3c00});  // 1
    std::vector<OwnHalf> out(5);
    expect_ok(comm.all_reduce(in, out), "a type of the caller's own");
    for (const OwnHalf& half : out) expect_eq(half.bits + 0, 0x4200, "three");
  });
}

TEST_CASE("buffers that do not fit a call are refused by size, and the communicator goes on") {
  run_ok(How::kForks, 3, [](Communicator& comm) {
    const std::vector<float> four(4), twelve(12);
    std::vector<float> out3(3), out12(12), out13(13);
    std::vector<double> doubles(4);
    const std::vector<size_t> counts{4, 4, 4}, offsets{0, 4, 9}, two{4, 4};
    expect_refused(comm.all_reduce(four, out3),
                   "all_reduce: out holds 3 elements, but the other arguments need 4");
    expect_refused(comm.all_reduce(four, doubles), "all_reduce: in holds float, out holds double");
    expect_refused(comm.all_gather(four, out13),
                   "all_gather: out holds 13 elements, but the other arguments need 12");
    expect_refused(comm.reduce_scatter(twelve, out3),
                   "reduce_scatter: in holds 12 elements, but the other arguments need 9");
    expect_refused(comm.all_to_all(four, out3),
                   "all_to_all: in holds 4 elements, but the other arguments need 3");
    expect_refused(comm.all_gather_v(four, out12, counts, offsets),
                   "out holds 12 elements, but its blocks end at 13");
    expect_refused(comm.all_gather_v(twelve, out13, counts, offsets),
                   "all_gather_v: in holds 12 elements, but the other arguments need 4");
    expect_refused(comm.all_gather_v(four, out12, two, {}), "2 counts and 2 offsets");
    expect_refused(comm.exclusive_scan_async(four, out3).wait(),
                   "exclusive_scan: out holds 3 elements");
    if (comm.rank() == 1) {
      expect_refused(comm.gather(four, out13, 1),
                     "gather: out holds 13 elements, but the other arguments need 12");
      expect_refused(comm.broadcast(four, out3, 1),
                     "broadcast: out holds 3 elements, but the other arguments need 4");
    }
    // A refused call spoils its group.
    expect_ok(comm.group_start(), "group_start");
    expect_ok(comm.all_reduce(twelve, out12), "in the group");
    expect_refused(comm.all_reduce(four, out3), "out holds 3");
    expect_refused(comm.group_end(), "out holds 3");
    expect_ok(comm.all_gather(four, out12), "afterwards");
  });
}

}  // namespace rondo::testing
