// The reducer over real ranks (as threads): sums, order, and when each bucket is issued.
#include "trainer/reducer.hpp"

#include <chrono>
#include <vector>

#include "rondo/rondo.hpp"
#include "tests/harness/catch.hpp"
#include "tests/harness/rank_group.hpp"

using namespace rondo;
using namespace rondo::trainer;
using rondo::testing::expect;
using rondo::testing::expect_eq;

namespace {

int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

/// Five parameters of 16 floats in three buckets: {0, 1}, {2, 3}, {4}.
BucketLayout five_parameters() {
  return make_buckets({16, 16, 16, 16, 16}, 4, {.first_bytes = 128, .bytes = 128});
}

/// Runs `body` as `ranks` ranks of one communicator.
void with_ranks(int ranks, const std::function<void(Communicator&)>& body) {
  const rondo::testing::TempDirectory meeting;
  rondo::testing::require_all_ok(
      rondo::testing::run_ranks(rondo::testing::How::kThreads, ranks, [&](int rank) {
        Config config;
        config.rank = rank;
        config.world_size = ranks;
        config.rendezvous = meeting.path();
        Result<Communicator> communicator = Communicator::create(config);
        expect(communicator.ok(), communicator.status().to_string());
        body(communicator.value());
      }));
}

/// A value that tells rank, step and element apart; sums of a few are exact in float.
float contribution(int rank, int step, size_t element) {
  return static_cast<float>((rank + 1) * 1000 + step * 100 + static_cast<int>(element));
}

}  // namespace

TEST_CASE("reducer: every gradient is the sum over the ranks, step after step") {
  for (const bool overlap : {true, false}) {
    with_ranks(3, [&](Communicator& communicator) {
      const BucketLayout layout = five_parameters();
      std::vector<float> gradients(layout.count);
      Reducer reducer(communicator, layout, gradients.data(),
                      {.type = DataType::kFloat32, .overlap = overlap});
      for (int step = 0; step < 4; ++step) {
        for (size_t i = 0; i < gradients.size(); ++i) {
          gradients[i] = contribution(communicator.rank(), step, i);
        }
        reducer.begin();
        // Each rank finishes its gradients in an order of its own.
        for (int p = 0; p < 5; ++p) reducer.gradient_ready((p * 2 + communicator.rank()) % 5);
        const Status status = reducer.finish();
        expect(status.ok(), status.to_string());
        for (size_t i = 0; i < gradients.size(); ++i) {
          const float sum =
              contribution(0, step, i) + contribution(1, step, i) + contribution(2, step, i);
          expect_eq(gradients[i], sum, "element " + std::to_string(i));
        }
      }
    });
  }
}

TEST_CASE("reducer: a bucket is issued by its last gradient, but never before its predecessors") {
  with_ranks(2, [](Communicator& communicator) {
    const BucketLayout layout = five_parameters();
    std::vector<float> gradients(layout.count);
    Reducer reducer(communicator, layout, gradients.data(), {.type = DataType::kFloat32});
    reducer.begin();
    for (const int parameter : {0, 2, 3}) reducer.gradient_ready(parameter);
    const int64_t before_first = now_ns();
    reducer.gradient_ready(1);  // completes bucket 0, and bucket 1 has been waiting for that
    const int64_t before_last = now_ns();
    reducer.gradient_ready(4);
    const int64_t after_last = now_ns();
    const Status status = reducer.finish();
    expect(status.ok(), status.to_string());
    const auto& times = reducer.times();
    expect(before_first <= times[0].issued_ns, "bucket 0 was issued before it was full");
    expect(times[0].issued_ns <= times[1].issued_ns, "bucket 1 was issued before bucket 0");
    expect(times[1].issued_ns <= before_last, "bucket 1 was not issued when it could be");
    expect(before_last <= times[2].issued_ns, "bucket 2 was issued before it was full");
    expect(times[2].issued_ns <= after_last, "bucket 2 was not issued when it was full");
    for (const Work::Times& t : times) {
      expect(t.issued_ns <= t.started_ns && t.started_ns <= t.ended_ns, "times are out of order");
    }
  });
}

TEST_CASE("reducer: without overlap nothing is issued before finish") {
  with_ranks(2, [](Communicator& communicator) {
    const BucketLayout layout = five_parameters();
    std::vector<float> gradients(layout.count);
    Reducer reducer(communicator, layout, gradients.data(),
                    {.type = DataType::kFloat32, .overlap = false});
    reducer.begin();
    for (int p = 0; p < 5; ++p) reducer.gradient_ready(p);
    const int64_t before_finish = now_ns();
    const Status status = reducer.finish();
    expect(status.ok(), status.to_string());
    for (const Work::Times& t : reducer.times()) {
      expect(before_finish <= t.issued_ns, "a bucket was issued before finish");
    }
  });
}

TEST_CASE("reducer: the communicator's failure is what finish returns") {
  with_ranks(2, [](Communicator& communicator) {
    const BucketLayout layout = five_parameters();
    std::vector<float> gradients(layout.count);
    Reducer reducer(communicator, layout, gradients.data(), {.type = DataType::kFloat32});
    communicator.abort("for the test");
    reducer.begin();
    for (int p = 0; p < 5; ++p) reducer.gradient_ready(p);
    const Status status = reducer.finish();
    expect_eq(to_string(status.code()), to_string(Code::kAborted), status.message());
    expect(status.message().find("for the test") != std::string::npos, status.message());
  });
}
