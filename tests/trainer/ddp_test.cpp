// DistributedDataParallel over real ranks (as threads): what it computes and when it sends. One
// test per row of the feature table; the rows about exceptions are in ddp_exceptions_test.cpp.
#include <cmath>
#include <latch>

#include "tests/trainer/ddp_rig.hpp"

using namespace rondo;
using namespace rondo::testing;

TEST_CASE("ddp replication: parameters and buffers become rank 0's") {
  with_ranks(3, [](Communicator& communicator) {
    Result<Ddp> ddp = Ddp::create(communicator, five(), {{.name = "running", .shape = {3}}});
    ok(ddp.status());
    float* const parameter = ddp->parameter<float>(4);
    auto* const buffer = static_cast<float*>(ddp->buffer(0));
    for (size_t i = 0; i < 16; ++i) parameter[i] = contribution(communicator.rank(), 0, i);
    buffer[2] = 7.0f + static_cast<float>(communicator.rank());
    ok(ddp->replicate());
    for (size_t i = 0; i < 16; ++i) expect_eq(parameter[i], contribution(0, 0, i), "parameter");
    expect_eq(buffer[2], 7.0f, "buffer");
  });
}

TEST_CASE("ddp replication: the first difference between ranks is named on every rank") {
  with_ranks(4, [](Communicator& communicator) {
    Tensors tensors = five();
    if (communicator.rank() == 2) tensors[3].shape = {4, 5};
    const Status status = Ddp::create(communicator, std::move(tensors)).status();
    expect_code(status, Code::kMismatch);
    for (const char* part : {"rank 0", "rank 2", "'p3'", "[16]", "[4, 5]"}) {
      expect_error(status, part);
    }
  });
  with_ranks(3, [](Communicator& communicator) {  // one has more
    Tensors tensors = five();
    if (communicator.rank() == 1) tensors.pop_back();
    const Status status = Ddp::create(communicator, std::move(tensors)).status();
    expect_error(status, "'p4'");
    expect_error(status, "rank 1 has nothing more");
  });
  const std::pair<DdpOptions, const char*> others[] = {
      {{.bucket_cap_mb = 1}, "bucket_cap_mb=1"},
      {{.bucket_cap_mb = kDdpAutoCap}, "rank 1 has options type=float bucket_cap_mb=auto"},
      {{.shard = true}, "shard=true"}};
  for (const auto& other : others) {
    with_ranks(2, [&](Communicator& communicator) {
      const DdpOptions own = communicator.rank() == 0 ? DdpOptions{} : other.first;
      expect_error(Ddp::create(communicator, five(), {}, own).status(), other.second);
    });
  }
}

TEST_CASE("ddp averaging: the mean over all loss terms, step after step, at N = 1 to 5 and 7") {
  for (const int ranks : {1, 2, 3, 4, 5, 7}) {
    for (const bool overlap : {true, false}) {
      const DdpOptions options = {
          .bucket_cap_mb = kSmallMb, .overlap = overlap, .gradients = kOfSum};
      with_ddp(ranks, options, [&](Ddp& ddp) {
        const int rank = rank_of(ddp);
        const int terms = ranks * (ranks + 1) / 2;
        for (int step = 0; step < 3; ++step) {
          fill(ddp, rank, step);
          // Rank r has r + 1 terms, so the sum is divided by N (N + 1) / 2.
          ok(ddp.begin({.loss_terms = static_cast<uint64_t>(rank + 1)}));
          // Each rank finishes its gradients in an order of its own.
          for (size_t p = 0; p < 5; ++p) {
            ddp.gradient_ready((p * 2 + static_cast<size_t>(rank)) % 5);
          }
          ok(ddp.finish());
          expect_eq(ddp.headers().value().loss_terms, static_cast<uint64_t>(terms), "terms");
          for (size_t i = 0; i < 80; ++i) {
            const double mean = sum_of_contributions(ranks, step, i) / terms;
            expect_near(gradients_of(ddp)[i], mean, 1e-6 * mean, "element " + std::to_string(i));
          }
        }
      });
    }
  }
}

