// What DistributedDataParallel does with wrong calls, hooks that throw, and too little memory: an
// error on every rank that names the value, the rank and what to do.
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "tests/harness/sanitized.hpp"
#include "tests/trainer/ddp_rig.hpp"

using namespace rondo;
using namespace rondo::testing;

TEST_CASE("ddp bad input: an error on every rank in this step, not the end of the process") {
  struct Mistake {
    const char* message;
    std::function<void(Ddp&)> make;
  };
  const std::vector<DdpTensor> tensors = {{.name = "wte", .shape = {10, 8}},
                                          {.name = "rows", .shape = {10, 8}, .adds_to = 0}};
  const int32_t beyond[] = {3, 10}, negative[] = {-1}, row[] = {3};
  const Mistake mistakes[] = {
      {"rank 1 touches row 10 of 'rows', which has 10 rows",
       [&](Ddp& ddp) { ddp.touches_rows(1, beyond); }},
      {"rank 1 touches row -1 of 'rows', which has 10 rows",
       [&](Ddp& ddp) { ddp.touches_rows(1, negative); }},
      {"rank 1 touches rows of 'wte', which adds to no other tensor",
       [&](Ddp& ddp) { ddp.touches_rows(0, row); }},
      {"rank 1 touches rows of 'rows' after the first gradient is ready",
       [&](Ddp& ddp) {
         ddp.gradient_ready(0);
         ddp.touches_rows(1, row);
       }},
      {"rank 1 touches rows of tensor 7, but there are 2",
       [&](Ddp& ddp) { ddp.touches_rows(7, row); }},
      {"rank 1 has 81 elements of 'wte' ready, which has 80",
       [](Ddp& ddp) { ddp.gradient_ready(0, 81); }},
      {"rank 1 reports a gradient of tensor 2, but there are 2",
       [](Ddp& ddp) { ddp.gradient_ready(2); }},
      {"rank 1 reports a gradient of tensor 2, but there are 2",
       [](Ddp& ddp) { ddp.gradient_ready(2, 1); }},
      {"rank 1 skips the gradient of tensor 2, but there are 2",
       [](Ddp& ddp) { ddp.gradient_skipped(2); }},
  };
  for (const Mistake& mistake : mistakes) {
    with_ranks(2, [&](Communicator& communicator) {
      Ddp ddp = make(communicator, {}, tensors);
      ok(ddp.begin({.loss_terms = 1}));
      if (communicator.rank() == 1) mistake.make(ddp);
      all_ready(ddp);
      const Status status = ddp.finish();
      expect(!status.ok(), std::string("went unnoticed: ") + mistake.message);
      expect(status.message().find(mistake.message) != std::string::npos, status.message());
    });
  }
}

TEST_CASE("ddp bad input: a hook that throws is an error on every rank") {
  struct Throwing : CommunicationHook {
    std::string name() const override { return "throwing"; }
    Work start(Communicator& communicator, const GradientBucket& bucket) override {
      if (bucket.index == 1 && communicator.rank() == 1) throw std::bad_alloc();
      return communicator.all_reduce_async(bucket.data, bucket.data, bucket.count, bucket.type);
    }
    void finish(const GradientBucket& /*bucket*/) override {}
  };
  with_ranks(2, [](Communicator& communicator) {
    DdpOptions options = small_buckets();
    options.hook = std::make_shared<Throwing>();
    Ddp ddp = make(communicator, options);
    ok(ddp.begin({.loss_terms = 1}));
    all_ready(ddp);
    const Status status = ddp.finish();
    expect(
        status.message().find("rank 1 has not enough memory to send bucket 1") != std::string::npos,
        status.to_string());
  });
}

TEST_CASE("ddp bad input: too little memory for one rank ends create() for all") {
  if (kSanitized) return;  // their allocators end the process
  with_ranks(2, [](Communicator& communicator) {
    const Status status = Ddp::create(communicator, {{.name = "huge", .shape = {size_t{1} << 46}}},
                                      {}, {.bucket_cap_mb = 999999})
                              .status();
    expect(status.message().find("not enough memory for parameters") != std::string::npos,
           status.to_string());
    const Status after = communicator.barrier();
    expect(after.message().find("not enough memory for parameters") != std::string::npos,
           after.to_string());
  });
}

TEST_CASE("ddp bad input: a compression hook for a type that is no smaller") {
  for (const DataType wire : {DataType::kFloat32, DataType::kInt32}) {
    const Result<std::shared_ptr<CommunicationHook>> hook = make_compression_hook(wire);
    CHECK(hook.status().code() == Code::kInvalidArgument);
    CHECK(hook.status().message().find(name(wire)) != std::string::npos);
  }
}

TEST_CASE("ddp bad input: a bucket that is gathered twice, or that does not exist") {
  for (const bool twice : {true, false}) {
    with_ranks(2, [&](Communicator& communicator) {
      DdpOptions options = small_buckets();
      options.shard = true;
      Ddp ddp = make(communicator, options);
      ddp.gather_parameters(2);
      if (communicator.rank() == 1) ddp.gather_parameters(twice ? 2 : 3);
      const Status status = ddp.wait_parameters();
      if (communicator.rank() == 0) return;  // its gather may have ended before
      const char* const expected = twice ? "rank 1 gathers bucket 2, which is under way"
                                         : "rank 1 gathers bucket 3, but there are 3";
      expect(status.message().find(expected) != std::string::npos, status.to_string());
    });
  }
}
