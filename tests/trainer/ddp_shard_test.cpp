// ZeRO-1 in the reducer: who owns what, as a pure function; then, over real ranks (as threads),
// that gradients arrive where they are owned, and parameters everywhere.
#include <atomic>
#include <cmath>
#include <cstring>
#include <latch>

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
Tensors odd_tensors() {
  return {{.name = "head", .shape = {300, 48}},
          {.name = "bias", .shape = {kUnit}},
          {.name = "small", .shape = {7}},
          {.name = "skipped", .shape = {40}, .may_skip = true},
          {.name = "long", .shape = {3 * kUnit + 1}},
          {.name = "table", .shape = {500, 30}},
          {.name = "last", .shape = {kUnit - 1}}};
}

ddp::BucketLayout layout_of(const Tensors& tensors, size_t cap_bytes) {
  return ddp::make_layout(tensors, 4, {.bytes = cap_bytes, .small_bytes = cap_bytes});
}

/// The owner of every element of the flat parameters; -1: nobody, -2: several.
std::vector<int> owners(const Tensors& tensors, const ddp::BucketLayout& layout, int ranks) {
  std::vector<int> owner(layout.parameter_elements, -1);
  for (int r = 0; r < ranks; ++r) {
    for (const DdpRange& range : ddp::make_shards(tensors, layout, ranks, r).own) {
      for (size_t i = range.begin; i < range.end; ++i) owner[i] = owner[i] == -1 ? r : -2;
    }
  }
  return owner;
}

DdpOptions unit_buckets(bool shard = true) {
  return {.bucket_cap_mb = 50000.0 / (1 << 20), .shard = shard};
}

/// Runs `body` on ranks that hold odd_tensors() in shards.
void with_shards(int ranks, const std::function<void(Ddp&)>& body) {
  with_ddp(ranks, unit_buckets(), odd_tensors(), body);
}

float gradient_of(int rank, int step, size_t element) {
  return std::sin(static_cast<float>(element + 1) * static_cast<float>(rank + 3 + step));
}

/// One step up to the averaged gradients. Only tensors' elements are set: padding stays zero.
void reduce(Ddp& ddp, int step) {
  const int rank = rank_of(ddp);
  // Rank r counts r + 1 loss terms.
  ok(ddp.begin({.loss_terms = static_cast<uint64_t>(rank + 1)}));
  for (size_t t = 0; t < ddp.tensors().size(); ++t) {
    for (size_t i = 0; i < ddp.tensors()[t].count(); ++i) {
      ddp.gradient<float>(t)[i] = gradient_of(rank, step, ddp.offset(t) + i);
    }
  }
  all_ready(ddp);
  ok(ddp.finish());
}

/// From the last bucket on, as after its update.
void gather_all(Ddp& ddp) {
  for (size_t b = ddp.layout().size(); b-- > 0;) ddp.gather_parameters(b);
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

/// The elements that `ddp` owns have the bits that `plain` has.
void expect_same_bits(Ddp& ddp, Ddp& plain) {
  for_own_elements(ddp, [&](size_t i) {
    const bool same = std::memcmp(&gradients_of(ddp)[i], &gradients_of(plain)[i], 4) == 0;
    expect(same, "element " + std::to_string(i));
  });
}

}  // namespace

TEST_CASE("ddp shards: all ranks' together are the parameters, cut between units only") {
  const Tensors tensors = odd_tensors();
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
  const Tensors large = {{.name = "a", .shape = {4000, 768}},
                         {.name = "b", .shape = {768}},
                         {.name = "c", .shape = {5000, 768}}};
  const Tensors many(60, {.name = "x", .shape = {100}});
  for (const int ranks : {2, 3, 4, 7}) {
    const ddp::BucketLayout layout = layout_of(large, 4 << 20);
    const auto share = [&](const Tensors& tensors, const ddp::BucketLayout& of, int r) {
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
      DdpOptions options = unit_buckets();
      options.overlap = overlap;
      options.gradients = kOfSum;
      const auto body = [&](Ddp& ddp) {
        expect(ddp.layout().size() > 2, "too few buckets for this test");
        for (int step = 0; step < 2; ++step) {
          reduce(ddp, step);
          for_own_elements(ddp, [&](size_t i) {
            double sum = 0, magnitude = 0;
            for (int r = 0; r < ranks; ++r) {
              sum += gradient_of(r, step, i);
              magnitude += std::abs(gradient_of(r, step, i));
            }
            const double terms = ranks * (ranks + 1) / 2.0;
            // Each addition and the factor round once.
            const double bound = (ranks + 1) * 6e-8 * magnitude / terms;
            expect_near(gradients_of(ddp)[i], sum / terms, bound, "element " + std::to_string(i));
          });
        }
      };
      with_ddp(ranks, options, odd_tensors(), body);
    }
  }
}

