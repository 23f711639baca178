// Hooks of several collectives, PowerSGD among them; gradients of a mean; the warning about an
// order of tensors that costs overlap.
#include <cmath>
#include <cstring>
#include <mutex>
#include <stdexcept>

#include "tests/trainer/ddp_rig.hpp"
#include "trainer/ddp/order_watch.hpp"
#include "trainer/examples/powersgd_hook.hpp"

using namespace rondo;
using namespace rondo::testing;

namespace {

/// Doubles the sum with each collective after the first, of which bucket b has b + 1.
struct Chain : SummingHook {
  size_t collectives(const GradientBucket& bucket) const override { return bucket.index + 1; }
  Work start(Communicator& communicator, const GradientBucket& bucket) override {
    return go(communicator, bucket, 0);
  }
  Work next(Communicator& communicator, const GradientBucket& bucket, size_t stage) override {
    if (bucket.index == throws_at && stage == 2) throw std::runtime_error("no second one");
    auto* data = static_cast<float*>(bucket.data);
    // All ranks have the sum; of the next one each gives a part.
    const auto share = 2.0f / static_cast<float>(communicator.size());
    for (size_t i = 0; i < bucket.count; ++i) data[i] *= share;
    return go(communicator, bucket, stage);
  }
  void finish(const GradientBucket& bucket) override { calls.push_back({bucket.index, 99}); }

  Work go(Communicator& communicator, const GradientBucket& bucket, size_t stage) {
    calls.push_back({bucket.index, stage});
    return SummingHook::start(communicator, bucket);
  }
  std::vector<std::pair<size_t, size_t>> calls;  // bucket, stage
  size_t throws_at = SIZE_MAX;
};

/// Matrices of the given shapes after a vector.
Tensors matrices() {
  return {{.name = "bias", .shape = {24}},
          {.name = "w", .shape = {24, 2, 15}},
          {.name = "v", .shape = {50, 40}}};
}

/// Element of a matrix of rank 1, different on each rank and in each step.
float rank_one(int rank, int step, size_t row, size_t column) {
  return std::sin(static_cast<float>(row + 1) * 0.3f) *
         std::cos(static_cast<float>(column + 1) * 0.2f) * static_cast<float>(rank + step + 1);
}

}  // namespace

TEST_CASE("ddp hooks: collectives that follow one another, in one order on every rank") {
  for (const int ranks : {1, 2, 4}) {
    const bool overlap = ranks != 4;
    std::mutex mutex;
    std::vector<std::vector<std::pair<size_t, size_t>>> orders;
    with_ranks(ranks, [&](Communicator& communicator) {
      const auto hook = std::make_shared<Chain>();
      Ddp ddp = make(communicator, {.bucket_cap_mb = kSmallMb, .overlap = overlap, .hook = hook});
      fill(ddp, communicator.rank(), 0);
      make_step(ddp);
      for (size_t i = 0; i < 80; ++i) {
        const double doubled = i < 32 ? 1 : i < 64 ? 2 : 4;  // none, one or two times
        expect_eq(gradients_of(ddp)[i], doubled * sum_of_contributions(ranks, 0, i), "element");
      }
      for (const DdpBucketTimes& t : ddp.times()) {
        expect(t.work.issued_ns > 0 && t.work.issued_ns <= t.work.ended_ns, "times of a chain");
      }
      const std::lock_guard lock(mutex);
      orders.push_back(hook->calls);
    });
    for (const auto& order : orders) CHECK(order == orders.front());
    // Bucket 1's second collective starts with bucket 2, before its own turn to be finished.
    const std::vector<std::pair<size_t, size_t>> expected = {
        {0, 0}, {1, 0}, {2, 0}, {1, 1}, {0, 99}, {1, 99}, {2, 1}, {2, 2}, {2, 99}};
    CHECK(orders.front() == expected);
  }
}

TEST_CASE("ddp hooks: one that throws in a later collective is an error on every rank") {
  with_ranks(2, [](Communicator& communicator) {
    const auto hook = std::make_shared<Chain>();
    if (communicator.rank() == 1) hook->throws_at = 2;
    Ddp ddp = make(communicator, {.bucket_cap_mb = kSmallMb, .hook = hook});
    expect_error(try_step(ddp), "rank 1 cannot reduce bucket 2: no second one");
  });
}

TEST_CASE("ddp powersgd: exact where the sum has its rank, the same bits on every rank") {
  for (const int ranks : {1, 2, 3, 4}) {
    std::vector<std::vector<float>> results(static_cast<size_t>(ranks));
    with_ranks(ranks, [&](Communicator& communicator) {
      Ddp ddp =
          make(communicator, {.bucket_cap_mb = 0.002, .hook = std::make_shared<PowerSgdHook>(2)},
               matrices());
      const auto for_each_element = [&](const auto& body) {
        for (size_t t = 0; t < 3; ++t) {
          const size_t columns = t == 0 ? 1 : t == 1 ? 30 : 40;
          for (size_t i = 0; i < ddp.tensors()[t].count(); ++i) {
            body(ddp.gradient<float>(t)[i], i / columns, i % columns);
          }
        }
      };
      for (int step = 0; step < 3; ++step) {
        for_each_element([&](float& gradient, size_t row, size_t column) {
          gradient = rank_one(communicator.rank(), step, row, column);
        });
        make_step(ddp);
        for_each_element([&](float gradient, size_t row, size_t column) {
          double sum = 0;
          for (int r = 0; r < ranks; ++r) sum += rank_one(r, step, row, column);
          expect_near(gradient, sum / ranks, 1e-4, "a gradient");
        });
      }
      results[static_cast<size_t>(communicator.rank())] = copy_of_gradients(ddp);
    });
    for (const auto& result : results) {
      CHECK(std::memcmp(result.data(), results[0].data(), result.size() * 4) == 0);
    }
  }
}

