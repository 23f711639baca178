// ZeRO-1 in the reducer: who owns what, as a pure function; then, over real ranks (as threads),
// that gradients arrive where they are owned, and parameters everywhere.
#include <cmath>
#include <cstring>
#include <functional>
#include <latch>
#include <numeric>
#include <vector>

#include "tests/harness/sanitized.hpp"
#include "tests/trainer/ddp_rig.hpp"
#include "trainer/ddp/shards.hpp"

using namespace rondo;
using namespace rondo::testing;

namespace {

constexpr size_t kUnit = kDdpShardUnit;
const std::vector<int> kRanks =
    rondo::testing::kSanitized ? std::vector<int>{1, 3} : std::vector<int>{1, 2, 3, 4, 5, 7};

/// Around the unit; some with rows that do not divide it, so that panels end inside one.
std::vector<DdpTensor> odd_tensors() {
  return {{.name = "head", .shape = {300, 48}},
          {.name = "bias", .shape = {kUnit}},
          {.name = "small", .shape = {7}},
          {.name = "skipped", .shape = {40}, .may_skip = true},
          {.name = "long", .shape = {3 * kUnit + 1}},
          {.name = "table", .shape = {500, 30}},
          {.name = "last", .shape = {kUnit - 1}}};
}

ddp::BucketLayout layout_of(const std::vector<DdpTensor>& tensors, size_t cap_bytes) {
  return ddp::make_layout(tensors, 4, {.bytes = cap_bytes, .small_bytes = cap_bytes});
}

/// The owner of every element of the flat parameters; -1: nobody, -2: several.
std::vector<int> owners(const std::vector<DdpTensor>& tensors, const ddp::BucketLayout& layout,
                        int ranks) {
  std::vector<int> owner(layout.parameter_elements, -1);
  for (int r = 0; r < ranks; ++r) {
    for (const DdpRange& range : ddp::make_shards(tensors, layout, ranks, r).own) {
      for (size_t i = range.begin; i < range.end; ++i) owner[i] = owner[i] == -1 ? r : -2;
    }
  }
  return owner;
}

Ddp make(Communicator& communicator, DdpOptions options, bool shard,
         std::vector<DdpTensor> tensors = odd_tensors()) {
  options.shard = shard;
  Result<Ddp> ddp = Ddp::create(communicator, std::move(tensors), {}, options);
  ok(ddp.status());
  ok(ddp->replicate());
  return std::move(ddp).value();
}
DdpOptions unit_buckets() { return {.bucket_cap_mb = 50000.0 / (1 << 20)}; }

float gradient_of(int rank, int step, size_t element) {
  return std::sin(static_cast<float>(element + 1) * static_cast<float>(rank + 3 + step));
}

/// One step up to the averaged gradients. Only tensors' elements are set: padding stays zero.
void reduce(Ddp& ddp, int rank, int step) {
  // Rank r counts r + 1 loss terms.
  ok(ddp.begin({.loss_terms = static_cast<uint64_t>(rank + 1)}));
  for (size_t t = 0; t < ddp.tensors().size(); ++t) {
    for (size_t i = 0; i < ddp.tensors()[t].count(); ++i) {
      ddp.gradient<float>(t)[i] = gradient_of(rank, step, ddp.offset(t) + i);
    }
  }
  for (size_t t = 0; t < ddp.tensors().size(); ++t) ddp.gradient_ready(t);
  ok(ddp.finish());
}

/// For every element of a tensor that this rank owns.
void for_own_elements(const Ddp& ddp, const std::function<void(size_t element)>& body) {
  for (const DdpRange& range : ddp.own_ranges()) {
    for (size_t t = 0; t < ddp.tensors().size() && ddp.tensors()[t].adds_to < 0; ++t) {
      const size_t end = std::min(range.end, ddp.offset(t) + ddp.tensors()[t].count());
      for (size_t i = std::max(range.begin, ddp.offset(t)); i < end; ++i) body(i);
    }
  }
}

}  // namespace

TEST_CASE("ddp shards: all ranks' together are the parameters, cut between units only") {
  const std::vector<DdpTensor> tensors = odd_tensors();
  for (const size_t cap : {size_t{0}, size_t{200}, size_t{5000}, size_t{50000}, size_t{26214400}}) {
    const ddp::BucketLayout layout = layout_of(tensors, cap);
    for (const int ranks : kRanks) {
      INFO("cap " << cap << ", " << ranks << " ranks");
      const std::vector<int> owner = owners(tensors, layout, ranks);
      REQUIRE(std::all_of(owner.begin(), owner.end(), [](int r) { return r >= 0; }));
      for (size_t t = 0; t < tensors.size(); ++t) {
        const int* of_tensor = &owner[layout.offsets[t]];
        for (size_t i = 1; i < tensors[t].count(); ++i) {
          if (of_tensor[i] != of_tensor[i - 1]) REQUIRE(i % kUnit == 0);
        }
      }
    }
  }
}