TEST_CASE("ddp shards: reproducible, own gradients have the bits that all-reduces give") {
  for (const int ranks : kRanks) {
    with_ranks(ranks, reproducible(), [&](Communicator& communicator) {
      Ddp plain = make(communicator, unit_buckets(false), odd_tensors());
      Ddp sharded = make(communicator, unit_buckets(), odd_tensors());
      for (int step = 0; step < 2; ++step) {
        reduce(plain, step);
        reduce(sharded, step);
        expect_same_bits(sharded, plain);
      }
    });
  }
}

TEST_CASE("ddp shards: after the gather everybody has what each owner wrote") {
  for (const int ranks : kRanks) {
    with_shards(ranks, [&](Ddp& ddp) {
      const std::vector<int> owner = owners(ddp.tensors(), layout_of(ddp.tensors(), 50000), ranks);
      expect_eq(owner.size(), ddp.parameter_elements(), "elements");
      const auto written = [](int rank, int step, size_t i) {
        return static_cast<float>(1000 * (rank + 1) + step) + static_cast<float>(i % 97);
      };
      for (int step = 0; step < 2; ++step) {
        for (size_t b = ddp.layout().size(); b-- > 0;) {
          const DdpRange own = ddp.own_range(b);
          for (size_t i = own.begin; i < own.end; ++i) {
            parameters_of(ddp)[i] = written(rank_of(ddp), step, i);
          }
          ddp.gather_parameters(b);
        }
        ok(step == 0 ? ddp.wait_parameters() : ddp.wait_parameters(0));
        if (step == 1) ok(ddp.wait_parameters());
        for (size_t i = 0; i < owner.size(); ++i) {
          expect_eq(parameters_of(ddp)[i], written(owner[i], step, i),
                    "element " + std::to_string(i));
        }
      }
      ok(ddp.wait_parameters());  // nothing under way
    });
  }
}

TEST_CASE("ddp shards: gathers start when a bucket is done, not when it is waited for") {
  with_shards(2, [](Ddp& ddp) {
    const uint64_t before = ddp.communicator().stats().operations;
    gather_all(ddp);
    // What comes behind them ends behind them: so they go on without anybody waiting for them.
    ok(ddp.communicator().barrier());
    expect_eq(ddp.communicator().stats().operations - before, ddp.layout().size() + 1,
              "operations");
    ok(ddp.wait_parameters());
    for (const Work::Times& times : ddp.gather_times()) expect(times.ended_ns > 0, "never ended");
  });
}

TEST_CASE("ddp shards: without them everything is one's own, and gathering is nothing") {
  with_ddp(2, unit_buckets(false), odd_tensors(), [](Ddp& ddp) {
    expect(!ddp.is_sharded(), "sharded");
    expect(ddp.own_ranges() == std::vector<DdpRange>{{0, ddp.parameter_elements()}}, "own");
    const uint64_t before = ddp.communicator().stats().operations;
    for (size_t b = 0; b < ddp.layout().size(); ++b) {
      expect_eq(ddp.own_range(b).count(), ddp.layout()[b].count, "own range");
    }
    gather_all(ddp);
    ok(ddp.wait_parameters());
    expect_eq(ddp.communicator().stats().operations, before, "operations");
  });
}

// Rank 1 starts its gather when rank 0 has begun the next step.
TEST_CASE("ddp shards: a step begins while parameters are still gathered, buffers or not") {
  std::latch rank_0_has_begun(1);
  with_ranks(2, [&](Communicator& communicator) {
    Ddp ddp = make(communicator, unit_buckets(), odd_tensors(), {{.name = "mean", .shape = {5}}});
    reduce(ddp, 0);
    if (communicator.rank() == 1) rank_0_has_begun.wait();
    gather_all(ddp);
    ok(ddp.begin({.loss_terms = 1}));
    if (communicator.rank() == 0) rank_0_has_begun.count_down();
    ok(ddp.wait_parameters());
    all_ready(ddp);
    ok(ddp.finish());
  });
}