// A matrix of full rank: one step's approximation is far off, the sum of many is not.
TEST_CASE("ddp powersgd: what a step leaves out comes later") {
  with_ranks(2, [](Communicator& communicator) {
    Ddp ddp = make(communicator, {.hook = std::make_shared<PowerSgdHook>(2)},
                   {{.name = "w", .shape = {12, 12}}});
    constexpr int kSteps = 100;
    std::vector<double> sum(144);
    double first_off = 0, off = 0, size = 0;
    const auto value = [](size_t i) { return std::sin(static_cast<float>(i * i + 1)); };
    for (int step = 0; step < kSteps; ++step) {
      for (size_t i = 0; i < 144; ++i) ddp.gradient<float>(0)[i] = value(i);
      make_step(ddp);
      for (size_t i = 0; i < 144; ++i) {
        sum[i] += ddp.gradient<float>(0)[i];
        if (step == 0) first_off += std::pow(sum[i] - value(i), 2);
      }
    }
    for (size_t i = 0; i < 144; ++i) {
      off += std::pow(sum[i] / kSteps - value(i), 2);
      size += std::pow(value(i), 2);
    }
    expect(first_off > 0.3 * size, "rank 2 is enough for this matrix");
    expect(off < 0.01 * size, "the mean of 100 steps is off by " + std::to_string(off / size));
  });
}

TEST_CASE("ddp averaging: gradients of each rank's mean, for unequal batches") {
  using Average = DdpOptions::Average;
  for (const Average average : {Average::kLossTerms, Average::kRanks}) {
    for (const int ranks : {1, 2, 3}) {
      with_ddp(ranks, {.bucket_cap_mb = kSmallMb, .average = average}, [&](Ddp& ddp) {
        // Rank r has 2 r + 1 terms, whose mean is 10 + r.
        const int rank = rank_of(ddp);
        set_gradients(ddp, 10.0f + static_cast<float>(rank));
        make_step(ddp, {.loss_terms = static_cast<uint64_t>(2 * rank + 1)});
        double sum = 0, weights = 0;
        for (int r = 0; r < ranks; ++r) {
          const double weight = average == Average::kRanks ? 1 : 2 * r + 1;
          sum += weight * (10 + r);
          weights += weight;
        }
        expect_near(ddp.gradient<float>(3)[7], sum / weights, 1e-5, "the mean");
      });
    }
  }
}

TEST_CASE("ddp order: who keeps finished buckets waiting is named, after three such steps") {
  const Tensors tensors = five();
  const ddp::BucketLayout layout =
      ddp::make_layout(tensors, 4, {.bytes = 128, .small_bytes = 128});  // 0 1 | 2 3 | 4
  const auto steps = [&](const std::vector<size_t>& order, int64_t last_lasts_ns, int count,
                         int64_t others_last_ns = 500000) {
    ddp::BucketOrder buckets(tensors, layout, true);
    ddp::OrderWatch watch;
    std::vector<std::string> said;
    for (int step = 0; step < count; ++step) {
      buckets.begin();
      for (size_t i = 0; i < 5; ++i) {
        (void)buckets.mark_final(order[i], 16, static_cast<int64_t>(1000000 * (i + 1)));
      }
      std::vector<DdpBucketTimes> times;
      for (size_t b = 0; b < 3; ++b) {
        const int64_t lasts_ns = b == 2 ? last_lasts_ns : others_last_ns;
        times.push_back({.ready_ns = buckets.ready_ns(b),
                         .work = {.issued_ns = 1, .started_ns = 1, .ended_ns = 1 + lasts_ns}});
      }
      const auto warning = watch.look(tensors, layout, buckets, times);
      if (warning) said.push_back(std::to_string(step) + ": " + *warning);
    }
    return said;
  };
  CHECK(steps({0, 1, 2, 3, 4}, 500000, 10).empty());
  CHECK(steps({1, 0, 3, 2, 4}, 500000, 10).empty());        // inside buckets
  CHECK(steps({4, 3, 2, 1, 0}, 500000, 2).empty());         // may be chance
  CHECK(steps({0, 1, 4, 2, 3}, 50000, 10).empty());         // costs next to nothing
  CHECK(steps({4, 3, 2, 1, 0}, 40000, 10, 40000).empty());  // a step loses 0.08 ms
  const auto said = steps({4, 3, 2, 1, 0}, 500000, 10);     // as forward goes
  REQUIRE(said.size() == 1);
  CHECK(said[0].find("2: the gradient of 'p0' (bucket 0) is ready 4 ms after bucket 2 with 'p4'") ==
        0);
  CHECK(said[0].find(": 67 % of the communication") != std::string::npos);
}

// Every message takes a millisecond at least, so what waits for the first tensor is most of it.
TEST_CASE("ddp order: a step's times give it away") {
  Config paced;
  paced.pace = "1GB/s,1000us";
  with_ranks(2, paced, [](Communicator& communicator) {
    Ddp ddp = make(communicator, {.bucket_cap_mb = 0});
    for (int step = 0; step < 30; ++step) {
      ok(ddp.begin({.loss_terms = 1}));
      ok(ddp.headers().status());
      for (size_t t = 4; t > 0; --t) ddp.gradient_ready(t);
      for (const int64_t begin = now_ns(); now_ns() - begin < 3000000;) {
      }
      ddp.gradient_ready(0);
      ok(ddp.finish());
    }
    expect_eq(ddp.warnings().size(), size_t{1}, "warnings");
    expect(ddp.warnings()[0].starts_with("the gradient of 'p0' (bucket 0)"), ddp.warnings()[0]);
  });
}
