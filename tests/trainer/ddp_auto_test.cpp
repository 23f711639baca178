// kDdpAutoCap: buckets that are laid out anew after the first steps, by ranks as threads. What
// depends on times is compared between ranks, never with a value.
#include <map>
#include <mutex>

#include "tests/trainer/ddp_rig.hpp"
#include "tests/trainer/link_profile.hpp"
#include "trainer/ddp/relayout.hpp"

using namespace rondo;
using namespace rondo::testing;

namespace {

/// Ranks on links where every all-reduce is predicted to cost the same: the fewest buckets are best
/// where nothing is hidden, however long anything took.
void with_equal_costs(int ranks, const std::function<void(Communicator&)>& body,
                      Config config = {}) {
  const TempDirectory folder;
  config.links = write_links(folder.path() + "/links.json", {{"overhead_us", 1000}});
  with_ranks(ranks, config, body);
}
DdpOptions automatic() { return {.bucket_cap_mb = kDdpAutoCap, .overlap = false}; }

void step(Ddp& ddp, int number) {
  fill(ddp, rank_of(ddp), number);
  make_step(ddp);
}

void require_mean(Ddp& ddp, int ranks, int number) {
  for (size_t t = 0; t < ddp.tensors().size(); ++t) {
    for (size_t i = 0; i < ddp.tensors()[t].count(); i += 997) {
      const double mean = sum_of_contributions(ranks, number, 16 * t + i) / ranks;
      expect_near(ddp.gradient<float>(t)[i], mean, 1e-6 * mean, "tensor " + std::to_string(t));
    }
  }
}

}  // namespace

TEST_CASE("ddp auto: after the stated step the layout is another one, on all ranks alike") {
  for (const int ranks : {1, 2, 3, 4}) {
    std::mutex mutex;
    std::vector<std::vector<size_t>> layouts;
    with_equal_costs(ranks, [&](Communicator& communicator) {
      Ddp ddp = make(communicator,
                     {.bucket_cap_mb = kDdpAutoCap, .auto_after_steps = 2, .overlap = false},
                     mebibytes(3));
      const std::vector<size_t> before = ends_of(ddp);
      const void* const gradients = ddp.gradients();
      expect_eq(before.size(), size_t{3}, "buckets at first");
      for (int number = 0; number < 5; ++number) {
        step(ddp, number);
        require_mean(ddp, ranks, number);
        const bool after = ranks > 1 && number >= 2;
        expect_eq(ddp.relayout().after_steps, after ? uint64_t{2} : uint64_t{0}, "after steps");
        // One all-reduce costs least, because nothing is hidden.
        expect_eq(ddp.layout().size(), after ? size_t{1} : size_t{3}, "buckets");
        expect_eq(ddp.times().size(), ddp.layout().size(), "times");
      }
      expect(ddp.gradients() == gradients, "gradients have moved");
      if (ranks > 1) {
        expect_eq(ddp.relayout().buckets_before, size_t{3}, "buckets before");
        expect_eq(ddp.relayout().buckets, size_t{1}, "buckets after");
        expect(ddp.relayout().exposed_ms < ddp.relayout().exposed_before_ms, "nothing gained");
      }
      const std::lock_guard lock(mutex);
      layouts.push_back(ends_of(ddp));
    });
    for (const auto& layout : layouts) CHECK(layout == layouts[0]);
  }
}

TEST_CASE("ddp auto: with overlap, hooks, skipped and tied tensors all ranks go on alike") {
  std::mutex mutex;
  std::vector<std::vector<size_t>> layouts;
  with_ranks(3, [&](Communicator& communicator) {
    Tensors tensors = mebibytes(3);
    tensors[1].may_skip = true;
    tensors.push_back({.name = "rows", .shape = {1 << 18}, .adds_to = 0});
    Ddp ddp = make(communicator, {.bucket_cap_mb = kDdpAutoCap}, tensors);
    for (int number = 0; number < 7; ++number) {
      ok(ddp.begin({.loss_terms = 1}));
      fill(ddp, communicator.rank(), number);
      // A large tensor in two parts; one rank does not use a tensor.
      ddp.gradient_ready(0, 1 << 17);
      ddp.gradient_ready(0);
      if (communicator.rank() == 0) {
        std::fill_n(ddp.gradient<float>(1), 1 << 18, 0.0f);  // as begin() leaves it
        ddp.gradient_skipped(1);
      } else {
        ddp.gradient_ready(1);
      }
      ddp.gradient_ready(2);
      ddp.gradient_ready(3);
      std::vector<size_t> reduced;
      ok(ddp.finish([&](size_t bucket) { reduced.push_back(bucket); }));
      expect_eq(reduced.size(), ddp.layout().size(), "buckets reduced");
      expect(ddp.used(1), "two ranks have used it");
      for (const size_t i : {0, 5, (1 << 18) - 1}) {
        const double tied =
            sum_of_contributions(3, number, i) + sum_of_contributions(3, number, 48 + i);
        const double skipped = sum_of_contributions(3, number, 16 + i) -
                               static_cast<double>(contribution(0, number, 16 + i));
        expect_near(ddp.gradient<float>(0)[i] * 3.0, tied, 1e-5 * tied, "tied");
        expect_near(ddp.gradient<float>(1)[i] * 3.0, skipped, 1e-5 * skipped, "skipped");
      }
    }
    expect_eq(ddp.relayout().after_steps, uint64_t{5}, "after steps");
    const std::lock_guard lock(mutex);
    layouts.push_back(ends_of(ddp));
  });
  for (const auto& layout : layouts) CHECK(layout == layouts[0]);
}