namespace {

/// What all ranks together send in a step of a large tensor, of whose parameters there are `bytes`.
uint64_t sent_in_step(int ranks, bool compress, size_t& bytes) {
  std::atomic<uint64_t> sent{0};
  with_ranks(ranks, [&](Communicator& communicator) {
    DdpOptions options = {.broadcast_buffers = false, .shard = true};
    if (compress)
      options.hook = make_compression_hook(DataType::kBFloat16).value();  // one per rank
    Ddp ddp = make(communicator, options, {{.name = "large", .shape = {1 << 20}}});
    const uint64_t before = communicator.stats().bytes_sent;
    reduce(ddp, 0);
    gather_all(ddp);
    ok(ddp.wait_parameters());
    sent += communicator.stats().bytes_sent - before;
    if (communicator.rank() == 0) bytes = ddp.parameter_elements() * 4;
  });
  return sent;
}

}  // namespace

// Compression halves the reduce-scatter, and leaves parameters as they are.
TEST_CASE("ddp shards: reduce-scatter and gather together send what an all-reduce sends") {
  for (const int ranks : {2, 3}) {
    for (const bool compress : {false, true}) {
      size_t bytes = 0;
      const uint64_t sent = sent_in_step(ranks, compress, bytes);
      // 2 (N - 1) / N times the bytes by each of N ranks, and the headers.
      const double formula = (compress ? 1.5 : 2.0) * (ranks - 1) * static_cast<double>(bytes);
      CHECK(static_cast<double>(sent) == Approx(formula).epsilon(1e-3));
    }
  }
}

TEST_CASE("ddp shards: tied weights are added where the first gradient is owned") {
  using Rows = DdpOptions::Rows;
  const Tensors tensors = {{.name = "wte", .shape = {400, 48}},
                           {.name = "other", .shape = {5}},
                           {.name = "rows", .shape = {400, 48}, .adds_to = 0}};
  for (const int ranks : {1, 2, 3, 5}) {
    for (const Rows rows : {Rows::kWhole, Rows::kTouched}) {
      with_ranks(ranks, reproducible(), [&](Communicator& communicator) {
        const int rank = communicator.rank();
        // Row 85 holds the first shard boundaries: 4096 is no multiple of 48.
        const std::vector<int32_t> touched = {85, 10 + rank, 399, 170 + rank};
        const auto averaged = [&](bool shard) {
          DdpOptions options = unit_buckets(shard);
          options.rows = rows;
          Ddp ddp = make(communicator, options, tensors);
          for (size_t i = 0; i < ddp.gradient_elements(); ++i) {
            gradients_of(ddp)[i] = i < ddp.parameter_elements() ? gradient_of(rank, 0, i) : 0;
          }
          for (const int32_t row : touched) {
            for (size_t c = 0; c < 48; ++c) {
              const size_t i = static_cast<size_t>(row) * 48 + c;
              ddp.gradient<float>(2)[i] = gradient_of(rank, 1, i);
            }
          }
          ok(ddp.begin({.loss_terms = 1}));
          ddp.touches_rows(2, touched);
          all_ready(ddp);
          ok(ddp.finish());
          return ddp;
        };
        Ddp plain = averaged(false), sharded = averaged(true);
        expect_same_bits(sharded, plain);
      });
    }
  }
}

TEST_CASE("ddp shards: compression rounds as it does without") {
  for (const DataType wire : {DataType::kBFloat16, DataType::kFloat16}) {
    with_ranks(3, reproducible(), [&](Communicator& communicator) {
      const auto averaged = [&](bool shard) {
        DdpOptions options = unit_buckets(shard);
        options.hook = make_compression_hook(wire).value();
        Ddp ddp = make(communicator, options, odd_tensors());
        reduce(ddp, 0);
        return ddp;
      };
      Ddp plain = averaged(false), sharded = averaged(true);
      expect_same_bits(sharded, plain);
    });
  }
}

TEST_CASE("ddp shards: a hook that knows nothing of them is right everywhere, so also there") {
  struct Sum : SummingHook {
    Work start(Communicator& communicator, const GradientBucket& bucket) override {
      expect_eq(bucket.shard_counts.size(), static_cast<size_t>(communicator.size()), "counts");
      return SummingHook::start(communicator, bucket);
    }
  };
  with_ranks(2, [](Communicator& communicator) {
    DdpOptions options = unit_buckets();
    options.hook = std::make_shared<Sum>();
    Ddp ddp = make(communicator, options, odd_tensors());
    reduce(ddp, 0);
    for_own_elements(ddp, [&](size_t i) {
      expect_eq(gradients_of(ddp)[i], gradient_of(0, 0, i) + gradient_of(1, 0, i),
                "element " + std::to_string(i));
    });
  });
}
