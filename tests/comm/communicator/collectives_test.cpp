// Every collective gives exactly the right result: all types and operators, edges of counts and
// alignment, in and out of place, plain and library memory, every algorithm, threads and processes,
// many rounds through tiny slots, several channels.
#include <atomic>
#include <chrono>
#include <string>
#include <utility>

#include "comm/algorithms/algorithm.hpp"
#include "tests/comm/communicator/every_collective.hpp"
#include "tests/comm/communicator/worlds.hpp"

namespace rondo::testing {
namespace {

using calls::everything;
using calls::Which;

// Around the number of ranks, vector widths, inline payloads, slots and thresholds between
// algorithms.
std::vector<size_t> edge_counts(int size) {
  const auto n = static_cast<size_t>(size);
  if (kSanitized) return {0, 1, n, 11, 65, 4099, 20011};
  return {0, 1, n - 1, n, n + 1, 7, 8, 9, 10, 11, 31, 33, 63, 65, 1000, 1024, 1025, 4099, 20011};
}

/// A rank that has nothing to wait for in its call learns of the mismatch from a later one.
void expect_mismatch_soon(Communicator& comm, const Status& status, const std::string& says) {
  expect_error(error_of_barriers(comm, status, 20), Code::kMismatch, says);
}

}  // namespace

TEST_CASE(
    "collectives are exact at the edges of counts, in and out of place, in both kinds of memory") {
  run_exhaustively(sizes({2, 3, 5, 1, 4, 7}), {}, [](Communicator& comm) {
    // Each count once in and once out of place, in either memory; with one rank more the other
    // way round. Over links that map nothing there is one memory, and so one of the two.
    int turn = comm.size();
    for (const size_t count : edge_counts(comm.size())) {
      ++turn;
      for (const bool library : plain_and_library()) {
        const bool in_place = (turn % 2 == 0) == library;
        everything(comm, {.count = count, .in_place = in_place, .library = library});
      }
    }
    expect_ok(comm.barrier(), "barrier");
  });
}

TEST_CASE("every type and operator, at odd alignment", "[any_links]") {
  for (const int size : kSanitized ? std::vector<int>{3} : std::vector<int>{2, 3, 5}) {
    run_ok(kHows.back(), size, [](Communicator& comm) {
      for (int type = 0; type < kDataTypes; ++type) {
        const auto t = static_cast<DataType>(type);
        // world.hpp's numbers are not exact in fp8, and more than 0 and 1.
        if (t == DataType::kBool || (is_floating(t) && size_of(t) == 1)) continue;
        for (int op = 0; op < kReduceOps; ++op) {
          const auto o = static_cast<ReduceOp>(op);
          if (!supports(t, o)) continue;
          for (const size_t misalignment : {size_t{0}, size_t{1}}) {
            for (const size_t count :
                 kSanitized ? std::vector<size_t>{777} : std::vector<size_t>{3, 777, 12345}) {
              // No operator matters to what only moves elements: once in place, once not.
              const bool in_place = op % 2 == 0, library = type % 2 == 0;
              everything(comm, {count, t, o, in_place, library, misalignment},
                         op < 2 ? Which::kAll : Which::kReductions);
            }
          }
        }
      }
    });
  }
}

TEST_CASE("every algorithm gives the same results") {
  run_exhaustively(sizes({2, 3, 4, 7}), {}, [](Communicator& comm) {
    for (int a = 1; a < kAlgorithms; ++a) {
      const auto algorithm = static_cast<Algorithm>(a);
      for (const size_t count :
           {size_t{1}, size_t{100}, size_t{5000}, size_t{kSanitized ? 20001 : 70001}}) {
        everything(comm, {.count = count, .library = true, .algorithm = algorithm});
      }
      const Status status = comm.barrier({.algorithm = algorithm});
      if (status.code() != Code::kUnavailable) expect_ok(status, "barrier");
    }
  });
}

TEST_CASE("tiny slots reach many rounds") {
  for (const How how : exhaustive_hows()) {
    for (const auto& [size, channels] : {std::pair{2, 3}, {3, 1}, {5, 3}}) {
      INFO(channels << " channels");
      Config config = with(&Config::slots, 2);
      config.slot_bytes = 64;
      config.channels = channels;
      run_ok(how, size, config, [](Communicator& comm) {
        for (int a = 0; a < kAlgorithms; ++a) {
          const auto algorithm = static_cast<Algorithm>(a);
          if (algorithms::traits_of(algorithm).needs.references) continue;  // no slots
          for (const size_t count : {size_t{1}, size_t{16}, size_t{17}, size_t{1003}}) {
            everything(comm, {.count = count, .algorithm = algorithm});
            everything(comm,
                       {.count = count, .in_place = true, .library = true, .algorithm = algorithm});
          }
        }
      });
    }
  }
}

TEST_CASE("several channels share a large message") {
  run_exhaustively({2}, with(&Config::channels, 3), [](Communicator& comm) {
    for (int repeat = 0; repeat < (kSanitized ? 1 : 2); ++repeat) {
      for (const bool library : plain_and_library())
        everything(comm, {.count = kSanitized ? size_t{70001} : 300007, .library = library});
    }
  });
}

TEST_CASE("ranks may mix library and plain memory", "[mapped]") {
  for (const int size : kSanitized ? std::vector<int>{3} : std::vector<int>{2, 3, 4}) {
    run_ok(kHows.back(), size, [](Communicator& comm) {
      for (int turn = 0; turn < 4; ++turn) {
        const bool library = (comm.rank() + turn) % 3 == 0;
        for (const size_t count : {size_t{10}, size_t{3000}, size_t{kSanitized ? 20001 : 50001}}) {
          for (const bool in_place : {false, true})
            everything(comm, {.count = count, .in_place = in_place, .library = library});
        }
      }
    });
  }
}

TEST_CASE("counts that did not fit are named many operations later, too") {
  run_ok(How::kForks, 2, [](Communicator& comm) {
    std::vector<float> in(16), out(16);
    const auto exchange = [&](size_t sends, size_t expects) {
      std::vector<size_t> ins(2), outs(2);
      (comm.rank() == 0 ? ins[1] : outs[0]) = comm.rank() == 0 ? sends : expects;
      return comm.all_to_all_v(in.data(), ins, {}, out.data(), outs, {}, kFloat);
    };
    // Nobody waits for anybody: rank 1 expects nothing, and what rank 0 sends fits its slots.
    Status status = exchange(7, 0);
    for (int turn = 0; turn < 20 && status.ok(); ++turn) status = exchange(0, 0);
    // A rank on another host, which has all that it needs for a barrier, learns of it later.
    expect_error(error_of_barriers(comm, status), Code::kMismatch,
                 "rank 0 sends 7 elements to rank 1, which expects 0");
  });
}

TEST_CASE("_v collectives whose counts do not fit together name both, on every rank") {
  for (const int size : {2, 3, 5}) {
    // Too little, too much, something for nothing, nothing for something.
    for (const auto& [sends, expects] :
         {std::pair<size_t, size_t>{10, 12}, {500000, 499999}, {7, 0}, {0, 9}}) {
      INFO(sends << " for " << expects);
      run_ok(How::kForks, size, [&](Communicator& comm) {
        const auto n = static_cast<size_t>(comm.size());
        std::vector<size_t> ins(n, 3), outs(n, 3);
        if (comm.rank() == 0) ins[1] = sends;
        if (comm.rank() == 1) outs[0] = expects;
        std::vector<float> in(600000 + 3 * n), out(600000 + 3 * n);
        expect_mismatch_soon(comm,
                             comm.all_to_all_v(in.data(), ins, {}, out.data(), outs, {}, kFloat),
                             "rank 0 sends " + std::to_string(sends) +
                                 " elements to rank 1, which expects " + std::to_string(expects));
      });
    }
    run_ok(How::kForks, size, [](Communicator& comm) {
      const auto n = static_cast<size_t>(comm.size());
      std::vector<size_t> counts(n, 4);
      std::vector<float> data(8 * n);
      if (comm.rank() == 1) counts[0] = 5;
      expect_mismatch_soon(
          comm, comm.reduce_scatter_v(data.data(), data.data() + 6 * n, counts, {}, kFloat),
          "reduce_scatter_v");
    });
  }
}

TEST_CASE("gather_v, scatter_v and scans that do not fit together name both calls") {
  /// A call, which one rank makes in another way.
  using Call = std::function<Status(Communicator&, float* data, bool odd)>;
  const std::vector<size_t> counts{3, 0, 4}, others{3, 1, 4}, offsets{0, 5, 9};
  const auto type = kFloat;
  const std::vector<std::pair<std::string, Call>> wrong = {
      {"gather_v",
       [&](Communicator& c, float* data, bool odd) {
         return c.gather_v(data, data + 16, odd ? others : counts, {}, type, 0);
       }},
      {"gather_v",
       [&](Communicator& c, float* data, bool odd) {
         const std::span<const size_t> given = odd ? offsets : std::span<const size_t>();
         return c.gather_v(data, data + 16, counts, given, type, 0);
       }},
      {"root 2",
       [&](Communicator& c, float* data, bool odd) {
         return c.scatter_v(data, data + 16, counts, {}, type, odd ? 2 : 0);
       }},
      {"scatter_v",
       [&](Communicator& c, float* data, bool odd) {
         return c.scatter_v(data, data + 16, odd ? others : counts, {}, type, 1);
       }},
      {"max",
       [&](Communicator& c, float* data, bool odd) {
         return c.inclusive_scan(data, data, 8, type, odd ? ReduceOp::kMax : ReduceOp::kSum);
       }},
      {"exclusive_scan",
       [&](Communicator& c, float* data, bool odd) {
         return odd ? c.exclusive_scan(data, data, 8, type) : c.inclusive_scan(data, data, 8, type);
       }},
      {"count 9", [&](Communicator& c, float* data, bool odd) {
         return c.exclusive_scan(data, data, odd ? 9 : 8, type);
       }}};
  for (const auto& [named, call] : wrong) {
    INFO(named);
    run_ok(How::kForks, 3, [&](Communicator& comm) {
      std::vector<float> data(32);
      expect_mismatch_soon(comm, call(comm, data.data(), comm.rank() == 1), named);
    });
  }
}

TEST_CASE("over a pace collectives are exact in both kinds of memory") {
  for (const int size : {2, 4}) {
    run_ok(How::kForks, size, with(&Config::pace, "2GB/s,5us"), [](Communicator& comm) {
      for (const size_t count : {size_t{1}, size_t{1000}, size_t{30011}}) {
        for (const bool library : plain_and_library()) {
          everything(comm, {.count = count, .library = library});
        }
      }
      expect_ok(comm.barrier(), "barrier");
    });
  }
}

TEST_CASE("over a pace direct algorithms take as long as the bytes on the busiest rank's wire",
          "[mapped]") {
  run_ok(How::kForks, 4, with(&Config::pace, "50MB/s,1ms"), [](Communicator& comm) {
    const size_t count = 250'000;  // 1 MB: 20 ms on a wire
    Buffer in(4 * count, true), out(4 * count, true);
    const auto at_least = [&](double ms, const std::string& what, const auto& call) {
      expect_ok(comm.barrier(), "barrier");
      const auto began = std::chrono::steady_clock::now();
      expect_ok(call(), what);
      const std::chrono::duration<double, std::milli> took =
          std::chrono::steady_clock::now() - began;
      // The fastest rank's clock: another one may have begun a little earlier.
      double longest = took.count();
      expect_ok(comm.all_reduce(&longest, &longest, 1, DataType::kFloat64, ReduceOp::kMax), "max");
      expect(longest >= ms, what + " took " + std::to_string(longest) + " ms");
    };
    at_least(2 * 0.75 * 20, "all_reduce", [&] {
      return comm.all_reduce(in.data(), out.data(), count, kFloat, ReduceOp::kSum,
                             {.algorithm = Algorithm::kTwoShotDirect});
    });
    at_least(3 * 20, "broadcast", [&] {  // the root's wire carries it three times
      return comm.broadcast(in.data(), in.data(), count, kFloat, 1,
                            {.algorithm = Algorithm::kOneShotDirect});
    });
  });
}

TEST_CASE("nobody leaves a barrier before everybody has come") {
  for (const std::string pace : {"", "inf,10us"}) {
    std::atomic<int> arrived{0};
    run_ok(How::kThreads, 5, with(&Config::pace, pace), [&](Communicator& comm) {
      for (int turn = 1; turn <= 20; ++turn) {
        arrived.fetch_add(1);
        expect_ok(comm.barrier(), "barrier");
        expect(arrived.load() >= turn * comm.size(), "left a barrier early");
        expect_ok(comm.barrier(), "barrier");
      }
    });
  }
}

TEST_CASE("a ring sends exactly 2(N-1)/N of the data per rank") {
  for (const int size : {2, 3, 4, 7}) {
    run_ok(How::kForks, size, [](Communicator& comm) {
      const auto n = static_cast<size_t>(comm.size()), count = n * 4096;
      const auto type = kFloat;
      const uint64_t wanted = 2 * (n - 1) * count * 4 / n, before = comm.stats().bytes_sent;
      calls::all_reduce(comm, {.count = count, .algorithm = Algorithm::kRing},
                        Collective::kAllReduce);
      expect_eq(comm.stats().bytes_sent - before, wanted, "bytes sent");
      const Plan plan = comm.plan(Collective::kAllReduce, count, type, false, Algorithm::kRing);
      expect_eq(plan.bytes_sent_per_rank, wanted, "bytes planned");
    });
  }
}

}  // namespace rondo::testing