TEST_CASE("ddp auto: reproducible bits are those of any cap") {
  std::vector<std::vector<float>> results;
  for (const double cap_mb : {kDdpAutoCap, 0.0, 25.0}) {
    std::vector<float>& result = results.emplace_back();
    const auto body = [&](Communicator& communicator) {
      Ddp ddp =
          make(communicator, {.bucket_cap_mb = cap_mb, .auto_after_steps = 1, .overlap = false},
               mebibytes(3));
      for (int number = 0; number < 2; ++number) {
        for (size_t i = 0; i < ddp.gradient_elements(); ++i) {
          gradients_of(ddp)[i] =
              1.0f / static_cast<float>(i + 1 + static_cast<size_t>(communicator.rank()));
        }
        make_step(ddp);
      }
      expect_eq(ddp.layout().size(), cap_mb == kDdpAutoCap ? size_t{1} : size_t{3}, "buckets");
      if (communicator.rank() == 1) result = copy_of_gradients(ddp);
    };
    with_equal_costs(3, body, reproducible());
    const bool same = result == results[0];
    CHECK(same);
  }
}

TEST_CASE("ddp auto: buckets can be set, between steps and where they can end") {
  with_ranks(2, [](Communicator& communicator) {
    const auto hook = make_compression_hook(DataType::kFloat16).value();
    Ddp ddp =
        make(communicator, {.bucket_cap_mb = kDdpAutoCap, .auto_after_steps = 1, .hook = hook});
    const auto means = [&](int number) {
      for (size_t i = 0; i < 80; ++i) {
        gradients_of(ddp)[i] =
            static_cast<float>(number + 2 * communicator.rank()) + static_cast<float>(i % 16);
      }
      make_step(ddp);
      for (size_t i = 0; i < 80; ++i) {
        expect_eq(gradients_of(ddp)[i], static_cast<float>(number + 1) + static_cast<float>(i % 16),
                  "mean");
      }
    };
    // Smaller, larger and crossing buckets: the hook's memory follows.
    using Ends = std::vector<size_t>;
    for (const Ends& ends : {Ends{16, 48, 80}, Ends{80}, Ends{8, 24, 64, 80}, Ends{32, 80}}) {
      ok(ddp.set_bucket_ends(ends));
      expect(ends_of(ddp) == ends, "other buckets");
      means(static_cast<int>(ends.size()));
      means(2);
    }
    expect_eq(ddp.relayout().after_steps, uint64_t{0}, "laid out in spite of that");
    for (const Ends& ends : {Ends{}, Ends{64}, Ends{64, 96}, Ends{32, 16, 80}}) {
      expect_code(ddp.set_bucket_ends(ends), Code::kInvalidArgument);
    }
    expect(ends_of(ddp) == Ends{32, 80}, "a refusal has changed buckets");
    ok(ddp.begin({.loss_terms = 1}));
    expect(!ddp.set_bucket_ends({80}).ok(), "inside a step");
    all_ready(ddp);
    ok(ddp.finish());
  });
}

TEST_CASE("ddp auto: what is saved before the stated step has the buckets of all later steps") {
  const TempDirectory folder;
  const std::string path = folder.path() + "/model";
  for (const bool saves : {true, false}) {
    with_equal_costs(3, [&](Communicator& communicator) {
      Ddp ddp = make(communicator, automatic(), mebibytes(3));
      ok(ddp.settle_buckets());  // no step was made: nothing to go by
      expect(ddp.relayout().pending, "laid out by nothing");
      for (int number = 0; number < 7; ++number) {
        step(ddp, number);
        if (number == 1) ok(saves ? ddp.save(path) : ddp.settle_buckets());
        expect_eq(ddp.layout().size(), number == 0 ? size_t{3} : size_t{1}, "buckets");
        expect_eq(ddp.relayout().after_steps, uint64_t(number == 0 ? 0 : 2), "after steps");
      }
      Ddp again = make(communicator, automatic(), mebibytes(3));
      ok(again.load(path).status());
      expect(ends_of(again) == ends_of(ddp), "the file has other buckets");
      expect(!again.relayout().pending, "pending");
    });
  }
  with_ranks(1, [](Communicator& communicator) {
    Ddp ddp = make(communicator, {.bucket_cap_mb = kDdpAutoCap});
    ok(ddp.begin({.loss_terms = 1}));
    expect_code(ddp.settle_buckets(), Code::kInvalidArgument);
  });
}

TEST_CASE("ddp auto: a file has the buckets, for as many ranks, and not among the notes") {
  const TempDirectory folder;
  const std::string path = folder.path() + "/model";
  const std::vector<size_t> ends = {16, 80};
  with_ranks(2, [&](Communicator& communicator) {
    Ddp ddp = make(communicator, {.bucket_cap_mb = kDdpAutoCap});
    expect(ddp.relayout().pending, "not pending");
    ok(ddp.set_bucket_ends(ends));
    ok(ddp.save(path, {}, {{"by", "test"}}));
    Ddp again = make(communicator, {.bucket_cap_mb = kDdpAutoCap});
    const auto notes = again.load(path);
    ok(notes.status());
    expect(notes.value() == std::map<std::string, std::string>{{"by", "test"}}, "notes");
    expect(ends_of(again) == ends, "other buckets");
    expect(!again.relayout().pending, "pending");
    Ddp fixed = make(communicator);
    const std::vector<size_t> before = ends_of(fixed);
    ok(fixed.load(path).status());
    expect(ends_of(fixed) == before, "a cap was given");
  });
  with_ranks(3, [&](Communicator& communicator) {
    Ddp ddp = make(communicator, {.bucket_cap_mb = kDdpAutoCap});
    ok(ddp.load(path).status());
    expect(ddp.relayout().pending, "the buckets of two ranks");
  });
}