// y = w x + b is fitted by the mean squared error of each rank's batch, as PyTorch's mse_loss gives
// it. Rank 0 has one sample of a step, rank 1 has four. One process with all five samples takes the
// same steps.
TEST_CASE("ddp averaging: mean losses of unequal batches train like one process, by default") {
  struct Line {
    float w = 0, b = 0, dw = 0, db = 0;
    void backward(int first, int last) {
      dw = db = 0;
      for (int i = first; i < last; ++i) {
        const float x = static_cast<float>(i * i % 7) / 4, error = w * x + b - (3 * x - 1);
        dw += 2 * error * x / static_cast<float>(last - first);
        db += 2 * error / static_cast<float>(last - first);
      }
    }
    void update() { w -= 0.1f * dw, b -= 0.1f * db; }
  };
  with_ddp(2, {}, {{.name = "b", .shape = {1}}, {.name = "w", .shape = {1}}}, [](Ddp& ddp) {
    Line mine, whole;
    for (int step = 0; step < 20; ++step) {
      const int first = 5 * step + rank_of(ddp), last = rank_of(ddp) == 0 ? first + 1 : first + 4;
      mine.backward(first, last);
      *ddp.gradient<float>(0) = mine.db;
      *ddp.gradient<float>(1) = mine.dw;
      make_step(ddp, {.loss_terms = static_cast<uint64_t>(last - first)});
      mine.db = *ddp.gradient<float>(0);
      mine.dw = *ddp.gradient<float>(1);
      mine.update();
      whole.backward(5 * step, 5 * step + 5);
      whole.update();
      expect_near(mine.w, whole.w, 1e-5, "w after step " + std::to_string(step));
      expect_near(mine.b, whole.b, 1e-5, "b after step " + std::to_string(step));
    }
    expect(mine.w > 1, "nothing was learned");
  });
}

// Rank 0 has 4 terms that sum to 8, rank 1 has one that is 6: their means are 2 and 6.
TEST_CASE("ddp averaging: by ranks it is the mean of the ranks' means, without one the sum") {
  using Average = DdpOptions::Average;
  for (const Average average : {Average::kRanks, Average::kNone}) {
    const DdpOptions options = {.bucket_cap_mb = kSmallMb, .average = average, .gradients = kOfSum};
    with_ddp(2, options, [&](Ddp& ddp) {
      const bool first = rank_of(ddp) == 0;
      set_gradients(ddp, first ? 8.0f : 6.0f);
      make_step(ddp, {.loss_terms = first ? 4u : 1u});
      expect_eq(ddp.gradient<float>(2)[3], average == Average::kRanks ? 4.0f : 14.0f, "gradient");
      expect_eq(ddp.headers().value().loss_terms, uint64_t{5}, "terms");
    });
  }
}

TEST_CASE("ddp bucket views: what travels is the memory that backward writes") {
  struct Seen : SummingHook {
    Work start(Communicator& communicator, const GradientBucket& bucket) override {
      views.push_back({bucket.data, bucket.count});
      return SummingHook::start(communicator, bucket);
    }
    std::vector<std::pair<void*, size_t>> views;
  };
  with_ranks(2, [](Communicator& communicator) {
    const auto hook = std::make_shared<Seen>();
    Ddp ddp = make(communicator, {.bucket_cap_mb = kSmallMb, .hook = hook});
    make_step(ddp);
    // Two tensors, two more, and the last, none of them moved.
    const std::vector<std::pair<void*, size_t>> expected = {
        {ddp.gradient<float>(0), 32}, {ddp.gradient<float>(2), 32}, {ddp.gradient<float>(4), 16}};
    expect(hook->views == expected, "a bucket is not where its gradients are");
    expect(ddp.gradient<float>(0) == ddp.gradients(), "the first gradient is elsewhere");
  });
}

