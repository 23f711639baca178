// What DistributedDataParallel does where steps are not all alike: skipped layers, uneven inputs,
// tied weights, buffers, hooks, files.
#include <atomic>
#include <chrono>
#include <cstring>
#include <latch>
#include <numeric>
#include <thread>

#include "tests/trainer/ddp_rig.hpp"

using namespace rondo;
using namespace rondo::testing;

namespace {

using Rows = DdpOptions::Rows;

/// five(), of which these may be skipped.
Tensors skippable(const std::vector<size_t>& which) {
  Tensors tensors = five();
  for (const size_t t : which) tensors[t].may_skip = true;
  return tensors;
}

/// A table and its second gradient.
Tensors tied(size_t rows, size_t width) {
  return {{.name = "wte", .shape = {rows, width}},
          {.name = "rows", .shape = {rows, width}, .adds_to = 0}};
}

const Tensors kMean = {{.name = "mean", .shape = {5}}};

}  // namespace

TEST_CASE("ddp skipped layers: unused on some ranks counts as zero, on all ranks as unused") {
  for (const int ranks : {1, 2, 3}) {
    with_ddp(ranks, small_buckets(), skippable({1, 3}), [&](Ddp& ddp) {
      for (int step = 0; step < 3; ++step) {
        ok(ddp.begin({.loss_terms = 1}));
        fill(ddp, rank_of(ddp), 0);
        for (size_t t = 0; t < 5; ++t) {
          const bool skip = t == 3 || (t == 1 && rank_of(ddp) != 0);
          if (!skip) {
            ddp.gradient_ready(t);
            continue;
          }
          std::memset(ddp.gradient<float>(t), 0, 64);  // "not touched"
          ddp.gradient_skipped(t);
        }
        ok(ddp.finish());
        expect(ddp.used(0) && ddp.used(1), "used tensors");
        expect(!ddp.used(3), "a tensor that no rank used");
        const double mean = contribution(0, 0, 16) / ranks;
        expect_near(ddp.gradient<float>(1)[0], mean, 1e-6 * mean, "mean with zeros");
        expect_eq(ddp.gradient<float>(3)[5], 0.0f, "unused");
      }
    });
  }
}

// Rank 1 sends all its gradients, and comes later with what it used: until then nobody is told.
TEST_CASE("ddp skipped layers: who is told of a bucket knows what of it was used") {
  std::atomic<bool> told_rank_0 = false;
  with_ddp(2, small_buckets(), skippable({0, 1}), [&](Ddp& ddp) {
    const bool uses = rank_of(ddp) == 1;
    ok(ddp.begin({.loss_terms = 1}));
    ddp.gradient_skipped(0);
    uses ? ddp.gradient_ready(1) : ddp.gradient_skipped(1);
    for (const size_t t : {2, 3, 4}) ddp.gradient_ready(t);
    if (uses) {
      // Time for what would be wrong to happen.
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      expect(!told_rank_0, "rank 0 was told before rank 1 said what it used");
    }
    size_t told = 0;
    ok(ddp.finish([&](size_t bucket) {
      if (!uses) told_rank_0 = true;
      expect_eq(bucket, told++, "bucket");
      expect(!ddp.used(0), "used by nobody");
      expect(ddp.used(1), "used by rank 1");
    }));
    expect_eq(told, size_t{3}, "buckets");
  });
}

TEST_CASE("ddp skipped layers: what the last step left in a skipped gradient does not travel") {
  with_ddp(2, small_buckets(), skippable({2}), [](Ddp& ddp) {
    fill(ddp, rank_of(ddp), 0);
    make_step(ddp);
    ok(ddp.begin({.loss_terms = 1}));
    for (const size_t t : {0, 1, 3, 4}) ddp.gradient_ready(t);
    ddp.gradient_skipped(2);
    ok(ddp.finish());
    expect_eq(ddp.gradient<float>(2)[0], 0.0f, "stale gradient");
  });
}