TEST_CASE("ddp shards: equal within a unit per bucket; small buckets go round") {
  const std::vector<DdpTensor> large = {{.name = "a", .shape = {4000, 768}},
                                        {.name = "b", .shape = {768}},
                                        {.name = "c", .shape = {5000, 768}}};
  const std::vector<DdpTensor> many(60, {.name = "x", .shape = {100}});
  for (const int ranks : {2, 3, 4, 7}) {
    const ddp::BucketLayout layout = layout_of(large, 4 << 20);
    const auto share = [&](const std::vector<DdpTensor>& tensors, const ddp::BucketLayout& of,
                           int r) {
      size_t count = 0;
      for (const DdpRange& range : ddp::make_shards(tensors, of, ranks, r).own) {
        count += range.count();
      }
      return static_cast<double>(count) / static_cast<double>(of.parameter_elements) * ranks;
    };
    const double most = 1 + static_cast<double>(layout.buckets.size() * kUnit) * ranks /
                                static_cast<double>(layout.parameter_elements);
    for (int r = 0; r < ranks; ++r) {
      CHECK(share(large, layout, r) <= most);
      CHECK(share(many, layout_of(many, 0), r) == Approx(1).epsilon(0.15));  // a bucket each
    }
  }
}

TEST_CASE("ddp shards: gradients are the mean on their owner, N = 1 to 5 and 7") {
  for (const int ranks : kRanks) {
    for (const bool overlap : {true, false}) {
      with_ranks(ranks, [&](Communicator& communicator) {
        DdpOptions options = unit_buckets();
        options.overlap = overlap;
        Ddp ddp = make(communicator, options, true);
        expect(ddp.layout().size() > 2, "too few buckets for this test");
        for (int step = 0; step < 2; ++step) {
          reduce(ddp, communicator.rank(), step);
          for_own_elements(ddp, [&](size_t i) {
            double sum = 0, magnitude = 0;
            for (int r = 0; r < ranks; ++r) {
              sum += gradient_of(r, step, i);
              magnitude += std::abs(gradient_of(r, step, i));
            }
            const double terms = ranks * (ranks + 1) / 2.0;
            const double is = static_cast<float*>(ddp.gradients())[i];
            // Each addition and the factor round once.
            const double bound = (ranks + 1) * 6e-8 * magnitude / terms;
            expect(std::abs(is - sum / terms) <= bound, "element " + std::to_string(i) + " is " +
                                                            std::to_string(is) + ", should be " +
                                                            std::to_string(sum / terms));
          });
        }
      });
    }
  }
}

TEST_CASE("ddp shards: reproducible, own gradients have the bits that all-reduces give") {
  for (const int ranks : kRanks) {
    with_ranks(
        ranks,
        [&](Communicator& communicator) {
          Ddp plain = make(communicator, unit_buckets(), false);
          Ddp sharded = make(communicator, unit_buckets(), true);
          for (int step = 0; step < 2; ++step) {
            reduce(plain, communicator.rank(), step);
            reduce(sharded, communicator.rank(), step);
            const auto* expected = static_cast<float*>(plain.gradients());
            const auto* is = static_cast<float*>(sharded.gradients());
            for_own_elements(sharded, [&](size_t i) {
              expect(std::memcmp(&is[i], &expected[i], 4) == 0, "element " + std::to_string(i));
            });
          }
        },
        true);
  }
}

TEST_CASE("ddp shards: after the gather everybody has what each owner wrote") {
  for (const int ranks : kRanks) {
    with_ranks(ranks, [&](Communicator& communicator) {
      Ddp ddp = make(communicator, unit_buckets(), true);
      auto* parameters = static_cast<float*>(ddp.parameters());
      const std::vector<int> owner = owners(ddp.tensors(), layout_of(ddp.tensors(), 50000), ranks);
      expect_eq(owner.size(), ddp.parameter_elements(), "elements");
      for (int step = 0; step < 2; ++step) {
        for (size_t b = ddp.layout().size(); b-- > 0;) {
          const DdpRange own = ddp.own_range(b);
          for (size_t i = own.begin; i < own.end; ++i) {
            parameters[i] = static_cast<float>(1000 * (communicator.rank() + 1) + step) +
                            static_cast<float>(i % 97);
          }
          ddp.gather_parameters(b);
        }
        ok(step == 0 ? ddp.wait_parameters() : ddp.wait_parameters(0));
        if (step == 1) ok(ddp.wait_parameters());
        for (size_t i = 0; i < owner.size(); ++i) {
          expect_eq(parameters[i],
                    static_cast<float>(1000 * (owner[i] + 1) + step) + static_cast<float>(i % 97),
                    "element " + std::to_string(i));
        }
      }
      ok(ddp.wait_parameters());  // nothing under way
    });
  }
}