TEST_CASE("ddp overlap: a bucket leaves with its last gradient, never before its predecessors") {
  with_ddp(2, small_buckets(), [](Ddp& ddp) {
    ok(ddp.begin({.loss_terms = 1}));
    for (const size_t tensor : {0, 2, 3}) ddp.gradient_ready(tensor);
    const int64_t before_first = now_ns();
    ddp.gradient_ready(1);  // completes bucket 0, and bucket 1 has been waiting for that
    const int64_t before_last = now_ns();
    ddp.gradient_ready(4);
    const int64_t after_last = now_ns();
    ok(ddp.finish());
    const auto& times = ddp.times();
    expect_eq(times.size(), size_t{3}, "buckets");
    expect(times[1].ready_ns <= before_first, "bucket 1 was ready first");
    expect(before_first <= times[0].work.issued_ns, "bucket 0 was issued before it was full");
    expect(times[0].work.issued_ns <= times[1].work.issued_ns, "bucket 1 before bucket 0");
    expect(times[1].work.issued_ns <= before_last, "bucket 1 was not issued when it could be");
    expect(before_last <= times[2].work.issued_ns, "bucket 2 was issued before it was full");
    expect(times[2].work.issued_ns <= after_last, "bucket 2 was not issued when it was full");
  });
}

// Rank 1's last gradient is not final before rank 0 has been told of the first bucket: who is told
// of all at the end waits for ever.
TEST_CASE("ddp overlap: finish() tells of a bucket while another rank still computes") {
  std::latch told(1);
  with_ddp(2, small_buckets(), [&](Ddp& ddp) {
    fill(ddp, rank_of(ddp), 0);
    ok(ddp.begin({.loss_terms = 1}));
    for (const size_t tensor : {0, 1, 2, 3}) ddp.gradient_ready(tensor);
    if (rank_of(ddp) == 1) told.wait();
    ddp.gradient_ready(4);
    std::vector<size_t> buckets;
    ok(ddp.finish([&](size_t bucket) {
      buckets.push_back(bucket);
      const size_t first = ddp.own_range(bucket).begin;
      expect_eq(gradients_of(ddp)[first], sum_of_contributions(2, 0, first) / 2, "no average yet");
      if (rank_of(ddp) == 0 && bucket == 0) told.count_down();
    }));
    expect(buckets == std::vector<size_t>{0, 1, 2}, "each bucket once, in order");
  });
}

// The first bucket is small; the second takes long enough behind it to be overtaken.
TEST_CASE("ddp overlap: without it finish() issues all buckets, and tells when all have ended") {
  with_ddp(2, {.bucket_cap_mb = 0, .overlap = false},
           {{.name = "small", .shape = {16}}, {.name = "large", .shape = {1 << 22}}}, [](Ddp& ddp) {
             ok(ddp.begin({.loss_terms = 1}));
             all_ready(ddp);
             const int64_t before_finish = now_ns();
             std::vector<int64_t> told_ns;
             ok(ddp.finish([&](size_t /*bucket*/) { told_ns.push_back(now_ns()); }));
             expect_eq(told_ns.size(), size_t{2}, "buckets");
             expect(told_ns[0] >= ddp.times()[1].work.ended_ns, "told before the last ended");
             for (const DdpBucketTimes& t : ddp.times()) {
               expect(before_finish <= t.work.issued_ns, "a bucket was issued before finish");
             }
           });
}

TEST_CASE("ddp buckets: without a cap of one's own 25 MiB, the first and the last 1 MiB") {
  with_ranks(1, [](Communicator& communicator) {
    const Ddp ddp = make(communicator, {}, mebibytes(30));
    std::vector<size_t> tensors;
    for (const DdpBucket& bucket : ddp.layout()) tensors.push_back(bucket.pieces.size());
    expect(tensors == std::vector<size_t>{1, 25, 3, 1}, "30 tensors of a MiB lie otherwise");
  });
}