TEST_CASE("ddp skipped layers: unused without having said so is an error on all ranks") {
  enum class Unused { kForgotten, kSkipped, kSkippedQuietly };
  for (const Unused unused : {Unused::kForgotten, Unused::kSkipped, Unused::kSkippedQuietly}) {
    std::latch rank_0_has_finished(1);
    with_ddp(2, small_buckets(), [&](Ddp& ddp) {
      ok(ddp.begin({.loss_terms = 1}));
      const bool is_culprit = rank_of(ddp) == 1;
      if (is_culprit) ok(ddp.headers().status());  // rank 0 has begun, too
      if (unused == Unused::kSkippedQuietly) {
        const auto quiet = ddp.no_sync();
        for (size_t t = 0; t < 5; ++t) {
          is_culprit&& t == 2 ? ddp.gradient_skipped(t) : ddp.gradient_ready(t);
        }
      }
      for (size_t t = 0; t < 5; ++t) {
        if (unused == Unused::kSkippedQuietly || !is_culprit || t != 2) {
          ddp.gradient_ready(t);
        } else if (unused == Unused::kSkipped) {
          ddp.gradient_skipped(t);
        }
      }
      // What was skipped is told at once; what was forgotten, finish() finds.
      if (is_culprit && unused != Unused::kForgotten) rank_0_has_finished.wait();
      const Status status = ddp.finish();
      if (!is_culprit) rank_0_has_finished.count_down();
      expect_error(status, "'p2'");
      expect_error(status, "rank 1");
    });
  }
}

TEST_CASE("ddp skipped layers: what adds to a tensor uses it") {
  Tensors tensors = tied(4, 2);
  tensors[0].may_skip = true;
  with_ddp(2, {}, tensors, [](Ddp& ddp) {
    std::fill_n(ddp.gradient<float>(1), 8, 1.0f);
    ok(ddp.begin({.loss_terms = 1}));
    ddp.gradient_skipped(0);
    ddp.gradient_ready(1);
    ok(ddp.finish());
    expect(ddp.used(0), "the looked-up rows were not seen");
    expect_eq(ddp.gradient<float>(0)[0], 1.0f, "gradient");
  });
}

TEST_CASE("ddp uneven inputs: an error on every rank in that step, or joined") {
  with_ddp(3, small_buckets(), [](Ddp& ddp) {
    const bool ended = rank_of(ddp) == 1;
    const Status status =
        try_step(ddp, {.loss_terms = ended ? 0u : 2u, .end_of_data = ended, .epoch = 4});
    expect_error(status, "rank 1 has no data left in epoch 4");
    expect_error(status, "ranks 0, 2 have");
  });
  with_ddp(3, {.bucket_cap_mb = kSmallMb, .gradients = kOfSum, .join = true}, [](Ddp& ddp) {
    const bool ended = rank_of(ddp) == 1;
    set_gradients(ddp, ended ? 0.0f : 6.0f);
    make_step(ddp, {.loss_terms = ended ? 0u : 2u, .end_of_data = ended});
    expect_eq(ddp.headers().value().active_ranks, 2, "active ranks");
    expect(!ddp.headers().value().epoch_ended, "two ranks have more");
    expect_eq(ddp.gradient<float>(0)[0], 3.0f, "mean over four terms");
    ok(ddp.begin({.loss_terms = 0, .end_of_data = true}));
    expect_eq(ddp.headers().value().loss_terms, uint64_t{0}, "terms after the end");
    expect(ddp.headers().value().epoch_ended, "all have ended");
  });
}

TEST_CASE("ddp uneven inputs: ranks in different epochs are told") {
  with_ddp(2, {.bucket_cap_mb = kSmallMb, .join = true}, [](Ddp& ddp) {
    expect_error(try_step(ddp, {.loss_terms = 1, .epoch = static_cast<uint64_t>(rank_of(ddp))}),
                 "rank 1 is in epoch 1, but rank 0 in epoch 0");
  });
}

TEST_CASE(
    "ddp loss terms: gradients are an error where no rank has any, unless no mean is wanted") {
  using Average = DdpOptions::Average;
  for (const int ranks : {1, 3}) {
    for (const Average average : {Average::kLossTerms, Average::kRanks, Average::kNone}) {
      with_ddp(ranks, {.bucket_cap_mb = kSmallMb, .average = average}, [&](Ddp& ddp) {
        set_gradients(ddp, 2);
        const Status status = try_step(ddp, {});  // nobody has said how many
        if (average == Average::kNone) {
          ok(status);
          expect_eq(ddp.gradient<float>(4)[15], 2.0f * static_cast<float>(ranks), "sum");
          return;
        }
        expect_code(status, Code::kInvalidArgument);
        const std::string who = ranks == 1 ? "the only rank" : "all 3 ranks";
        expect_error(status, "loss_terms is 0 on " + who);
      });
    }
  }
}

