// Averages of integers: exact near the ends of every type, in every collective and by every algorithm
// that is allowed; refused by the others; and as NCCL's where the communicator wants that.
#include <limits>
#include <string>
#include <vector>

#include "comm/algorithms/algorithm.hpp"
#include "tests/comm/communicator/worlds.hpp"

namespace rondo::testing {
namespace {

__extension__ using Wide = __int128;

/// Near one end of the type, near both in turn, or near 0.
template <class T>
T input(int rank, size_t i) {
  using Limits = std::numeric_limits<T>;
  const auto near = static_cast<T>((i / 4 + static_cast<size_t>(rank) * 3) % 11);
  const T high = static_cast<T>(Limits::max() - near), low = static_cast<T>(Limits::min() + near);
  switch (i % 4) {
    case 0:
      return high;
    case 1:
      return low;
    case 2:
      return rank % 2 == 0 ? low : high;
    default:
      return rank % 2 == 0 ? near : static_cast<T>(0 - near);
  }
}

template <class T>
T average(int size, size_t i) {
  Wide sum = 0;
  for (int rank = 0; rank < size; ++rank) sum += input<T>(rank, i);
  return static_cast<T>(sum / size);
}

template <class T>
std::vector<T> inputs(int rank, size_t count) {
  std::vector<T> values;
  for (size_t i = 0; i < count; ++i) values.push_back(input<T>(rank, i));
  return values;
}

/// Every collective that has averages. Returns how many of them this algorithm carried out.
template <class T>
int average_all(Communicator& comm, Algorithm algorithm, size_t count, bool library) {
  constexpr DataType type = *DataTypeOf<T>::kValue;
  const int n = comm.size(), rank = comm.rank(), root = n - 1;
  const auto ranks = static_cast<size_t>(n), own = static_cast<size_t>(rank);
  const std::string what = std::string(name(type)) + " by " + std::string(name(algorithm));
  const CallOptions options{.algorithm = algorithm};
  const std::vector<T> all = inputs<T>(rank, count * ranks);
  Buffer in(all.size() * sizeof(T), library), out(all.size() * sizeof(T), library);
  std::memcpy(in.data(), all.data(), in.bytes());
  auto* const found = reinterpret_cast<T*>(out.data());
  int done = 0;
  const auto judge = [&](const Status& status, size_t first, size_t elements) {
    if (algorithm != Algorithm::kAuto && !status.ok()) {
      expect(status.code() == Code::kUnavailable, what + ": " + status.to_string());
      return;
    }
    expect_ok(status, what);
    ++done;
    for (size_t i = 0; i < elements; ++i)
      expect_eq(found[i] + 0, average<T>(n, first + i) + 0, what);
  };
  const ReduceOp op = ReduceOp::kAvg;
  judge(comm.all_reduce(in.data(), found, count, type, op, options), 0, count);
  judge(comm.reduce(in.data(), found, count, type, op, root, options), 0, rank == root ? count : 0);
  judge(comm.reduce_scatter(in.data(), found, count, type, op, options), own * count, count);
  std::vector<size_t> counts;
  size_t first = 0;
  for (size_t r = 0; r < ranks; ++r) counts.push_back(count > r ? count - r : 0);
  for (size_t r = 0; r < own; ++r) first += counts[r];
  judge(comm.reduce_scatter_v(in.data(), found, counts, {}, type, op, options), first, counts[own]);
  return done;
}

template <class T>
void by_every_algorithm(Communicator& comm) {
  for (int a = 0; a < kAlgorithms; ++a) {
    const auto algorithm = static_cast<Algorithm>(a);
    int done = 0;
    for (const size_t count : {size_t{1}, size_t{77}, size_t{2500}}) {
      done += average_all<T>(comm, algorithm, count, count != 77);
    }
    if (algorithm == Algorithm::kAuto) expect_eq(done, 12, "auto");
    if (algorithm == Algorithm::kTwoShot || algorithm == Algorithm::kStar) {
      expect(done > 0, std::string(name(algorithm)) + " did nothing");
    }
    const bool in_order = algorithms::traits_of(algorithm).folds_in_rank_order;
    if (!in_order && comm.size() > 1) expect_eq(done, 0, std::string(name(algorithm)));
  }
}

template <class... Types>
void of_types(Communicator& comm) {
  (by_every_algorithm<Types>(comm), ...);
}
constexpr auto of_every_type =
    of_types<int8_t, uint8_t, int16_t, uint16_t, int32_t, uint32_t, int64_t, uint64_t>;

template <class T>
T average_of(Communicator& comm, T even, T odd) {
  const T in = comm.rank() % 2 == 0 ? even : odd;
  T out = 0;
  expect_ok(comm.all_reduce(&in, &out, 1, *DataTypeOf<T>::kValue, ReduceOp::kAvg), "all_reduce");
  return out;
}

}  // namespace

TEST_CASE("averages of integers are exact, by every algorithm that is allowed") {
  for (const int size : sizes({2, 3, 1, 4, 5, 7})) {
    const size_t slot_bytes = size % 2 == 0 ? 512 : 0;  // many rounds
    run_ok(How::kThreads, size, with(&Config::slot_bytes, slot_bytes), of_every_type);
  }
  run_ok(kHows.back(), 3, of_every_type);
}

TEST_CASE("an algorithm that adds partial sums gives way to another, or is refused by name") {
  run_ok(How::kThreads, 3, with(&Config::algorithm, Algorithm::kRing), [](Communicator& comm) {
    const auto chosen = [&](DataType type, ReduceOp op) {
      return comm.plan(Collective::kAllReduce, 1000, type, false, Algorithm::kAuto, op).algorithm;
    };
    expect(chosen(kInt, ReduceOp::kAvg) != Algorithm::kRing, "a ring");
    expect(chosen(kInt, ReduceOp::kSum) == Algorithm::kRing, "no ring");
    expect(chosen(kFloat, ReduceOp::kAvg) == Algorithm::kRing, "no ring of floats");
    std::vector<int32_t> data(1000, std::numeric_limits<int32_t>::max());
    for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kTree}) {
      const Status refused = comm.all_reduce(data, data, ReduceOp::kAvg, {.algorithm = algorithm});
      expect_error(refused, Code::kUnavailable,
                   "int32 averages by " + std::string(name(algorithm)));
    }
    expect_ok(comm.all_reduce(data, data, ReduceOp::kAvg), "afterwards");
    expect(data == std::vector<int32_t>(1000, std::numeric_limits<int32_t>::max()), "average");
  });
}

TEST_CASE("a communicator may want averages that wrap, with every algorithm; so do its parts") {
  Config config = with(&Config::wrapping_averages, true);
  config.algorithm = Algorithm::kRing;
  run_ok(How::kThreads, 2, config, [](Communicator& comm) {
    Communicator part = expect_value(comm.duplicate(), "duplicate");
    for (Communicator* const c : {&comm, &part}) {
      const Plan plan = c->plan(Collective::kAllReduce, 1000, DataType::kUint8, false,
                                Algorithm::kAuto, ReduceOp::kAvg);
      expect(plan.algorithm == Algorithm::kRing, "no ring");
      expect_eq(average_of<uint8_t>(*c, 200, 250) + 0, 97, "uint8");
      expect_eq(average_of<int8_t>(*c, 100, 120) + 0, -18, "int8");
      expect_eq(average_of<int64_t>(*c, int64_t{1} << 62, int64_t{1} << 62), -(int64_t{1} << 62),
                "int64");
    }
  });
}

}  // namespace rondo::testing