TEST_CASE("ddp shards: gathers start when a bucket is done, not when it is waited for") {
  with_ranks(2, [](Communicator& communicator) {
    Ddp ddp = make(communicator, unit_buckets(), true);
    const uint64_t before = communicator.stats().operations;
    for (size_t b = ddp.layout().size(); b-- > 0;) ddp.gather_parameters(b);
    // What comes behind them ends behind them: so they go on without anybody waiting for them.
    ok(communicator.barrier());
    expect_eq(communicator.stats().operations - before, ddp.layout().size() + 1, "operations");
    ok(ddp.wait_parameters());
    for (const Work::Times& times : ddp.gather_times()) expect(times.ended_ns > 0, "never ended");
  });
}

TEST_CASE("ddp shards: without them everything is one's own, and gathering is nothing") {
  with_ranks(2, [](Communicator& communicator) {
    Ddp ddp = make(communicator, unit_buckets(), false);
    expect(!ddp.is_sharded(), "sharded");
    expect(ddp.own_ranges() == std::vector<DdpRange>{{0, ddp.parameter_elements()}}, "own");
    const uint64_t before = communicator.stats().operations;
    for (size_t b = 0; b < ddp.layout().size(); ++b) {
      expect_eq(ddp.own_range(b).count(), ddp.layout()[b].count, "own range");
      ddp.gather_parameters(b);
    }
    ok(ddp.wait_parameters());
    expect_eq(communicator.stats().operations, before, "operations");
  });
}

// Rank 1 starts its gather when rank 0 has begun the next step.
TEST_CASE("ddp shards: a step begins while parameters are still gathered, buffers or not") {
  std::latch rank_0_has_begun(1);
  with_ranks(2, [&](Communicator& communicator) {
    DdpOptions options = unit_buckets();
    options.shard = true;
    Result<Ddp> ddp =
        Ddp::create(communicator, odd_tensors(), {{.name = "mean", .shape = {5}}}, options);
    ok(ddp.status());
    ok(ddp->replicate());
    reduce(*ddp, communicator.rank(), 0);
    if (communicator.rank() == 1) rank_0_has_begun.wait();
    for (size_t b = ddp->layout().size(); b-- > 0;) ddp->gather_parameters(b);
    ok(ddp->begin({.loss_terms = 1}));
    if (communicator.rank() == 0) rank_0_has_begun.count_down();
    ok(ddp->wait_parameters());
    all_ready(*ddp);
    ok(ddp->finish());
  });
}

TEST_CASE("ddp shards: reduce-scatter and gather together send what an all-reduce sends") {
  for (const int ranks : {2, 3}) {
    uint64_t sent[3] = {};
    size_t bytes = 0;
    with_ranks(ranks, [&](Communicator& communicator) {
      Ddp ddp = make(communicator, {.broadcast_buffers = false}, true,
                     {{.name = "large", .shape = {1 << 20}}});
      const uint64_t before = communicator.stats().bytes_sent;
      reduce(ddp, communicator.rank(), 0);
      for (size_t b = ddp.layout().size(); b-- > 0;) ddp.gather_parameters(b);
      ok(ddp.wait_parameters());
      sent[communicator.rank()] = communicator.stats().bytes_sent - before;
      if (communicator.rank() == 0) bytes = ddp.parameter_elements() * 4;
    });
    // 2 (N - 1) / N times the bytes by each of N ranks, and the headers.
    const double formula = 2.0 * (ranks - 1) * static_cast<double>(bytes);
    CHECK(static_cast<double>(std::accumulate(sent, sent + 3, uint64_t{0})) ==
          Approx(formula).epsilon(1e-3));
  }
}