TEST_CASE("ddp headers: the same samples on two ranks, and an epoch that did not advance") {
  with_ddp(3, small_buckets(), [](Ddp& ddp) {
    set_log_level(LogLevel::kError);
    const auto step = [&](uint64_t hash, bool end, uint64_t epoch) {
      make_step(ddp, {.loss_terms = 1, .end_of_data = end, .epoch = epoch, .sample_hash = hash});
    };
    const auto rank = static_cast<uint64_t>(rank_of(ddp));
    step(rank + 1, false, 0);
    step(rank + 5, true, 0);
    step(rank + 1, true, 1);
    expect(ddp.warnings().empty(), "a suspicion without reason");
    step(rank == 0 ? 9u : 8u, true, 2);
    expect_eq(ddp.warnings().size(), size_t{1}, "warnings");
    expect_contains(ddp.warnings()[0], "ranks 1 and 2 read the same data");
    step(rank + 1, false, 2);
    expect_contains(ddp.warnings().back(), "begins epoch 2 again: set_epoch forgotten");
  });
}

TEST_CASE("ddp buffers: after a step they are rank 0's everywhere, unless switched off") {
  for (const bool on : {true, false}) {
    for (const bool overlap : {true, false}) {
      with_ranks(2, [&](Communicator& communicator) {
        Ddp ddp = make(communicator, {.overlap = overlap, .broadcast_buffers = on}, five(), kMean);
        auto* mean = static_cast<float*>(ddp.buffer(0));
        for (int step = 1; step <= 3; ++step) {
          ok(ddp.begin({.loss_terms = 1}));
          const float own = static_cast<float>(10 * step + communicator.rank());
          mean[4] = own;  // as forward does
          all_ready(ddp);
          ok(ddp.finish());
          expect_eq(mean[4], on ? static_cast<float>(10 * step) : own, "buffer");
        }
      });
    }
  }
}

TEST_CASE("ddp buffers: with join they are those of a rank that still has data") {
  with_ranks(3, [](Communicator& communicator) {
    Ddp ddp = make(communicator, {.join = true}, five(), kMean);
    auto* mean = static_cast<float*>(ddp.buffer(0));
    // Rank r has r + 1 batches.
    for (int step = 0; step < 3; ++step) {
      const bool has_data = step <= communicator.rank();
      ok(ddp.begin({.loss_terms = has_data ? 2u : 0u, .end_of_data = step >= communicator.rank()}));
      if (has_data) mean[4] += static_cast<float>(100 * (communicator.rank() + 1));
      all_ready(ddp);
      ok(ddp.finish());
      const float expected[] = {100, 300, 600};
      expect_eq(mean[4], expected[step], "buffer after step " + std::to_string(step));
    }
  });
}

// 1 + 1/512 does not fit into bfloat16's 8 bits, but into float16's 11. One hook serves several
// models.
TEST_CASE("ddp hooks: compression rounds each rank's scaled gradient once") {
  for (const DataType wire : {DataType::kBFloat16, DataType::kFloat16}) {
    with_ranks(2, [&](Communicator& communicator) {
      const DdpOptions options = {.bucket_cap_mb = kSmallMb,
                                  .hook = make_compression_hook(wire).value()};
      for (const Tensors& tensors : {five(), Tensors{{.name = "only", .shape = {96}}}}) {
        Ddp ddp = make(communicator, options, tensors);
        const uint64_t before = communicator.stats().bytes_sent;
        set_gradients(ddp, 2 + 1.0f / 256);
        make_step(ddp);
        const float expected = wire == DataType::kBFloat16 ? 2.0f : 2 + 1.0f / 256;
        expect_eq(gradients_of(ddp)[7], expected, "mean");
        expect_eq(gradients_of(ddp)[79], expected, "mean");
        const uint64_t bytes = communicator.stats().bytes_sent - before;
        expect(bytes < 4 * ddp.gradient_elements(), "travelled uncompressed");
      }
    });
  }
}

TEST_CASE("ddp hooks: see a second gradient that travels whole, and the last bucket") {
  with_ranks(2, [](Communicator& communicator) {
    const auto hook = make_compression_hook(DataType::kBFloat16).value();
    Ddp ddp = make(communicator, {.rows = Rows::kWhole, .hook = hook}, tied(4, 2));
    set_gradients(ddp, 2 + 1.0f / 256);
    make_step(ddp);
    expect_eq(ddp.gradient<float>(0)[0], 4.0f, "both were rounded on their way");
  });
}

TEST_CASE("ddp hooks: one of the user's own") {
  struct Doubling : SummingHook {
    Work start(Communicator& communicator, const GradientBucket& bucket) override {
      seen.push_back(bucket.index);
      last = bucket.last;
      return SummingHook::start(communicator, bucket);
    }
    void finish(const GradientBucket& bucket) override {
      for (size_t i = 0; i < bucket.count; ++i) static_cast<float*>(bucket.data)[i] *= 2;
    }
    std::vector<size_t> seen;
    bool last = false;
  };
  with_ranks(2, [](Communicator& communicator) {
    const auto hook = std::make_shared<Doubling>();
    Ddp ddp = make(communicator, {.bucket_cap_mb = kSmallMb, .hook = hook});
    set_gradients(ddp, 3);
    make_step(ddp);
    expect_eq(hook->seen.size(), size_t{3}, "buckets");
    expect(hook->last, "the last bucket was not marked");
    expect_eq(ddp.gradient<float>(4)[15], 12.0f, "gradient");
  });
}

