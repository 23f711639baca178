// Other buckets on a heap that is exhausted: every allocation fails once, in turn. The old buckets
// stay, and work.
#include <atomic>

#include "tests/harness/failing_allocation.hpp"
#include "tests/harness/sanitized.hpp"
#include "tests/trainer/ddp_rig.hpp"

using namespace rondo;
using namespace rondo::testing;

namespace {

using Ends = std::vector<size_t>;

/// A step of one rank, whose buckets are reported, and whose gradients are the mean of one.
void require_step(Ddp& ddp, int number) {
  fill(ddp, 0, number);
  ok(ddp.begin({.loss_terms = 1}));
  all_ready(ddp);
  size_t reduced = 0;
  ok(ddp.finish([&](size_t) { ++reduced; }));
  expect_eq(reduced, ddp.layout().size(), "buckets reduced");
  expect_eq(ddp.times().size(), ddp.layout().size(), "times");
  for (size_t t = 0; t < ddp.tensors().size(); ++t) {
    for (size_t i = 0; i < ddp.tensors()[t].count(); ++i) {
      expect_eq(ddp.gradient<float>(t)[i], contribution(0, number, 16 * t + i), "gradient");
    }
  }
}

}  // namespace

TEST_CASE("ddp exhausted: set_bucket_ends() fails whole, and can be called again") {
  with_ranks(1, [](Communicator& communicator) {
    is_test = true;
    Ddp ddp = make(communicator);
    const Ends three = ends_of(ddp), two = {48, 80};
    bool failed = true;
    int tried = 0;
    for (; failed; ++tried) {
      expect(tried < 1000, "allocations have no end");
      Status status;
      {
        const Failing failing(tried + 1);
        status = ddp.set_bucket_ends(two);
        failed = Failing::has_failed();
      }
      expect_code(status, failed ? Code::kResourceExhausted : Code::kOk);
      expect(ends_of(ddp) == (failed ? three : two), "buckets");
      require_step(ddp, tried % 8);
    }
    expect(tried > 5, "nothing was allocated");
  });
}

// Rank 1 follows rank 0's choice, and so allocates little before it.
TEST_CASE("ddp exhausted: buckets that cannot be laid out anew are an error, and stay") {
  bool failed = true;
  long failures = 0;
  for (long k = 1; failed; k += kSanitized ? 7 : 1) {
    REQUIRE(k < 2000);
    std::atomic<bool> has_failed{false}, has_kept{false};
    with_ranks(2, [&](Communicator& communicator) {
      is_test = true;
      Ddp ddp = make(communicator, {.bucket_cap_mb = kDdpAutoCap, .auto_after_steps = 1});
      make_step(ddp);
      const Ends before = ends_of(ddp);
      Status begun;
      {
        std::optional<Failing> failing;
        if (communicator.rank() == 1) failing.emplace(k);
        begun = ddp.begin({.loss_terms = 1});
        if (communicator.rank() == 1) has_failed = Failing::has_failed();
      }
      if (begun.ok()) {  // so that this rank is not the first to give up
        all_ready(ddp);
        (void)ddp.finish();
      }
      if (communicator.rank() != 1 || begun.ok()) return;
      has_kept = true;
      expect_code(begun, Code::kResourceExhausted);
      expect(ends_of(ddp) == before, "other buckets");
      expect_eq(ddp.times().size(), before.size(), "times");
      expect(!ddp.begin({.loss_terms = 1}).ok(), "the failure did not stick");
    });
    failed = has_failed;
    if (has_kept) ++failures;
  }
  CHECK(failures > 2);
}
