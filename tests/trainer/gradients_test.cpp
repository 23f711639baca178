// What ranks with shards tell each other before an update: the norm of all gradients, in the bits
// that one rank alone would find, and whether any of them is no number.
#include "trainer/optim/gradients.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/trainer/ddp_rig.hpp"
#include "trainer/optim/clip.hpp"

using namespace rondo;
using namespace rondo::trainer;
using namespace rondo::testing;

namespace {

/// The norm as one rank that has all gradients adds it up: block by block, in the tensors' order.
double norm_of(Ddp& ddp) {
  double squares = 0;
  for (size_t t = 0; t < ddp.tensors().size() && ddp.tensors()[t].adds_to < 0; ++t) {
    const size_t count = ddp.tensors()[t].count();
    for (size_t begin = 0; begin < count; begin += kNormBlock) {
      squares += block_sum(ddp.gradient<float>(t) + begin, std::min(kNormBlock, count - begin));
    }
  }
  return std::sqrt(squares);
}

float value_of(size_t i) { return std::sin(static_cast<float>(i * i % 1009)) * 3; }

/// As after finish(): averages where they are owned, and elsewhere what must not matter.
void fill_owned(Ddp& ddp) {
  set_gradients(ddp, std::numeric_limits<float>::quiet_NaN());
  for (size_t t = 0; t < ddp.tensors().size() - 1; ++t) {
    const size_t begin = ddp.offset(t), end = begin + ddp.tensors()[t].count();
    const size_t padded = t + 1 < ddp.tensors().size() ? ddp.offset(t + 1) : end;
    for (const DdpRange& own : ddp.own_ranges()) {
      for (size_t i = std::max(begin, own.begin); i < std::min(padded, own.end); ++i) {
        gradients_of(ddp)[i] = i < end ? value_of(i) : 0;
      }
    }
  }
}

}  // namespace

TEST_CASE("gradients: the norm has the bits that one rank with everything finds") {
  double expected = 0;
  with_unequal(1, false, [&](Ddp& ddp) {
    fill_owned(ddp);
    for (size_t i = 0; i < ddp.parameter_elements(); ++i) {
      gradients_of(ddp)[i] *= 0.25f;
    }
    expected = norm_of(ddp);
  });
  REQUIRE(expected > 50);
  for (const int ranks : {1, 2, 3, 4, 5, 7}) {
    for (const bool shard : {false, true}) {
      with_unequal(ranks, shard, [&](Ddp& ddp) {
        fill_owned(ddp);
        const Result<GradientFacts> facts = examine_gradients<float>(
            ddp.communicator(), ddp, {.finite = true, .norm = true, .unscale = 0.25});
        expect(facts.ok(), facts.status().to_string());
        expect(facts.value().finite, "not finite");
        expect_eq(facts.value().norm, expected, "norm");
        for (const DdpRange& own : ddp.own_ranges()) {
          const float is = gradients_of(ddp)[own.begin];
          expect_eq(is, value_of(own.begin) * 0.25f, "unscaled");
        }
      });
    }
  }
}

TEST_CASE("gradients: what one rank's shard holds, all ranks know") {
  for (const int culprit : {0, 1, 2}) {
    for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
      with_unequal(3, true, [&](Ddp& ddp) {
        fill_owned(ddp);
        const auto ask = [&] {
          return examine_gradients<float>(ddp.communicator(), ddp, {.finite = true, .norm = false})
              .value()
              .finite;
        };
        expect(ask(), "finite gradients are refused");
        if (ddp.communicator().rank() == culprit) {
          gradients_of(ddp)[ddp.own_ranges().back().begin] = bad;
        }
        expect(!ask(), "nobody noticed");
      });
    }
  }
}

TEST_CASE("gradients: nothing travels where nothing is asked, or nobody has shards") {
  for (const bool shard : {false, true}) {
    with_unequal(2, shard, [&](Ddp& ddp) {
      fill_owned(ddp);
      const uint64_t before = ddp.communicator().stats().operations;
      (void)examine_gradients<float>(ddp.communicator(), ddp, {.finite = false, .norm = false});
      expect_eq(ddp.communicator().stats().operations, before, "operations");
      (void)examine_gradients<float>(ddp.communicator(), ddp, {.finite = true, .norm = true});
      expect_eq(ddp.communicator().stats().operations, before + (shard ? 1 : 0), "operations");
    });
  }
}
