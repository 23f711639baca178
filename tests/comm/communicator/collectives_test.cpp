// Every collective gives exactly the right result: all types and operators, edges of counts and
// alignment, in and out of place, plain and library memory, every algorithm, threads and processes,
// many rounds through tiny slots, several channels.
#include <algorithm>
#include <atomic>
#include <utility>

#include "comm/algorithms/algorithm.hpp"
#include "tests/comm/communicator/every_collective.hpp"
#include "tests/comm/communicator/world.hpp"

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

}  // namespace

TEST_CASE(
    "collectives are exact at the edges of counts, in and out of place, in both kinds of memory") {
  for (const How how : kHows) {
    for (const int size : sizes({2, 3, 5, 1, 4, 7})) {
      INFO(how_name(how) << ", " << size << " ranks");
      require_all_ok(run_world(how, size, [](Communicator& comm) {
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
      }));
    }
  }
}

TEST_CASE("every type and operator, at odd alignment", "[any_links]") {
  for (const int size : kSanitized ? std::vector<int>{3} : std::vector<int>{2, 3, 5}) {
    INFO(size << " ranks");
    require_all_ok(run_world(kHows.back(), size, [](Communicator& comm) {
      for (int type = 0; type < kDataTypes; ++type) {
        const auto t = static_cast<DataType>(type);
        // world.hpp's numbers are not exact in fp8, and more than 0 and 1.
        if (t == DataType::kBool || (is_floating(t) && size_of(t) == 1)) continue;
        for (int op = 0; op < kReduceOps; ++op) {
          if (!supports(t, static_cast<ReduceOp>(op))) continue;
          for (const size_t misalignment : {size_t{0}, size_t{1}}) {
            for (const size_t count :
                 kSanitized ? std::vector<size_t>{777} : std::vector<size_t>{3, 777, 12345}) {
              // No operator matters to what only moves elements: once in place, once not.
              everything(comm,
                         {.count = count,
                          .type = static_cast<DataType>(type),
                          .op = static_cast<ReduceOp>(op),
                          .in_place = op % 2 == 0,
                          .library = type % 2 == 0,
                          .misalignment = misalignment},
                         op < 2 ? Which::kAll : Which::kReductions);
            }
          }
        }
      }
    }));
  }
}

TEST_CASE("every algorithm gives the same results") {
  for (const How how : kHows) {
    for (const int size : sizes({2, 3, 4, 7})) {
      INFO(how_name(how) << ", " << size << " ranks");
      require_all_ok(run_world(how, size, [](Communicator& comm) {
        for (int algorithm = 1; algorithm < kAlgorithms; ++algorithm) {
          for (const size_t count :
               {size_t{1}, size_t{100}, size_t{5000}, size_t{kSanitized ? 20001 : 70001}}) {
            everything(
                comm,
                {.count = count, .library = true, .algorithm = static_cast<Algorithm>(algorithm)});
          }
          const Status status = comm.barrier({.algorithm = static_cast<Algorithm>(algorithm)});
          expect(status.ok() || status.code() == Code::kUnavailable,
                 "barrier: " + status.to_string());
        }
      }));
    }
  }
}

TEST_CASE("tiny slots reach many rounds") {
  for (const How how : kHows) {
    for (const auto& [size, channels] : {std::pair{2, 3}, {3, 1}, {5, 3}}) {
      INFO(how_name(how) << ", " << size << " ranks, " << channels << " channels");
      Config config;
      config.slots = 2;
      config.slot_bytes = 64;
      config.channels = channels;
      require_all_ok(run_world(
          how, size,
          [](Communicator& comm) {
            for (int a = 0; a < kAlgorithms; ++a) {
              const auto algorithm = static_cast<Algorithm>(a);
              if (algorithms::traits_of(algorithm).needs.references) continue;  // no slots
              for (const size_t count : {size_t{1}, size_t{16}, size_t{17}, size_t{1003}}) {
                everything(comm, {.count = count, .algorithm = algorithm});
                everything(
                    comm,
                    {.count = count, .in_place = true, .library = true, .algorithm = algorithm});
              }
            }
          },
          config));
    }
  }
}

TEST_CASE("several channels share a large message") {
  Config config;
  config.channels = 3;
  for (const How how : kHows) {
    INFO(how_name(how));
    require_all_ok(run_world(
        how, 2,
        [](Communicator& comm) {
          for (int repeat = 0; repeat < (kSanitized ? 1 : 2); ++repeat) {
            for (const bool library : plain_and_library())
              everything(comm, {.count = kSanitized ? size_t{70001} : 300007, .library = library});
          }
        },
        config));
  }
}

