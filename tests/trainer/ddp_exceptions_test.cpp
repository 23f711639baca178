// What DistributedDataParallel does where steps are not all alike: skipped layers, uneven inputs,
// tied weights, buffers, hooks, files.
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <latch>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/trainer/ddp_rig.hpp"

using namespace rondo;
using namespace rondo::testing;

TEST_CASE("ddp skipped layers: unused on some ranks counts as zero, on all ranks as unused") {
  for (const int ranks : {1, 2, 3}) {
    with_ranks(ranks, [&](Communicator& communicator) {
      std::vector<DdpTensor> tensors = five();
      tensors[1].may_skip = tensors[3].may_skip = true;
      Ddp ddp = make(communicator, small_buckets(), tensors);
      for (int step = 0; step < 3; ++step) {
        ok(ddp.begin({.loss_terms = 1}));
        fill(ddp, communicator.rank(), 0);
        for (size_t t = 0; t < 5; ++t) {
          const bool skip = t == 3 || (t == 1 && communicator.rank() != 0);
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
        const float mean = contribution(0, 0, 16) / static_cast<float>(ranks);
        expect(std::abs(ddp.gradient<float>(1)[0] - mean) <= 1e-6f * mean, "mean with zeros");
        expect_eq(ddp.gradient<float>(3)[5], 0.0f, "unused");
      }
    });
  }
}

// Rank 1 sends all its gradients, and comes later with what it used: until then nobody is told.
TEST_CASE("ddp skipped layers: who is told of a bucket knows what of it was used") {
  std::atomic<bool> told_rank_0 = false;
  with_ranks(2, [&](Communicator& communicator) {
    std::vector<DdpTensor> tensors = five();
    tensors[0].may_skip = tensors[1].may_skip = true;
    Ddp ddp = make(communicator, small_buckets(), tensors);
    ok(ddp.begin({.loss_terms = 1}));
    ddp.gradient_skipped(0);
    if (communicator.rank() == 0) ddp.gradient_skipped(1);
    if (communicator.rank() == 1) ddp.gradient_ready(1);
    for (const size_t t : {2, 3, 4}) ddp.gradient_ready(t);
    if (communicator.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      expect(!told_rank_0, "rank 0 was told before rank 1 said what it used");
    }
    size_t told = 0;
    ok(ddp.finish([&](size_t bucket) {
      if (communicator.rank() == 0) told_rank_0 = true;
      expect_eq(bucket, told++, "bucket");
      expect(!ddp.used(0), "used by nobody");
      expect(ddp.used(1), "used by rank 1");
    }));
    expect_eq(told, size_t{3}, "buckets");
  });
}

TEST_CASE("ddp skipped layers: what the last step left in a skipped gradient does not travel") {
  with_ranks(2, [](Communicator& communicator) {
    std::vector<DdpTensor> tensors = five();
    tensors[2].may_skip = true;
    Ddp ddp = make(communicator, small_buckets(), tensors);
    ok(ddp.begin({.loss_terms = 1}));
    fill(ddp, communicator.rank(), 0);
    all_ready(ddp);
    ok(ddp.finish());
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
    with_ranks(2, [&](Communicator& communicator) {
      Ddp ddp = make(communicator);
      ok(ddp.begin({.loss_terms = 1}));
      const bool is_culprit = communicator.rank() == 1;
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
      expect(!status.ok(), "a missing gradient went unnoticed");
      expect(status.message().find("'p2'") != std::string::npos, status.message());
      expect(status.message().find("rank 1") != std::string::npos, status.message());
    });
  }
}

TEST_CASE("ddp hooks: one compression serves several models") {
  with_ranks(2, [](Communicator& communicator) {
    DdpOptions options;
    options.hook = make_compression_hook(DataType::kBFloat16).value();
    for (const size_t count : {size_t{16}, size_t{40}}) {
      Ddp ddp = make(communicator, options, {{.name = "only", .shape = {count}}});
      for (size_t i = 0; i < count; ++i) ddp.gradient<float>(0)[i] = 2 + 1.0f / 256;
      ok(ddp.begin({.loss_terms = 1}));
      all_ready(ddp);
      ok(ddp.finish());
      expect_eq(ddp.gradient<float>(0)[count - 1], 2.0f, "gradient");
    }
  });
}

TEST_CASE("ddp uneven inputs: an error on every rank in that step, or joined") {
  with_ranks(3, [](Communicator& communicator) {
    Ddp ddp = make(communicator);
    const bool ended = communicator.rank() == 1;
    ok(ddp.begin({.loss_terms = ended ? 0u : 2u, .end_of_data = ended, .epoch = 4}));
    all_ready(ddp);
    const Status status = ddp.finish();
    expect(!status.ok(), "uneven inputs went unnoticed");
    for (const char* part : {"rank 1 has no data left in epoch 4", "ranks 0, 2 have"}) {
      expect(status.message().find(part) != std::string::npos, status.message());
    }
  });
  with_ranks(3, [](Communicator& communicator) {
    DdpOptions options = small_buckets();
    options.join = true;
    Ddp ddp = make(communicator, options);
    const bool ended = communicator.rank() == 1;
    for (size_t i = 0; i < 80; ++i) static_cast<float*>(ddp.gradients())[i] = ended ? 0.0f : 6.0f;
    ok(ddp.begin({.loss_terms = ended ? 0u : 2u, .end_of_data = ended}));
    all_ready(ddp);
    ok(ddp.finish());
    expect_eq(ddp.headers().value().active_ranks, 2, "active ranks");
    expect(!ddp.headers().value().epoch_ended, "two ranks have more");
    expect_eq(ddp.gradient<float>(0)[0], 3.0f, "mean over four terms");
    ok(ddp.begin({.loss_terms = 0, .end_of_data = true}));
    expect_eq(ddp.headers().value().loss_terms, uint64_t{0}, "terms after the end");
    expect(ddp.headers().value().epoch_ended, "all have ended");
  });
}

TEST_CASE(
    "ddp loss terms: gradients are an error where no rank has any, unless no mean is wanted") {
  using Average = DdpOptions::Average;
  for (const int ranks : {1, 3}) {
    for (const Average average : {Average::kLossTerms, Average::kRanks, Average::kNone}) {
      with_ranks(ranks, [&](Communicator& communicator) {
        DdpOptions options = small_buckets();
        options.average = average;
        Ddp ddp = make(communicator, options);
        for (size_t i = 0; i < 80; ++i) static_cast<float*>(ddp.gradients())[i] = 2;
        ok(ddp.begin({}));  // nobody has said how many
        all_ready(ddp);
        const Status status = ddp.finish();
        if (average == Average::kNone) {
          ok(status);
          expect_eq(ddp.gradient<float>(4)[15], 2.0f * static_cast<float>(ranks), "sum");
          return;
        }
        expect(status.code() == Code::kInvalidArgument, status.to_string());
        const std::string who = ranks == 1 ? "the only rank" : "all 3 ranks";
        expect(status.message().find("loss_terms is 0 on " + who) != std::string::npos,
               status.message());
      });
    }
  }
}

TEST_CASE("ddp headers: the same samples on two ranks, and an epoch that did not advance") {
  with_ranks(3, [](Communicator& communicator) {
    set_log_level(LogLevel::kError);
    Ddp ddp = make(communicator);
    const auto step = [&](uint64_t hash, bool end, uint64_t epoch) {
      ok(ddp.begin({.loss_terms = 1, .end_of_data = end, .epoch = epoch, .sample_hash = hash}));
      all_ready(ddp);
      ok(ddp.finish());
    };
    const auto rank = static_cast<uint64_t>(communicator.rank());
    step(rank + 1, false, 0);
    step(rank + 5, true, 0);
    step(rank + 1, true, 1);
    expect(ddp.warnings().empty(), "a suspicion without reason");
    step(rank == 0 ? 9u : 8u, true, 2);
    expect_eq(ddp.warnings().size(), size_t{1}, "warnings");
    expect(ddp.warnings()[0].find("ranks 1 and 2 read the same data") != std::string::npos,
           ddp.warnings()[0]);
    step(rank + 1, false, 2);
    expect(ddp.warnings().back().find("begins epoch 2 again: set_epoch forgotten") !=
               std::string::npos,
           ddp.warnings().back());
  });
}

TEST_CASE("ddp buffers: after a step they are rank 0's everywhere, unless switched off") {
  for (const bool on : {true, false}) {
    for (const bool overlap : {true, false}) {
      with_ranks(2, [&](Communicator& communicator) {
        DdpOptions options;
        options.broadcast_buffers = on;
        options.overlap = overlap;
        Result<Ddp> ddp =
            Ddp::create(communicator, five(), {{.name = "mean", .shape = {5}}}, options);
        ok(ddp.status());
        ok(ddp->replicate());
        auto* mean = static_cast<float*>(ddp->buffer(0));
        for (int step = 1; step <= 3; ++step) {
          ok(ddp->begin({.loss_terms = 1}));
          const float own = static_cast<float>(10 * step + communicator.rank());
          mean[4] = own;  // as forward does
          all_ready(*ddp);
          ok(ddp->finish());
          expect_eq(mean[4], on ? static_cast<float>(10 * step) : own, "buffer");
        }
      });
    }
  }
}

TEST_CASE("ddp buffers: with join they are those of a rank that still has data") {
  with_ranks(3, [](Communicator& communicator) {
    DdpOptions options;
    options.join = true;
    Result<Ddp> ddp = Ddp::create(communicator, five(), {{.name = "mean", .shape = {5}}}, options);
    ok(ddp.status());
    ok(ddp->replicate());
    auto* mean = static_cast<float*>(ddp->buffer(0));
    // Rank r has r + 1 batches.
    for (int step = 0; step < 3; ++step) {
      const bool has_data = step <= communicator.rank();
      ok(ddp->begin(
          {.loss_terms = has_data ? 2u : 0u, .end_of_data = step >= communicator.rank()}));
      if (has_data) mean[4] += static_cast<float>(100 * (communicator.rank() + 1));
      all_ready(*ddp);
      ok(ddp->finish());
      const float expected[] = {100, 300, 600};
      expect_eq(mean[4], expected[step], "buffer after step " + std::to_string(step));
    }
  });
}

TEST_CASE("ddp hooks: compression rounds each rank's scaled gradient once") {
  for (const DataType wire : {DataType::kBFloat16, DataType::kFloat16}) {
    with_ranks(2, [&](Communicator& communicator) {
      DdpOptions options = small_buckets();
      options.hook = make_compression_hook(wire).value();
      Ddp ddp = make(communicator, options);
      const uint64_t before = communicator.stats().bytes_sent;
      // 1 + 1/512 does not fit into bfloat16's 8 bits, but into float16's 11.
      for (size_t i = 0; i < 80; ++i) static_cast<float*>(ddp.gradients())[i] = 2 + 1.0f / 256;
      ok(ddp.begin({.loss_terms = 1}));
      all_ready(ddp);
      ok(ddp.finish());
      const float expected = wire == DataType::kBFloat16 ? 2.0f : 2 + 1.0f / 256;
      expect_eq(ddp.gradient<float>(3)[7], expected, "mean");
      expect(communicator.stats().bytes_sent - before < 2 * 80 * 4, "travelled uncompressed");
    });
  }
}

TEST_CASE("ddp hooks: one of the user's own") {
  struct Doubling : CommunicationHook {
    std::string name() const override { return "doubling"; }
    Work start(Communicator& communicator, const GradientBucket& bucket) override {
      seen.push_back(bucket.index);
      last = bucket.last;
      return communicator.all_reduce_async(bucket.data, bucket.data, bucket.count, bucket.type);
    }
    void finish(const GradientBucket& bucket) override {
      for (size_t i = 0; i < bucket.count; ++i) static_cast<float*>(bucket.data)[i] *= 2;
    }
    std::vector<size_t> seen;
    bool last = false;
  };
  with_ranks(2, [](Communicator& communicator) {
    DdpOptions options = small_buckets();
    const auto hook = std::make_shared<Doubling>();
    options.hook = hook;
    Ddp ddp = make(communicator, options);
    for (size_t i = 0; i < 80; ++i) static_cast<float*>(ddp.gradients())[i] = 3;
    ok(ddp.begin({.loss_terms = 1}));
    all_ready(ddp);
    ok(ddp.finish());
    expect_eq(hook->seen.size(), size_t{3}, "buckets");
    expect(hook->last, "the last bucket was not marked");
    expect_eq(ddp.gradient<float>(4)[15], 12.0f, "gradient");
  });
}

namespace {

/// The first bucket fails at once, by a communicator that was aborted; the others travel.
class FirstFails : public CommunicationHook {
 public:
  FirstFails() {
    Config config;
    config.rank = 0;
    config.world_size = 1;
    config.rendezvous = meeting_.path();
    Result<Communicator> alone = Communicator::create(config);
    ok(alone.status());
    alone_ = std::make_unique<Communicator>(std::move(alone).value());
    alone_->abort("the first bucket");
  }
  std::string name() const override { return "first fails"; }
  Work start(Communicator& communicator, const GradientBucket& bucket) override {
    Communicator& by = bucket.index == 0 ? *alone_ : communicator;
    return by.all_reduce_async(bucket.data, bucket.data, bucket.count, bucket.type);
  }
  void finish(const GradientBucket& /*bucket*/) override {}

 private:
  const TempDirectory meeting_;
  std::unique_ptr<Communicator> alone_;
};

}  // namespace

// Rank 1 sends the others late: until then rank 0's finish() must not return, for they write
// gradients.
TEST_CASE("ddp hooks: a bucket that fails is told when the others have ended") {
  std::atomic<bool> rank_0_ended = false;
  with_ranks(2, [&](Communicator& communicator) {
    DdpOptions options = small_buckets();
    options.hook = std::make_shared<FirstFails>();
    Ddp ddp = make(communicator, options);
    ok(ddp.begin({.loss_terms = 1}));
    for (const size_t t : {0, 1}) ddp.gradient_ready(t);
    if (communicator.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      expect(!rank_0_ended, "rank 0's gradients still travel");
    }
    for (const size_t t : {2, 3, 4}) ddp.gradient_ready(t);
    bool told = false;
    const Status status = ddp.finish([&](size_t /*bucket*/) { told = true; });
    if (communicator.rank() == 0) rank_0_ended = true;
    expect(status.message().find("the first bucket") != std::string::npos, status.to_string());
    expect(!told, "told of a bucket behind the one that failed");
  });
}

TEST_CASE("ddp tied weights: the second gradient is added, whole or as touched rows") {
  using Rows = DdpOptions::Rows;
  for (const int ranks : {1, 2, 3}) {
    for (const Rows rows : {Rows::kWhole, Rows::kTouched, Rows::kFewerBytes}) {
      with_ranks(ranks, [&](Communicator& communicator) {
        DdpOptions options;
        options.rows = rows;
        Ddp ddp = make(communicator, options,
                       {{.name = "wte", .shape = {40, 8}},
                        {.name = "other", .shape = {5}},
                        {.name = "rows", .shape = {40, 8}, .adds_to = 0}});
        expect(ddp.parameter_elements() < ddp.gradient_elements(), "a parameter for a gradient");
        const int rank = communicator.rank();
        for (int step = 0; step < 2; ++step) {
          for (size_t i = 0; i < 320; ++i) {
            ddp.gradient<float>(0)[i] = contribution(rank, step, i);
            ddp.gradient<float>(2)[i] = 0;
          }
          for (size_t i = 0; i < 5; ++i) ddp.gradient<float>(1)[i] = 1;
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
            float sum = 0;
            for (int r = 0; r < ranks; ++r) sum += contribution(r, step, i);
            const size_t row = i / 8;
            if (row == 3) sum += 64 * static_cast<float>(touching);
            if (row >= 10 && row < 10 + static_cast<size_t>(touching)) sum += 32;
            const float mean = sum / static_cast<float>(4 * ranks);
            expect(std::abs(ddp.gradient<float>(0)[i] - mean) <= 2e-6f * mean,
                   "element " + std::to_string(i) + " is " +
                       std::to_string(ddp.gradient<float>(0)[i]) + ", should be " +
                       std::to_string(mean));
          }
        }
      });
    }
  }
}

TEST_CASE("ddp tied weights: touched rows travel where that is fewer bytes") {
  const std::vector<int32_t> few = {1, 2, 999};
  std::vector<int32_t> all(1000);
  std::iota(all.begin(), all.end(), 0);
  const auto bytes_with = [&](DdpOptions::Rows rows, const std::vector<int32_t>& touched) {
    uint64_t bytes = 0;
    with_ranks(2, [&](Communicator& communicator) {
      DdpOptions options;
      options.rows = rows;
      Ddp ddp = make(communicator, options,
                     {{.name = "wte", .shape = {1000, 8}},
                      {.name = "rows", .shape = {1000, 8}, .adds_to = 0}});
      const uint64_t before = communicator.stats().bytes_sent;
      ok(ddp.begin({.loss_terms = 1}));
      ddp.touches_rows(1, touched);
      all_ready(ddp);
      ok(ddp.finish());
      if (communicator.rank() == 0) bytes = communicator.stats().bytes_sent - before;
    });
    return bytes;
  };
  using Rows = DdpOptions::Rows;
  const uint64_t whole = bytes_with(Rows::kWhole, all);
  CHECK(bytes_with(Rows::kFewerBytes, few) + 25000 < whole);
  // With its number each row is longer than without.
  CHECK(bytes_with(Rows::kFewerBytes, all) + 3000 < bytes_with(Rows::kTouched, all));
  CHECK(bytes_with(Rows::kFewerBytes, all) <= whole + 8);  // and the exchange of counts
}

TEST_CASE("ddp tied weights: fewer bytes are counted in the type in which the whole travels") {
  // 600 rows of each rank: 1200 * (32 + 4) bytes are fewer than 2 * 1000 * 32, but more than
  // 2 * 1000 * 16.
  std::vector<int32_t> touched(600);
  std::iota(touched.begin(), touched.end(), 0);
  const auto bytes_with = [&](DdpOptions::Rows rows) {
    uint64_t bytes = 0;
    with_ranks(2, [&](Communicator& communicator) {
      DdpOptions options;
      options.rows = rows;
      options.hook = make_compression_hook(DataType::kBFloat16).value();
      Ddp ddp = make(communicator, options,
                     {{.name = "wte", .shape = {1000, 8}},
                      {.name = "rows", .shape = {1000, 8}, .adds_to = 0}});
      const uint64_t before = communicator.stats().bytes_sent;
      ok(ddp.begin({.loss_terms = 1}));
      ddp.touches_rows(1, touched);
      all_ready(ddp);
      ok(ddp.finish());
      if (communicator.rank() == 0) bytes = communicator.stats().bytes_sent - before;
    });
    return bytes;
  };
  using Rows = DdpOptions::Rows;
  CHECK(bytes_with(Rows::kWhole) + 3000 < bytes_with(Rows::kTouched));
  CHECK(bytes_with(Rows::kFewerBytes) <= bytes_with(Rows::kWhole) + 8);  // the exchange of counts
}

TEST_CASE("ddp skipped layers: what adds to a tensor uses it") {
  with_ranks(2, [](Communicator& communicator) {
    Ddp ddp = make(communicator, {},
                   {{.name = "wte", .shape = {4, 2}, .may_skip = true},
                    {.name = "rows", .shape = {4, 2}, .adds_to = 0}});
    for (size_t i = 0; i < 8; ++i) ddp.gradient<float>(1)[i] = 1;
    ok(ddp.begin({.loss_terms = 1}));
    ddp.gradient_skipped(0);
    ddp.gradient_ready(1);
    ok(ddp.finish());
    expect(ddp.used(0), "the looked-up rows were not seen");
    expect_eq(ddp.gradient<float>(0)[0], 1.0f, "gradient");
  });
}

TEST_CASE("ddp hooks: see a second gradient that travels whole, and the last bucket") {
  with_ranks(2, [](Communicator& communicator) {
    DdpOptions options;
    options.hook = make_compression_hook(DataType::kBFloat16).value();
    options.rows = DdpOptions::Rows::kWhole;
    Ddp ddp =
        make(communicator, options,
             {{.name = "wte", .shape = {4, 2}}, {.name = "rows", .shape = {4, 2}, .adds_to = 0}});
    for (size_t t = 0; t < 2; ++t) {
      for (size_t i = 0; i < 8; ++i) ddp.gradient<float>(t)[i] = 2 + 1.0f / 256;
    }
    ok(ddp.begin({.loss_terms = 1}));
    all_ready(ddp);
    ok(ddp.finish());
    expect_eq(ddp.gradient<float>(0)[0], 4.0f, "both were rounded on their way");
  });
}

TEST_CASE("ddp uneven inputs: ranks in different epochs are told") {
  with_ranks(2, [](Communicator& communicator) {
    DdpOptions options = small_buckets();
    options.join = true;
    Ddp ddp = make(communicator, options);
    ok(ddp.begin({.loss_terms = 1, .epoch = static_cast<uint64_t>(communicator.rank())}));
    all_ready(ddp);
    const Status status = ddp.finish();
    expect(!status.ok(), "different epochs went unnoticed");
    expect(
        status.message().find("rank 1 is in epoch 1, but rank 0 in epoch 0") != std::string::npos,
        status.message());
  });
}

TEST_CASE("ddp files: with shards nobody has all of the optimizer's state to save") {
  const rondo::testing::TempDirectory folder;
  with_ranks(2, [&](Communicator& communicator) {
    DdpOptions options = small_buckets();
    options.shard = true;
    Ddp ddp = make(communicator, options);
    std::vector<float> momentum(ddp.parameter_elements());
    const Status status = ddp.save(folder.path() + "/x", {{"momentum", momentum.data()}});
    expect(status.message().find("with shards") != std::string::npos, status.message());
    ok(ddp.save(folder.path() + "/x"));
  });
}

TEST_CASE("ddp files: what one set of ranks saves, another loads") {
  const rondo::testing::TempDirectory folder;
  const std::string path = folder.path() + "/model.safetensors";
  with_ranks(3, [&](Communicator& communicator) {
    Result<Ddp> made = Ddp::create(communicator, five(), {{.name = "running", .shape = {3}}});
    ok(made.status());
    for (size_t t = 0; t < 5; ++t) {
      for (size_t i = 0; i < 16; ++i) made->parameter<float>(t)[i] = contribution(0, 1, 16 * t + i);
    }
    static_cast<float*>(made->buffer(0))[1] = 5;
    std::vector<float> momentum(made->parameter_elements());
    momentum[made->offset(3)] = 8;
    ok(made->save(path, {{"momentum", momentum.data()}}, {{"step", "12"}, {"note", "a b 3"}}));
  });
  with_ranks(2, [&](Communicator& communicator) {
    Result<Ddp> made = Ddp::create(communicator, five(), {{.name = "running", .shape = {3}}});
    ok(made.status());
    std::vector<float> momentum(made->parameter_elements());
    const auto notes = made->load(path, {{"momentum", momentum.data()}});
    ok(notes.status());
    expect_eq(notes.value().at("step"), std::string("12"), "note");
    expect_eq(notes.value().at("note"), std::string("a b 3"), "note");
    expect_eq(made->parameter<float>(4)[15], contribution(0, 1, 79), "parameter");
    expect_eq(static_cast<float*>(made->buffer(0))[1], 5.0f, "buffer");
    expect_eq(momentum[made->offset(3)], 8.0f, "state");
  });
  with_ranks(2, [&](Communicator& communicator) {
    std::vector<DdpTensor> tensors = five();
    tensors[2].shape = {4, 4};
    Ddp ddp = make(communicator, {}, tensors);
    const Status status = ddp.load(path).status();
    expect(!status.ok() && status.message().find("'p2' is float [16], but this model's is float "
                                                 "[4, 4]") != std::string::npos,
           status.message());
    const Status missing = ddp.load(folder.path() + "/none").status();
    expect(missing.message().find(folder.path() + "/none") != std::string::npos, missing.message());
  });
}
