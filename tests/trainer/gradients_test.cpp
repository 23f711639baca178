// What ranks with shards tell each other before an update: the norm of all gradients, in the bits
// that one rank alone would find, and whether any of them is no number.
#include "trainer/gradients.hpp"

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "rondo/rondo.hpp"
#include "tests/harness/catch.hpp"
#include "tests/harness/rank_group.hpp"
#include "trainer/optim/clip.hpp"

using namespace rondo;
using namespace rondo::trainer;
using rondo::testing::expect;
using rondo::testing::expect_eq;

namespace {

const std::vector<DdpTensor> kTensors = {{.name = "table", .shape = {500, 30}},
                                         {.name = "small", .shape = {7}},
                                         {.name = "long", .shape = {9001}},
                                         {.name = "more", .shape = {500, 30}, .adds_to = 0}};

/// Small enough that panels of `table` end inside a norm's block.
constexpr double kCapMb = 5000.0 / (1 << 20);

void with_ranks(int ranks, bool shard,
                const std::function<void(Communicator&, DistributedDataParallel&)>& body) {
  const rondo::testing::TempDirectory meeting;
  rondo::testing::require_all_ok(
      rondo::testing::run_ranks(rondo::testing::How::kThreads, ranks, [&](int rank) {
        Config config;
        config.rank = rank;
        config.world_size = ranks;
        config.rendezvous = meeting.path();
        Result<Communicator> communicator = Communicator::create(config);
        expect(communicator.ok(), communicator.status().to_string());
        Result<DistributedDataParallel> ddp = DistributedDataParallel::create(
            communicator.value(), kTensors, {}, {.bucket_cap_mb = kCapMb, .shard = shard});
        expect(ddp.ok(), ddp.status().to_string());
        body(communicator.value(), ddp.value());
      }));
}

float value_of(size_t i) { return std::sin(static_cast<float>(i * i % 1009)) * 3; }

/// As after finish(): averages where they are owned, and elsewhere what must not matter.
void fill(DistributedDataParallel& ddp) {
  for (size_t i = 0; i < ddp.gradient_elements(); ++i) {
    static_cast<float*>(ddp.gradients())[i] = std::numeric_limits<float>::quiet_NaN();
  }
  for (size_t t = 0; t < ddp.tensors().size() - 1; ++t) {
    const size_t begin = ddp.offset(t), end = begin + ddp.tensors()[t].count();
    const size_t padded = t + 1 < ddp.tensors().size() ? ddp.offset(t + 1) : end;
    for (const DdpRange& own : ddp.own_ranges()) {
      for (size_t i = std::max(begin, own.begin); i < std::min(padded, own.end); ++i) {
        static_cast<float*>(ddp.gradients())[i] = i < end ? value_of(i) : 0;
      }
    }
  }
}

}  // namespace

TEST_CASE("gradients: the norm has the bits that one rank with everything finds") {
  double expected = 0;
  with_ranks(1, false, [&](Communicator&, DistributedDataParallel& ddp) {
    fill(ddp);
    std::vector<GradientView<float>> views;
    for (size_t t = 0; t < 3; ++t) views.push_back({ddp.gradient<float>(t), kTensors[t].count()});
    for (size_t i = 0; i < ddp.parameter_elements(); ++i) {
      static_cast<float*>(ddp.gradients())[i] *= 0.25f;
    }
    expected = std::sqrt(squared_norm<float>(views));
  });
  REQUIRE(expected > 50);
  for (const int ranks : {1, 2, 3, 4, 5, 7}) {
    for (const bool shard : {false, true}) {
      with_ranks(ranks, shard, [&](Communicator& communicator, DistributedDataParallel& ddp) {
        fill(ddp);
        const Result<GradientFacts> facts = examine_gradients<float>(
            communicator, ddp, {.finite = true, .norm = true, .unscale = 0.25});
        expect(facts.ok(), facts.status().to_string());
        expect(facts.value().finite, "not finite");
        expect_eq(facts.value().norm, expected, "norm");
        for (const DdpRange& own : ddp.own_ranges()) {
          const float is = static_cast<float*>(ddp.gradients())[own.begin];
          expect_eq(is, value_of(own.begin) * 0.25f, "unscaled");
        }
      });
    }
  }
}

TEST_CASE("gradients: what one rank's shard holds, all ranks know") {
  for (const int culprit : {0, 1, 2}) {
    for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
      with_ranks(3, true, [&](Communicator& communicator, DistributedDataParallel& ddp) {
        fill(ddp);
        const auto ask = [&] {
          return examine_gradients<float>(communicator, ddp, {.finite = true, .norm = false})
              .value()
              .finite;
        };
        expect(ask(), "finite gradients are refused");
        if (communicator.rank() == culprit) {
          static_cast<float*>(ddp.gradients())[ddp.own_ranges().back().begin] = bad;
        }
        expect(!ask(), "nobody noticed");
      });
    }
  }
}

TEST_CASE("gradients: nothing travels where nothing is asked, or nobody has shards") {
  for (const bool shard : {false, true}) {
    with_ranks(2, shard, [&](Communicator& communicator, DistributedDataParallel& ddp) {
      fill(ddp);
      const uint64_t before = communicator.stats().operations;
      (void)examine_gradients<float>(communicator, ddp, {.finite = false, .norm = false});
      expect_eq(communicator.stats().operations, before, "operations");
      (void)examine_gradients<float>(communicator, ddp, {.finite = true, .norm = true});
      expect_eq(communicator.stats().operations, before + (shard ? 1 : 0), "operations");
    });
  }
}