TEST_CASE("ranks may mix library and plain memory", "[mapped]") {
  for (const int size : kSanitized ? std::vector<int>{3} : std::vector<int>{2, 3, 4}) {
    require_all_ok(run_world(kHows.back(), size, [](Communicator& comm) {
      for (int turn = 0; turn < 4; ++turn) {
        for (const size_t count : {size_t{10}, size_t{3000}, size_t{kSanitized ? 20001 : 50001}}) {
          for (const bool in_place : {false, true}) {
            everything(
                comm,
                {.count = count, .in_place = in_place, .library = (comm.rank() + turn) % 3 == 0});
          }
        }
      }
    }));
  }
}

TEST_CASE("a paced communicator is slower, not different") {
  Config config;
  config.pace = "2GB/s,5us";
  for (const int size : {2, 4}) {
    require_all_ok(run_world(
        How::kForks, size,
        [](Communicator& comm) {
          for (const size_t count : {size_t{1}, size_t{1000}, size_t{30011}})
            everything(comm, {.count = count, .library = true});
          expect_ok(comm.barrier(), "barrier");
        },
        config));
  }
}

TEST_CASE("counts that did not fit are named many operations later, too") {
  const auto results = run_world(How::kForks, 2, [](Communicator& comm) {
    std::vector<float> in(16), out(16);
    const auto exchange = [&](size_t sends, size_t expects) {
      std::vector<size_t> ins(2), outs(2);
      (comm.rank() == 0 ? ins[1] : outs[0]) = comm.rank() == 0 ? sends : expects;
      return comm.all_to_all_v(in.data(), ins, {}, out.data(), outs, {}, DataType::kFloat32);
    };
    // Nobody waits for anybody: rank 1 expects nothing, and what rank 0 sends fits its slots.
    Status status = exchange(7, 0);
    for (int turn = 0; turn < 20 && status.ok(); ++turn) status = exchange(0, 0);
    // A rank on another host, which has all that it needs for a barrier, learns of it later.
    for (int turn = 0; turn < 100'000 && status.ok(); ++turn) status = comm.barrier();
    expect(status.code() == Code::kMismatch, status.to_string());
    expect(status.message().find("rank 0 sends 7 elements to rank 1, which expects 0") !=
               std::string::npos,
           status.to_string());
  });
  require_all_ok(results);
}

TEST_CASE("_v collectives whose counts do not fit together name both, on every rank") {
  for (const int size : {2, 3, 5}) {
    // Too little, too much, something for nothing, nothing for something.
    for (const auto& [sends, expects] :
         {std::pair<size_t, size_t>{10, 12}, {500000, 499999}, {7, 0}, {0, 9}}) {
      INFO(size << " ranks, " << sends << " for " << expects);
      const auto results = run_world(How::kForks, size, [&](Communicator& comm) {
        const auto n = static_cast<size_t>(comm.size());
        std::vector<size_t> ins(n, 3), outs(n, 3);
        if (comm.rank() == 0) ins[1] = sends;
        if (comm.rank() == 1) outs[0] = expects;
        std::vector<float> in(600000 + 3 * n), out(600000 + 3 * n);
        Status status =
            comm.all_to_all_v(in.data(), ins, {}, out.data(), outs, {}, DataType::kFloat32);
        // Who has nothing to wait for learns it from a later call.
        for (int turn = 0; turn < 20 && status.ok(); ++turn) status = comm.barrier();
        expect(status.code() == Code::kMismatch, status.to_string());
        expect(status.message().find("rank 0 sends " + std::to_string(sends) +
                                     " elements to rank 1, which expects " +
                                     std::to_string(expects)) != std::string::npos,
               status.to_string());
      });
      require_all_ok(results);
    }
    require_all_ok(run_world(How::kForks, size, [](Communicator& comm) {
      const auto n = static_cast<size_t>(comm.size());
      std::vector<size_t> counts(n, 4);
      std::vector<float> data(8 * n);
      if (comm.rank() == 1) counts[0] = 5;
      Status status =
          comm.reduce_scatter_v(data.data(), data.data() + 6 * n, counts, {}, DataType::kFloat32);
      for (int turn = 0; turn < 20 && status.ok(); ++turn) status = comm.barrier();
      expect(status.code() == Code::kMismatch, status.to_string());
      expect(status.message().find("reduce_scatter_v") != std::string::npos, status.to_string());
    }));
  }
}

TEST_CASE("gather_v, scatter_v and scans that do not fit together name both calls") {
  using Call = std::function<Status(Communicator&, float*, float*, bool)>;
  const std::vector<size_t> counts{3, 0, 4}, others{3, 1, 4}, offsets{0, 5, 9};
  const auto type = DataType::kFloat32;
  const std::vector<std::pair<std::string, Call>> wrong = {
      {"gather_v",
       [&](Communicator& c, float* in, float* out, bool odd) {
         return c.gather_v(in, out, odd ? others : counts, {}, type, 0);
       }},
      {"gather_v",
       [&](Communicator& c, float* in, float* out, bool odd) {
         return c.gather_v(in, out, counts, odd ? offsets : std::span<const size_t>(), type, 0);
       }},
      {"root 2", [&](Communicator& c, float* in, float* out,
                     bool odd) { return c.scatter_v(in, out, counts, {}, type, odd ? 2 : 0); }},
      {"scatter_v",
       [&](Communicator& c, float* in, float* out, bool odd) {
         return c.scatter_v(in, out, odd ? others : counts, {}, type, 1);
       }},
      {"max",
       [&](Communicator& c, float* in, float* out, bool odd) {
         return c.inclusive_scan(in, out, 8, type, odd ? ReduceOp::kMax : ReduceOp::kSum);
       }},
      {"exclusive_scan",
       [&](Communicator& c, float* in, float* out, bool odd) {
         return odd ? c.exclusive_scan(in, out, 8, type) : c.inclusive_scan(in, out, 8, type);
       }},
      {"count 9", [&](Communicator& c, float* in, float* out, bool odd) {
         return c.exclusive_scan(in, out, odd ? 9 : 8, type);
       }}};
  for (const auto& [named, call] : wrong) {
    INFO(named);
    const auto results = run_world(How::kForks, 3, [&](Communicator& comm) {
      std::vector<float> in(16), out(16);
      Status status = call(comm, in.data(), out.data(), comm.rank() == 1);
      // A rank that waits for nobody learns it from a later call.
      for (int turn = 0; turn < 20 && status.ok(); ++turn) status = comm.barrier();
      expect(status.code() == Code::kMismatch, status.to_string());
      expect(status.message().find(named) != std::string::npos, status.to_string());
    });
    require_all_ok(results);
  }
}

TEST_CASE("nobody leaves a barrier before everybody has come") {
  for (const std::string pace : {"", "inf,10us"}) {
    Config config;
    config.pace = pace;
    std::atomic<int> arrived{0};
    require_all_ok(run_world(
        How::kThreads, 5,
        [&](Communicator& comm) {
          for (int turn = 1; turn <= 20; ++turn) {
            arrived.fetch_add(1);
            expect_ok(comm.barrier(), "barrier");
            expect(arrived.load() >= turn * comm.size(), "left a barrier early");
            expect_ok(comm.barrier(), "barrier");
          }
        },
        config));
  }
}

TEST_CASE("a ring sends exactly 2(N-1)/N of the data per rank") {
  for (const int size : {2, 3, 4, 7}) {
    require_all_ok(run_world(How::kForks, size, [](Communicator& comm) {
      const size_t count = static_cast<size_t>(comm.size()) * 4096;
      Buffer in(count * 4, false), out(count * 4, false);
      fill(in, 0, count, DataType::kFloat32, ReduceOp::kSum, comm.rank());
      const uint64_t before = comm.stats().bytes_sent;
      expect_ok(comm.all_reduce(in.data(), out.data(), count, DataType::kFloat32, ReduceOp::kSum,
                                {.algorithm = Algorithm::kRing}),
                "all_reduce");
      const auto n = static_cast<uint64_t>(comm.size());
      expect_eq(comm.stats().bytes_sent - before, 2 * (n - 1) * count * 4 / n, "bytes sent");
      expect_eq(
          comm.plan(Collective::kAllReduce, count, DataType::kFloat32, false, Algorithm::kRing)
              .bytes_sent_per_rank,
          2 * (n - 1) * count * 4 / n, "bytes planned");
    }));
  }
}

}  // namespace rondo::testing