TEST_CASE("ddp buckets: panels of a split tensor travel when they are done") {
  with_ranks(2, [](Communicator& communicator) {
    // Eight rows of 16; panels of two rows, and one panel per bucket.
    Ddp ddp = make(communicator, small_buckets(), {{.name = "w", .shape = {8, 16}}});
    expect_eq(ddp.layout().size(), size_t{4}, "buckets");
    fill(ddp, communicator.rank(), 0);
    ok(ddp.begin({.loss_terms = 1}));
    ddp.gradient_ready(0, 32);
    ddp.gradient_ready(0, 0);  // reports no element twice
    const int64_t middle = now_ns();
    ddp.gradient_ready(0, 70);  // the second panel, and a little of the third
    ddp.gradient_ready(0, 128);
    ok(ddp.finish());
    expect(ddp.times()[0].work.issued_ns <= middle, "the first panel waited");
    expect(middle <= ddp.times()[1].work.issued_ns, "the second panel left too early");
    for (size_t i = 0; i < 128; ++i) {
      expect_eq(ddp.gradient<float>(0)[i], sum_of_contributions(2, 0, i) / 2, "element");
    }
  });
}

TEST_CASE("ddp no_sync: micro-batches are accumulated and communicate once") {
  with_ddp(2, {.bucket_cap_mb = kSmallMb, .gradients = kOfSum}, [](Ddp& ddp) {
    const auto accumulate = [&](int micro) {
      for (size_t i = 0; i < 80; ++i) {
        float& gradient = gradients_of(ddp)[i];
        gradient = (micro == 0 ? 0 : gradient) + static_cast<float>(rank_of(ddp) + micro);
      }
      all_ready(ddp);
    };
    const uint64_t before = ddp.communicator().stats().operations;
    ok(ddp.begin({.loss_terms = 3}));
    for (int micro = 0; micro < 2; ++micro) {
      const auto quiet = ddp.no_sync();
      { const auto nested = ddp.no_sync(); }
      accumulate(micro);
    }
    accumulate(2);
    ok(ddp.finish());
    // The headers and three buckets.
    expect_eq(ddp.communicator().stats().operations - before, uint64_t{4}, "operations");
    expect_eq(ddp.gradient<float>(1)[1], (3.0f + 6.0f) / 6.0f, "mean");
  });
}

TEST_CASE("ddp reproducible: any bucket cap gives the same bits") {
  Tensors tensors;
  for (size_t t = 0; t < 6; ++t) {
    tensors.push_back({.name = std::to_string(t), .shape = {7 + 11 * t}});
  }
  std::vector<std::vector<float>> results;
  for (const double cap_mb : {0.0, 64.0 / (1 << 20), 200.0 / (1 << 20), 25.0}) {
    std::vector<float>& result = results.emplace_back();
    with_ranks(5, reproducible(), [&](Communicator& communicator) {
      Ddp ddp = make(communicator, {.bucket_cap_mb = cap_mb}, tensors);
      for (size_t i = 0; i < ddp.gradient_elements(); ++i) {
        gradients_of(ddp)[i] =
            std::sin(static_cast<float>(i + 1) * static_cast<float>(communicator.rank() + 3));
      }
      make_step(ddp);
      if (communicator.rank() == 3) result = copy_of_gradients(ddp);
    });
    CHECK(result == results[0]);
  }
}

TEST_CASE("ddp: the communicator's failure is what finish returns") {
  std::latch made(2);
  with_ddp(2, small_buckets(), [&](Ddp& ddp) {
    made.arrive_and_wait();
    ddp.communicator().abort("for the test");
    (void)ddp.begin({.loss_terms = 1});
    all_ready(ddp);
    const Status status = ddp.finish();
    expect_code(status, Code::kAborted);
    expect_error(status, "for the test");
  });
}