namespace {

/// The first bucket fails at once, by a communicator that was aborted; the others travel.
class FirstFails : public SummingHook {
 public:
  FirstFails() : alone_(Communicator::create(alone()).value()) { alone_.abort("the first bucket"); }
  Work start(Communicator& communicator, const GradientBucket& bucket) override {
    return SummingHook::start(bucket.index == 0 ? alone_ : communicator, bucket);
  }

 private:
  static Config alone() {
    Config config;
    config.rank = 0;
    config.world_size = 1;
    return config;
  }
  Communicator alone_;
};

}  // namespace

// Rank 1 sends the others late: until then rank 0's finish() must not return, for they write
// gradients.
TEST_CASE("ddp hooks: a bucket that fails is told when the others have ended") {
  std::atomic<bool> rank_0_ended = false;
  with_ranks(2, [&](Communicator& communicator) {
    Ddp ddp =
        make(communicator, {.bucket_cap_mb = kSmallMb, .hook = std::make_shared<FirstFails>()});
    ok(ddp.begin({.loss_terms = 1}));
    for (const size_t t : {0, 1}) ddp.gradient_ready(t);
    if (communicator.rank() == 1) {
      // Time for what would be wrong to happen.
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      expect(!rank_0_ended, "rank 0's gradients still travel");
    }
    for (const size_t t : {2, 3, 4}) ddp.gradient_ready(t);
    bool told = false;
    const Status status = ddp.finish([&](size_t /*bucket*/) { told = true; });
    if (communicator.rank() == 0) rank_0_ended = true;
    expect_error(status, "the first bucket");
    expect(!told, "told of a bucket behind the one that failed");
  });
}

TEST_CASE("ddp tied weights: the second gradient is added, whole or as touched rows") {
  const Tensors tensors = {{.name = "wte", .shape = {40, 8}},
                           {.name = "other", .shape = {5}},
                           {.name = "rows", .shape = {40, 8}, .adds_to = 0}};
  for (const int ranks : {1, 2, 3}) {
    for (const Rows rows : {Rows::kWhole, Rows::kTouched, Rows::kFewerBytes}) {
      with_ranks(ranks, [&](Communicator& communicator) {
        Ddp ddp = make(communicator, {.gradients = kOfSum, .rows = rows}, tensors);
        expect(ddp.parameter_elements() < ddp.gradient_elements(), "a parameter for a gradient");
        const int rank = communicator.rank();
        for (int step = 0; step < 2; ++step) {
          for (size_t i = 0; i < 320; ++i) {
            ddp.gradient<float>(0)[i] = contribution(rank, step, i);
            ddp.gradient<float>(2)[i] = 0;
          }
          std::fill_n(ddp.gradient<float>(1), 5, 1.0f);
          // Rank r touches rows 3 (as all do) and 10 + r; the last rank none.
          std::vector<int32_t> touched;
          if (ranks == 1 || rank + 1 < ranks) touched = {10 + rank, 3, 3};
          for (const int32_t row : touched) {
            for (size_t c = 0; c < 8; ++c) {
              ddp.gradient<float>(2)[static_cast<size_t>(row) * 8 + c] += 32;
            }
          }
          ok(ddp.begin({.loss_terms = 4}));
          ddp.touches_rows(2, touched);
          all_ready(ddp);
          std::vector<float> told;  // of the first, when its bucket is said to be reduced
          ok(ddp.finish([&](size_t bucket) {
            if (ddp.layout()[bucket].pieces.front().tensor != 0) return;
            told.assign(ddp.gradient<float>(0), ddp.gradient<float>(0) + 320);
          }));
          expect(std::equal(told.begin(), told.end(), ddp.gradient<float>(0)) && !told.empty(),
                 "told of a bucket to which something was still added");
          const int touching = ranks == 1 ? 1 : ranks - 1;
          for (size_t i = 0; i < 320; ++i) {
            double sum = sum_of_contributions(ranks, step, i);
            const size_t row = i / 8;
            if (row == 3) sum += 64 * touching;
            if (row >= 10 && row < 10 + static_cast<size_t>(touching)) sum += 32;
            const double mean = sum / (4 * ranks);
            expect_near(ddp.gradient<float>(0)[i], mean, 2e-6 * mean,
                        "element " + std::to_string(i));
          }
        }
      });
    }
  }
}