TEST_CASE("ddp shards: tied weights are added where the first gradient is owned") {
  using Rows = DdpOptions::Rows;
  const std::vector<DdpTensor> tensors = {{.name = "wte", .shape = {400, 48}},
                                          {.name = "other", .shape = {5}},
                                          {.name = "rows", .shape = {400, 48}, .adds_to = 0}};
  for (const int ranks : {1, 2, 3, 5}) {
    for (const Rows rows : {Rows::kWhole, Rows::kTouched}) {
      with_ranks(
          ranks,
          [&](Communicator& communicator) {
            DdpOptions options = unit_buckets();
            options.rows = rows;
            std::vector<float> results[2];
            for (const bool shard : {false, true}) {
              Ddp ddp = make(communicator, options, shard, tensors);
              const int rank = communicator.rank();
              // Row 85 holds the first shard boundaries: 4096 is no multiple of 48.
              const std::vector<int32_t> touched = {85, 10 + rank, 399, 170 + rank};
              for (size_t i = 0; i < ddp.gradient_elements(); ++i) {
                static_cast<float*>(ddp.gradients())[i] =
                    i < ddp.parameter_elements() ? gradient_of(rank, 0, i) : 0;
              }
              for (const int32_t row : touched) {
                for (size_t c = 0; c < 48; ++c) {
                  const size_t i = static_cast<size_t>(row) * 48 + c;
                  ddp.gradient<float>(2)[i] = gradient_of(rank, 1, i);
                }
              }
              ok(ddp.begin({.loss_terms = 1}));
              ddp.touches_rows(2, touched);
              for (size_t t = 0; t < 3; ++t) ddp.gradient_ready(t);
              ok(ddp.finish());
              for_own_elements(ddp, [&](size_t i) {
                const float value = static_cast<float*>(ddp.gradients())[i];
                results[shard ? 1 : 0].resize(ddp.parameter_elements(), -7);
                results[shard ? 1 : 0][i] = value;
                if (shard) expect_eq(value, results[0][i], "element " + std::to_string(i));
              });
            }
          },
          true);
    }
  }
}

TEST_CASE("ddp shards: compression rounds as it does without, and sends less") {
  for (const DataType wire : {DataType::kBFloat16, DataType::kFloat16}) {
    with_ranks(
        3,
        [&](Communicator& communicator) {
          DdpOptions options = unit_buckets();
          options.hook = make_compression_hook(wire).value();
          Ddp plain = make(communicator, options, false);
          reduce(plain, communicator.rank(), 0);
          options.hook = make_compression_hook(wire).value();
          Ddp sharded = make(communicator, options, true);
          reduce(sharded, communicator.rank(), 0);
          for_own_elements(sharded, [&](size_t i) {
            expect_eq(static_cast<float*>(sharded.gradients())[i],
                      static_cast<float*>(plain.gradients())[i], "element " + std::to_string(i));
          });
        },
        true);
  }
  uint64_t sent[2] = {};
  for (const bool shard : {false, true}) {
    with_ranks(2, [&](Communicator& communicator) {
      Ddp ddp = make(communicator, {.hook = make_compression_hook(DataType::kBFloat16).value()},
                     shard, {{.name = "large", .shape = {1 << 20}}});
      const uint64_t before = communicator.stats().bytes_sent;
      reduce(ddp, communicator.rank(), 0);
      if (communicator.rank() == 0) sent[shard ? 1 : 0] = communicator.stats().bytes_sent - before;
    });
  }
  CHECK(static_cast<double>(sent[1]) == Approx(static_cast<double>(sent[0]) / 2).epsilon(0.01));
}

TEST_CASE("ddp shards: a hook that knows nothing of them is right everywhere, so also there") {
  struct Sum : CommunicationHook {
    std::string name() const override { return "sum"; }
    Work start(Communicator& communicator, const GradientBucket& bucket) override {
      expect_eq(bucket.shard_counts.size(), static_cast<size_t>(communicator.size()), "counts");
      return communicator.all_reduce_async(bucket.data, bucket.data, bucket.count, bucket.type);
    }
    void finish(const GradientBucket& /*bucket*/) override {}
  };
  with_ranks(2, [](Communicator& communicator) {
    DdpOptions options = unit_buckets();
    options.hook = std::make_shared<Sum>();
    Ddp ddp = make(communicator, options, true);
    reduce(ddp, communicator.rank(), 0);
    for_own_elements(ddp, [&](size_t i) {
      expect_eq(static_cast<float*>(ddp.gradients())[i],
                gradient_of(0, 0, i) + gradient_of(1, 0, i), "element " + std::to_string(i));
    });
  });
}

TEST_CASE("ddp shards: ranks that disagree about them are told so") {
  with_ranks(2, [](Communicator& communicator) {
    const Result<Ddp> ddp =
        Ddp::create(communicator, odd_tensors(), {}, {.shard = communicator.rank() == 1});
    expect(ddp.status().message().find("shard=true") != std::string::npos, ddp.status().message());
  });
}