TEST_CASE("ddp: what cannot be is refused with its value") {
  with_ranks(1, [](Communicator& communicator) {
    const auto refused = [&](const Tensors& tensors, const DdpOptions& options,
                             const std::string& part, const Tensors& buffers = {}) {
      expect_error(Ddp::create(communicator, tensors, buffers, options).status(), part);
    };
    refused(five(), {.type = DataType::kInt32}, "int32");
    refused(five(), {.bucket_cap_mb = -1}, "bucket_cap_mb is -1");
    refused(five(), {.bucket_cap_mb = std::nan("")}, "bucket_cap_mb is nan");
    refused(five(), {.bucket_cap_mb = kDdpAutoCap, .shard = true}, "name a cap");
    refused(five(), {.bucket_cap_mb = kDdpAutoCap, .auto_after_steps = 0}, "auto_after_steps is 0");
    refused({{.name = "empty", .shape = {0, 4}}}, {}, "'empty' has no elements");
    refused({{.name = "scalar", .shape = {}}}, {}, "'scalar' has no shape: a scalar's is {1}");
    constexpr size_t kThird = std::numeric_limits<size_t>::max() / 3;
    refused({{.name = "wraps", .shape = {3, kThird + 1}}}, {}, "'wraps' has more bytes");
    refused({{.name = "a", .shape = {2}}, {.name = "b", .shape = {3}, .adds_to = 0}}, {}, "'b'");
    refused({{.name = "a", .shape = {2}}, {.name = "a", .shape = {3}}}, {}, "two tensors 'a'");
    refused({{.name = "a", .shape = {2}},
             {.name = "b", .shape = {2}, .adds_to = 0},
             {.name = "c", .shape = {2}}},
            {}, "'c' comes after");
    refused(five(), {}, "two tensors 'p3'", {{.name = "p3", .shape = {2}}});
  });
}

TEST_CASE("ddp: a step begins behind replicate(), which all ranks are told, and behind finish()") {
  std::latch created(1);
  with_ranks(2, [&](Communicator& communicator) {
    Result<Ddp> ddp = Ddp::create(communicator, five());
    ok(ddp.status());
    const bool forgets = communicator.rank() == 0;
    forgets ? created.wait() : created.count_down();
    expect_error(forgets ? ddp->begin({.loss_terms = 1}) : ddp->replicate(),
                 "rank 0: begin() before replicate()");
  });
  with_ddp(1, small_buckets(), [](Ddp& ddp) {
    ok(ddp.begin({.loss_terms = 1}));
    expect_error(ddp.begin({.loss_terms = 1}), "begin() before finish()");
  });
}

TEST_CASE("ddp: calls in a wrong order are errors on every rank, which say what to do") {
  struct Misuse {
    const char* says;
    std::function<void(Ddp&)> calls;
  };
  const auto says_of_p1 = [](const std::vector<size_t>& counts) -> Misuse {
    return {"rank 0 said twice in a step that the gradient of 'p1' is ready", [counts](Ddp& ddp) {
              ok(ddp.begin({.loss_terms = 1}));
              for (const size_t count : counts) ddp.gradient_ready(1, count);
            }};
  };
  const Misuse misuses[] = {
      {"rank 0 said twice in a step that the gradient of 'p3' is ready: what only accumulates does "
       "so under no_sync()",
       [](Ddp& ddp) {
         ok(ddp.begin({.loss_terms = 1}));
         for (const size_t t : {3, 3, 0}) ddp.gradient_ready(t);
       }},
      says_of_p1({5, 5, 16}),
      says_of_p1({9, 8, 16}),
      {"rank 0 has a gradient of 'p2' ready before begin()",
       [](Ddp& ddp) { ddp.gradient_ready(2); }},
      {"rank 0 called finish() before begin()", [](Ddp& /*ddp*/) {}},
  };
  for (const Misuse& misuse : misuses) {
    std::latch made(1);
    with_ddp(2, small_buckets(), [&](Ddp& ddp) {
      if (rank_of(ddp) == 0) {
        made.wait();
        misuse.calls(ddp);
      } else {
        made.count_down();
        (void)ddp.begin({.loss_terms = 1});
        all_ready(ddp);
      }
      expect_error(ddp.finish(), misuse.says);
    });
  }
}

TEST_CASE("ddp: destroyed in the middle of a step it aborts, and nobody gets wrong gradients") {
  // With one bucket under way, and with none.
  const size_t ready = GENERATE(size_t{2}, size_t{0});
  with_ddp(2, small_buckets(), [&](Ddp& ddp) {
    if (rank_of(ddp) == 0) {
      ok(ddp.begin({.loss_terms = 1}));
      (void)ddp.headers();
      for (size_t t = 0; t < ready; ++t) ddp.gradient_ready(t);
      return;
    }
    expect_error(try_step(ddp), "rank 0 gave up in the middle of a step");
  });
}
