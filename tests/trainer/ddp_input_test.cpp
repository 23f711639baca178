// What DistributedDataParallel does with wrong calls, hooks that throw, and too little memory: an
// error on every rank that names the value, the rank and what to do.
#include <new>

#include "tests/harness/sanitized.hpp"
#include "tests/trainer/ddp_rig.hpp"

using namespace rondo;
using namespace rondo::testing;

TEST_CASE("ddp bad input: an error on every rank in this step, not the end of the process") {
  struct Mistake {
    std::string message;  // behind "rank 1 "
    std::function<void(Ddp&)> make;
  };
  const auto touches = [](size_t tensor, const std::vector<int32_t>& rows) {
    return [=](Ddp& ddp) { ddp.touches_rows(tensor, rows); };
  };
  const Mistake mistakes[] = {
      {"touches row 10 of 'rows', which has 10 rows", touches(1, {3, 10})},
      {"touches row -1 of 'rows', which has 10 rows", touches(1, {-1})},
      {"touches rows of 'wte', which adds to no other tensor", touches(0, {3})},
      {"touches rows of 'rows' after the first gradient is ready",
       [&](Ddp& ddp) {
         ddp.gradient_ready(0);
         touches(1, {3})(ddp);
       }},
      {"touches rows of tensor 7, but there are 2", touches(7, {3})},
      {"has 81 elements of 'wte' ready, which has 80", [](Ddp& ddp) { ddp.gradient_ready(0, 81); }},
      {"reports a gradient of tensor 2, but there are 2", [](Ddp& ddp) { ddp.gradient_ready(2); }},
      {"reports a gradient of tensor 2, but there are 2",
       [](Ddp& ddp) { ddp.gradient_ready(2, 1); }},
      {"skips the gradient of tensor 2, but there are 2",
       [](Ddp& ddp) { ddp.gradient_skipped(2); }},
  };
  const Tensors tensors = {{.name = "wte", .shape = {10, 8}},
                           {.name = "rows", .shape = {10, 8}, .adds_to = 0}};
  for (const Mistake& mistake : mistakes) {
    with_ranks(2, [&](Communicator& communicator) {
      Ddp ddp = make(communicator, {}, tensors);
      ok(ddp.begin({.loss_terms = 1}));
      if (communicator.rank() == 1) mistake.make(ddp);
      all_ready(ddp);
      expect_error(ddp.finish(), "rank 1 " + mistake.message);
    });
  }
}

TEST_CASE("ddp bad input: a hook that throws is an error on every rank") {
  struct Throwing : SummingHook {
    Work start(Communicator& communicator, const GradientBucket& bucket) override {
      if (bucket.index == 1 && communicator.rank() == 1) throw std::bad_alloc();
      return SummingHook::start(communicator, bucket);
    }
  };
  with_ranks(2, [](Communicator& communicator) {
    Ddp ddp = make(communicator, {.bucket_cap_mb = kSmallMb, .hook = std::make_shared<Throwing>()});
    expect_error(try_step(ddp), "rank 1 has not enough memory to send bucket 1");
  });
}

TEST_CASE("ddp bad input: too little memory for one rank ends create() for all") {
  if (kSanitized) return;  // their allocators end the process
  with_ranks(2, [](Communicator& communicator) {
    const char* const says = "not enough memory for parameters";
    const Tensors huge = {{.name = "huge", .shape = {size_t{1} << 46}}};
    expect_error(Ddp::create(communicator, huge, {}, {.bucket_cap_mb = 999999}).status(), says);
    expect_error(communicator.barrier(), says);
  });
}

TEST_CASE("ddp bad input: a compression hook for a type that is no smaller") {
  for (const DataType wire : {DataType::kFloat32, DataType::kInt32}) {
    const Status status = make_compression_hook(wire).status();
    CHECK(status.code() == Code::kInvalidArgument);
    CHECK(status.message().find(name(wire)) != std::string::npos);
  }
}

TEST_CASE("ddp bad input: a bucket that is gathered twice, or that does not exist") {
  for (const bool twice : {true, false}) {
    with_ddp(2, {.bucket_cap_mb = kSmallMb, .shard = true}, [&](Ddp& ddp) {
      ddp.gather_parameters(2);
      if (rank_of(ddp) == 1) ddp.gather_parameters(twice ? 2 : 3);
      const Status status = ddp.wait_parameters();
      if (rank_of(ddp) == 0) return;  // its gather may have ended before
      expect_error(status, twice ? "rank 1 gathers bucket 2, which is under way"
                                 : "rank 1 gathers bucket 3, but there are 3");
    });
  }
}
