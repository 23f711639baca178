// kDdpAutoCap in the memory of a GPU (a stand-in for one). Bits are ddp_device_test.cpp's; here: that
// all ranks change, when, and what stays.
#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>

#include "tests/trainer/ddp_device_rig.hpp"
#include "tests/trainer/link_profile.hpp"

using namespace rondo;
using namespace rondo::testing;

namespace {

Ddp make_automatic(DdpRank& self, const Tensors& tensors = mebibytes(3)) {
  return make(self, {.bucket_cap_mb = kDdpAutoCap, .auto_after_steps = 2, .overlap = false},
              tensors);
}

void step(DdpRank& self, Ddp& ddp, int number) {
  ok(ddp.begin({.loss_terms = 1}));
  for (size_t t = 0; t < ddp.tensors().size(); ++t) {
    self.compute([data = ddp.gradient<float>(t), count = ddp.tensors()[t].count(),
                  value = static_cast<float>(self.ranks.rank() + number)] {
      std::fill_n(data, count, value);
    });
    ddp.gradient_ready(t);
  }
  ok(ddp.finish());
}

/// When the compute stream gets there.
void expect_mean(DdpRank& self, Ddp& ddp, int number) {
  const float mean = static_cast<float>(self.ranks.size() - 1) / 2 + static_cast<float>(number);
  for (size_t t = 0; t < ddp.tensors().size(); ++t) {
    self.compute([data = ddp.gradient<float>(t), last = ddp.tensors()[t].count() - 1, mean] {
      for (const size_t i : {size_t{0}, last / 2, last}) expect_eq(data[i], mean, "the mean");
    });
  }
}

}  // namespace

TEST_CASE("ddp device auto: after the stated step the layout is another one, on all ranks alike") {
  const TempDirectory folder;
  // Every transfer is predicted to take the same: where nothing is hidden, one bucket is best.
  const std::string links = write_links(folder.path() + "/links.json", {{"overhead_us", 1000}});
  for (const int ranks : {1, 3}) {
    const auto gpu = std::make_shared<FakeGpu>();
    std::mutex mutex;
    std::vector<std::vector<size_t>> layouts;
    on_gpu(
        gpu, ranks,
        [&](DdpRank& self) {
          Ddp ddp = make_automatic(self);
          const void* const gradients = ddp.gradients();
          const std::vector<size_t> before = ends_of(ddp);
          expect_eq(before.size(), size_t{3}, "buckets at first");
          for (int number = 0; number < 4; ++number) {
            step(self, ddp, number);
            expect_mean(self, ddp, number);
            const bool after = ranks > 1 && number >= 2;
            expect_eq(ddp.relayout().after_steps, after ? uint64_t{2} : uint64_t{0}, "after steps");
            expect_eq(ddp.layout().size(), after ? size_t{1} : size_t{3}, "buckets");
          }
          expect(ddp.gradients() == gradients, "gradients have moved");
          if (ranks > 1) {
            expect(ddp.relayout().exposed_ms < ddp.relayout().exposed_before_ms, "nothing gained");
          }
          ok(ddp.set_bucket_ends(before));
          step(self, ddp, 7);
          expect_mean(self, ddp, 7);
          const std::lock_guard lock(mutex);
          layouts.push_back(ends_of(ddp));
        },
        true, links);
    for (const auto& layout : layouts) CHECK(layout == layouts[0]);
    CHECK(gpu->alive() == 0);
  }
}

TEST_CASE("ddp device auto: buckets are settled before the stated step") {
  on_gpu(std::make_shared<FakeGpu>(), 3, [&](DdpRank& self) {
    Ddp ddp = make_automatic(self);
    ok(ddp.settle_buckets());  // no step was made: nothing to go by
    expect(ddp.relayout().pending, "laid out by nothing");
    step(self, ddp, 0);
    ok(ddp.settle_buckets());
    expect_eq(ddp.relayout().after_steps, uint64_t{1}, "after steps");
    const std::vector<size_t> ends = ends_of(ddp);
    for (int number = 1; number < 4; ++number) step(self, ddp, number);
    expect_mean(self, ddp, 3);
    expect(ends_of(ddp) == ends, "laid out again");
  });
}

TEST_CASE("ddp device auto: a captured step is none that was made") {
  const auto gpu = std::make_shared<FakeGpu>();
  on_gpu(gpu, 2, [&](DdpRank& self) {
    Ddp ddp = make_automatic(self);
    ok(ddp.begin({.loss_terms = 1}));
    ok(ddp.headers().status());
    ok(gpu->begin_capture(self.stream));
    all_ready(ddp);
    ok(ddp.finish());
    const auto graph = gpu->end_capture(self.stream);
    ok(graph.status());
    ok(ddp.replayed());  // without the graph, which would hold up nobody
    ok(ddp.settle_buckets());
    expect(ddp.relayout().pending, "laid out by nothing");
    for (int number = 0; number < 3; ++number) step(self, ddp, number);
    expect_eq(ddp.relayout().after_steps, uint64_t{2}, "after steps");
    ok(gpu->destroy_graph(*graph));
  });
}

TEST_CASE("ddp device auto: a call that fails while times are read ends the run on all ranks") {
  int ended = 0;
  for (int k = 0; ended < 3; ++k) {  // most calls only look at the thread's device and mode
    REQUIRE(k < 200);
    const auto gpu = std::make_shared<FakeGpu>();
    std::atomic<int> failed{0};
    on_gpu(gpu, 2, [&](DdpRank& self) {
      Ddp ddp = make_automatic(self, five());
      step(self, ddp, 0);
      gpu->drain(self.stream);
      ok(self.host->barrier());
      if (self.ranks.rank() == 0) gpu->fail_at = gpu->calls + k;
      try {
        ok(self.host->barrier());  // which another rank's failure may overtake
        ok(ddp.settle_buckets());
        step(self, ddp, 1);                    // where one rank had its buckets already
      } catch (const std::exception& error) {  // of ok()
        const std::string what = error.what();
        expect(what.find("told to fail") != std::string::npos, what);
        // What communicators find by themselves they raise as it is.
        const size_t aborted = what.find("aborted: ");
        expect(aborted == std::string::npos || what.find(" on GPU ", aborted) != std::string::npos,
               what);
        ++failed;
      }
      gpu->drain(self.stream);
      gpu->fail_at = -1;
    });
    INFO("call " << k);
    CHECK(failed != 1);
    ended += failed == 2 ? 1 : 0;
    CHECK(gpu->alive() == 0);
  }
}
