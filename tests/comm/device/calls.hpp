// Collectives of communicators on the fake GPU, whose results are compared with the host's.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/algorithms/algorithm.hpp"
#include "tests/comm/device/world.hpp"

namespace rondo::device::test {

inline bool is_direct(Algorithm algorithm) {
  return algorithms::traits_of(algorithm).needs.references;
}

/// One collective as a rank calls it, with buffers for any of them.
struct Call {
  Collective collective;
  size_t count;
  DataType type = DataType::kInt32;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  Algorithm algorithm = Algorithm::kAuto;
  bool in_place = false;

  std::string to_string() const {
    return std::string(name(collective)) + " of " + std::to_string(count) + " " +
           std::string(name(type)) + ", " + std::string(name(op)) + ", by " +
           std::string(name(algorithm)) + (in_place ? ", in place" : "");
  }
};

/// In and Out of one rank, as large as any collective needs them; in place they are one.
class Buffers {
 public:
  Buffers(const Call& call, int rank, int size)
      : call_(call), bytes_(call.count * size_of(call.type) * static_cast<size_t>(size)) {
    const internal::Form form = internal::form_of(call.collective);
    const size_t block = bytes_ / static_cast<size_t>(size) * static_cast<size_t>(rank);
    const bool wide_in = form.in == internal::Holds::kEach && form.out == internal::Holds::kOne;
    const bool wide_out = form.in == internal::Holds::kOne && form.out == internal::Holds::kEach;
    in_ = wide_out && call.in_place ? block : 0;
    out_ = !call.in_place ? bytes_ : wide_in ? block : 0;
    fill(rank);
  }
  /// Once more, at the same place.
  void fill(int rank) {
    memory_.assign(2 * bytes_ + 1, 0xa5);
    const size_t elements = bytes_ / size_of(call_.type);
    for (size_t i = 0; i < elements; ++i) {
      testing::store(memory_.data() + i * size_of(call_.type), call_.type,
                     testing::contribution(rank, i, call_.op));
    }
  }
  const void* in() const { return memory_.data() + in_; }
  void* out() { return memory_.data() + out_; }
  const std::vector<unsigned char>& memory() const { return memory_; }
  bool holds(const Buffers& wanted) const { return memory_ == wanted.memory_; }

 private:
  Call call_;
  size_t bytes_, in_ = 0, out_ = 0;
  std::vector<unsigned char> memory_;
};

/// `buffers`: has in() and out().
template <class Memory>
Status issue(Communicator& c, const Call& call, Memory& buffers, CallOptions options = {}) {
  options.algorithm = call.algorithm;
  if (call.op == ReduceOp::kMulSum && internal::form_of(call.collective).reduces) {
    options.factor = c.rank() + 1;
  }
  return c.run(
      {call.collective, buffers.in(), buffers.out(), call.count, call.type, call.op, call.root},
      options);
}

/// Runs body(communicator) on ranks that are threads, with buffers in the host's memory.
inline void run_on_host(int size, const std::function<void(Communicator&)>& body,
                        Config config = {}) {
  config.device = -1;
  const TempDirectory directory;
  testing::require_all_ok(testing::run_ranks(testing::How::kThreads, size, [&](int rank) {
    auto made = Communicator::create(config_of(directory, rank, size, config));
    testing::expect_ok(made.status(), "create");
    body(*made);
  }));
}

template <class Memory>
using OfAll = std::vector<std::vector<Memory>>;  // [call][rank]

inline OfAll<Buffers> buffers_of(const std::vector<Call>& calls, int size) {
  OfAll<Buffers> all(calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    for (int rank = 0; rank < size; ++rank) all[i].emplace_back(calls[i], rank, size);
  }
  return all;
}

/// What the same calls leave in the host's memory.
inline OfAll<Buffers> on_host(const std::vector<Call>& calls, int size) {
  OfAll<Buffers> all = buffers_of(calls, size);
  run_on_host(size, [&](Communicator& c) {
    for (size_t i = 0; i < calls.size(); ++i) {
      testing::expect_ok(issue(c, calls[i], all[i][c.rank()]), calls[i].to_string());
    }
  });
  return all;
}

/// All calls on one rank.
template <class Memory>
void issue_on(World& world, int rank, const std::vector<Call>& calls, OfAll<Memory>& found) {
  for (size_t i = 0; i < calls.size(); ++i) {
    INFO(calls[i].to_string() << ", rank " << rank);
    must(issue(world[rank], calls[i], found[i][rank], world.on_stream(rank)));
  }
}

/// On all ranks, nothing in between.
template <class Memory>
void issue_all(World& world, const std::vector<Call>& calls, OfAll<Memory>& found) {
  for (int rank = 0; rank < world.size(); ++rank) issue_on(world, rank, calls, found);
}

/// Once all streams are through, all is well, and the results are those of the host.
template <class Memory>
void check_all(World& world, const std::vector<Call>& calls, const OfAll<Memory>& found,
               const OfAll<Buffers>& wanted) {
  finish(world);
  for (int rank = 0; rank < world.size(); ++rank) {
    for (size_t i = 0; i < calls.size(); ++i) {
      INFO(calls[i].to_string() << ", rank " << rank << " of " << world.size());
      CHECK(found[i][rank].holds(wanted[i][rank]));
    }
  }
}

/// Enqueues all calls on all ranks; then compares with the host's results.
template <class Memory>
void compare(World& world, const std::vector<Call>& calls, OfAll<Memory> found) {
  const auto wanted = on_host(calls, world.size());
  issue_all(world, calls, found);
  check_all(world, calls, found, wanted);
}
inline void compare(World& world, const std::vector<Call>& calls) {
  compare(world, calls, buffers_of(calls, world.size()));
}

inline std::vector<Call> every_collective(int size,
                                          const std::vector<size_t>& counts = {0, 1, 7, 300}) {
  std::vector<Call> calls;
  for (const Collective collective :
       {Collective::kAllReduce, Collective::kBarrier, Collective::kReduceScatter,
        Collective::kAllGather, Collective::kBroadcast, Collective::kReduce, Collective::kGather,
        Collective::kScatter, Collective::kAllToAll, Collective::kInclusiveScan,
        Collective::kExclusiveScan}) {
    for (const size_t count : counts) {
      for (const bool in_place : {false, true}) {
        calls.push_back({.collective = collective,
                         .count = count,
                         .type = count % 2 == 0 ? DataType::kInt32 : DataType::kFloat32,
                         .op = count == 7 ? ReduceOp::kMax : ReduceOp::kSum,
                         .root = size / 2,
                         .in_place = in_place});
      }
    }
  }
  return calls;
}

}  // namespace rondo::device::test