TEST_CASE("ddp tied weights: touched rows travel where that is fewer bytes") {
  const auto first = [](size_t count) {
    std::vector<int32_t> rows(count);
    std::iota(rows.begin(), rows.end(), 0);
    return rows;
  };
  const auto bytes_with = [&](Rows rows, const std::vector<int32_t>& touched,
                              bool compressed = false) {
    uint64_t bytes = 0;
    with_ranks(2, [&](Communicator& communicator) {
      DdpOptions options = {.rows = rows};
      if (compressed) options.hook = make_compression_hook(DataType::kBFloat16).value();
      Ddp ddp = make(communicator, options, tied(1000, 8));
      const uint64_t before = communicator.stats().bytes_sent;
      ok(ddp.begin({.loss_terms = 1}));
      ddp.touches_rows(1, touched);
      all_ready(ddp);
      ok(ddp.finish());
      if (communicator.rank() == 0) bytes = communicator.stats().bytes_sent - before;
    });
    return bytes;
  };
  const uint64_t whole = bytes_with(Rows::kWhole, first(1000));
  CHECK(bytes_with(Rows::kFewerBytes, {1, 2, 999}) + 25000 < whole);
  // With its number each row is longer than without.
  CHECK(bytes_with(Rows::kFewerBytes, first(1000)) + 3000 <
        bytes_with(Rows::kTouched, first(1000)));
  CHECK(bytes_with(Rows::kFewerBytes, first(1000)) <= whole + 8);  // and the exchange of counts
  // Bytes are counted in the type in which the whole travels. Of 600 rows of each rank
  // 1200 * (32 + 4) bytes are fewer than 2 * 1000 * 32, but more than 2 * 1000 * 16.
  const uint64_t half = bytes_with(Rows::kWhole, first(600), true);
  CHECK(half + 3000 < bytes_with(Rows::kTouched, first(600), true));
  CHECK(bytes_with(Rows::kFewerBytes, first(600), true) <= half + 8);
}

TEST_CASE("ddp files: with shards nobody has all of the optimizer's state to save") {
  const TempDirectory folder;
  with_ddp(2, {.bucket_cap_mb = kSmallMb, .shard = true}, [&](Ddp& ddp) {
    std::vector<float> momentum(ddp.parameter_elements());
    expect_error(ddp.save(folder.path() + "/x", {{"momentum", momentum.data()}}), "with shards");
    ok(ddp.save(folder.path() + "/x"));
  });
}

TEST_CASE("ddp files: what one set of ranks saves, another loads") {
  const TempDirectory folder;
  const std::string path = folder.path() + "/model.safetensors";
  const Tensors buffers = {{.name = "running", .shape = {3}}};
  with_ranks(3, [&](Communicator& communicator) {
    Ddp ddp = make(communicator, {}, five(), buffers);
    for (size_t t = 0; t < 5; ++t) {
      for (size_t i = 0; i < 16; ++i) ddp.parameter<float>(t)[i] = contribution(0, 1, 16 * t + i);
    }
    static_cast<float*>(ddp.buffer(0))[1] = 5;
    std::vector<float> momentum(ddp.parameter_elements());
    momentum[ddp.offset(3)] = 8;
    ok(ddp.save(path, {{"momentum", momentum.data()}}, {{"step", "12"}, {"note", "a b 3"}}));
  });
  with_ranks(2, [&](Communicator& communicator) {
    Ddp ddp = make(communicator, {}, five(), buffers);
    std::vector<float> momentum(ddp.parameter_elements());
    const auto notes = ddp.load(path, {{"momentum", momentum.data()}});
    ok(notes.status());
    expect_eq(notes.value().at("step"), std::string("12"), "note");
    expect_eq(notes.value().at("note"), std::string("a b 3"), "note");
    expect_eq(ddp.parameter<float>(4)[15], contribution(0, 1, 79), "parameter");
    expect_eq(static_cast<float*>(ddp.buffer(0))[1], 5.0f, "buffer");
    expect_eq(momentum[ddp.offset(3)], 8.0f, "state");
  });
  Tensors tensors = five();
  tensors[2].shape = {4, 4};
  with_ddp(2, {}, tensors, [&](Ddp& ddp) {
    expect_error(ddp.load(path).status(), "'p2' is float [16], but this model's is float [4, 4]");
    expect_error(ddp.load(folder.path() + "/none").status(), folder.path() + "/none");
  });
}
