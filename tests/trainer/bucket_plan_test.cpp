// Where flat gradients are cut into buckets: against every way to cut them, and what the cost of an
// all-reduce is taken to be.
#include "trainer/ddp/bucket_plan.hpp"

#include <algorithm>
#include <random>

#include "tests/trainer/ddp_rig.hpp"
#include "trainer/ddp/layout.hpp"

using namespace rondo;
using namespace rondo::ddp;

namespace {

/// A cost of 100 for each all-reduce and 1 for each element.
int64_t plain_cost(size_t elements) { return 100 + static_cast<int64_t>(elements); }

/// Units of 100 elements, final at these times.
BucketModel hundreds(const std::vector<int64_t>& ready, int64_t backward_ns) {
  BucketModel model{.units = {}, .backward_ns = backward_ns, .cost_ns = plain_cost};
  for (const int64_t ns : ready) {
    model.units.push_back({.end = 100 * (model.units.size() + 1), .ready_ns = ns, .update_ns = 0});
  }
  return model;
}

/// Written anew from the header's formula.
int64_t exposed_by_hand(const BucketModel& model, const std::vector<size_t>& ends) {
  int64_t updates = 0;
  for (const BucketUnit& unit : model.units) updates += unit.update_ns;
  const int64_t least = model.backward_ns + updates;
  int64_t finish = 0, ready = 0, end_ns = least;
  size_t u = 0, begin = 0;
  for (const size_t end : ends) {
    int64_t updated = 0, cost = model.cost_ns(end - begin);
    for (; u < model.units.size() && model.units[u].end <= end; ++u) {
      ready = std::max(ready, model.units[u].ready_ns);
      updated += model.units[u].update_ns;
      if (model.units[u].alone_ns >= 0) cost = model.units[u].alone_ns;
    }
    finish = std::max(ready, finish) + cost;
    end_ns = std::max(end_ns, finish + updates);
    updates -= updated;
    begin = end;
  }
  return end_ns - least;
}

/// Calls `visit` with every way to cut the units that leaves those alone that must be.
template <class Visit>
void every_cut(const BucketModel& model, const Visit& visit) {
  const size_t n = model.units.size();
  const auto alone = [&](size_t u) { return model.units[u].alone_ns >= 0; };
  for (size_t cuts = 0; cuts < size_t{1} << (n - 1); ++cuts) {
    std::vector<size_t> ends;
    bool possible = true;
    for (size_t u = 0; u < n; ++u) {
      const bool ends_here = u + 1 == n || (cuts >> u & 1) != 0;
      if (ends_here) ends.push_back(model.units[u].end);
      if (!ends_here && (alone(u) || alone(u + 1))) possible = false;
    }
    if (possible) visit(ends);
  }
}

}  // namespace

TEST_CASE(
    "bucket plan: one bucket where all is final at once, one more where that starts earlier") {
  const BucketPlan at_once = cut_buckets(hundreds({0, 0, 0, 0}, 0));
  CHECK(at_once.ends == std::vector<size_t>{400});
  CHECK(at_once.exposed_ns == 500);
  // Three are final long before the last: they travel in that time, as one bucket.
  const BucketPlan hidden = cut_buckets(hundreds({0, 0, 0, 1000}, 1000));
  CHECK(hidden.ends == std::vector<size_t>{300, 400});
  CHECK(hidden.exposed_ns == 200);
}

TEST_CASE("bucket plan: of buckets that expose the same the fewest") {
  // Whether the first two travel together or apart, both have ended before the third is final.
  const BucketPlan plan = cut_buckets(hundreds({0, 100, 5000}, 5000));
  CHECK(plan.ends == std::vector<size_t>{200, 300});
  // 1 % of what is exposed, or 0.5 % of backward, is not worth another bucket.
  BucketModel model = hundreds({0, 80, 80}, 80);
  model.cost_ns = [](size_t elements) { return static_cast<int64_t>(elements) * 100; };
  CHECK(cut_buckets(model).ends == std::vector<size_t>{300});  // 30000 exposed, or 29920
  model.units[1].ready_ns = model.units[2].ready_ns = model.backward_ns = 800;
  CHECK(cut_buckets(model).ends == std::vector<size_t>{100, 300});  // 30000, or 29200
}

TEST_CASE("bucket plan: the least that is possible, against every way to cut") {
  std::mt19937 random(1);
  const auto below = [&](int64_t limit) {
    return static_cast<int64_t>(random() % static_cast<uint32_t>(limit));
  };
  for (int round = 0; round < 300; ++round) {
    BucketModel model{.units = {}, .backward_ns = 0, .cost_ns = {}};
    const int64_t latency = below(400), per_element = 1 + below(3);
    model.cost_ns = [=](size_t elements) {
      return latency + per_element * static_cast<int64_t>(elements);
    };
    const auto units = static_cast<size_t>(1 + below(9));
    size_t end = 0;
    for (size_t u = 0; u < units; ++u) {
      end += static_cast<size_t>(1 + below(500));
      // Not in order: a later unit may be final first.
      model.units.push_back({.end = end,
                             .ready_ns = below(1500),
                             .update_ns = round % 2 == 0 ? 0 : below(300),
                             .alone_ns = round % 3 == 0 && u + 1 == units ? below(500) : -1});
      model.backward_ns = std::max(model.backward_ns, model.units.back().ready_ns);
    }
    int64_t least = INT64_MAX;
    every_cut(model, [&](const std::vector<size_t>& ends) {
      const int64_t exposed = exposed_by_hand(model, ends);
      REQUIRE(exposed_ns(model, ends) == exposed);
      least = std::min(least, exposed);
    });
    const int64_t most = least + noticeable_ns(model, least);
    size_t fewest = units;
    int64_t best_of_fewest = INT64_MAX;
    every_cut(model, [&](const std::vector<size_t>& ends) {
      const int64_t exposed = exposed_by_hand(model, ends);
      if (exposed > most || ends.size() > fewest) return;
      if (ends.size() < fewest) best_of_fewest = INT64_MAX;
      fewest = ends.size();
      best_of_fewest = std::min(best_of_fewest, exposed);
    });
    INFO("round " << round);
    const BucketPlan plan = cut_buckets(model);
    CHECK(plan.ends.size() == fewest);
    CHECK(plan.exposed_ns == best_of_fewest);
    CHECK(exposed_by_hand(model, plan.ends) == plan.exposed_ns);
  }
}

TEST_CASE("bucket plan: a model of many tensors is cut in time") {
  BucketModel model = hundreds(std::vector<int64_t>(256), 256 * 90);
  for (size_t u = 0; u < 256; ++u) {
    model.units[u].ready_ns = static_cast<int64_t>(u) * 90;
    model.units[u].update_ns = static_cast<int64_t>(u % 7);
  }
  CHECK(cut_buckets(model).ends.size() <= kMostBuckets);
}

TEST_CASE("bucket plan: costs are linear between predictions, and follow what was measured") {
  CostCurve curve({{100, 50}, {200, 100}, {400, 300}});
  CHECK(curve(10) == 50);
  CHECK(curve(150) == 75);
  CHECK(curve(300) == 200);
  CHECK(curve(800) == 600);
  curve.correct({});
  CHECK(curve(300) == 200);
  curve.correct({{200, 400}, {400, 600}});  // 300 more for each
  CHECK(curve(300) == 500);
  curve.correct({{200, 400}});  // of one size: 4 times as much
  CHECK(curve(300) == 800);
  curve.correct({{100, 500}, {400, 300}});  // no line that rises: all of it as a ratio
  CHECK(curve(100) == 114);
  curve.correct({{100, 10}, {400, 1000}});  // nor one that begins below nothing
  CHECK(curve(400) == 866);
}

TEST_CASE("bucket layout: from ends, back to the same layout, and what cannot be is refused") {
  const std::vector<DdpTensor> tensors = {{.name = "matrix", .shape = {10, 24}},
                                          {.name = "odd", .shape = {7}},
                                          {.name = "vector", .shape = {32}},
                                          {.name = "more", .shape = {10, 24}, .adds_to = 0}};
  for (const size_t bytes : {size_t{0}, size_t{100}, size_t{300}, size_t{100000}}) {
    const BucketLayout layout = make_layout(tensors, 4, {.bytes = bytes, .small_bytes = bytes / 3});
    const auto again = layout_with_ends(tensors, 4, ends_of(layout));
    REQUIRE(again);
    CHECK(again->offsets == layout.offsets);
    CHECK(again->parameter_elements == layout.parameter_elements);
    CHECK(again->gradient_elements == layout.gradient_elements);
    CHECK(testing::show(again->buckets) == testing::show(layout.buckets));
    for (size_t b = 0; b < layout.buckets.size(); ++b) {
      CHECK(again->buckets[b].offset == layout.buckets[b].offset);
      CHECK(again->buckets[b].count == layout.buckets[b].count);
    }
  }
  // 240 elements, 7 and 9 of padding, 32; then 240 that travel alone.
  CHECK(layout_with_ends(tensors, 4, std::vector<size_t>{288, 528}));
  CHECK(layout_with_ends(tensors, 4, std::vector<size_t>{24, 256, 288, 528}));
  using Ends = std::vector<size_t>;
  for (const Ends& ends :
       {Ends{}, Ends{528}, Ends{288}, Ends{288, 400, 528}, Ends{288, 288, 528}, Ends{250, 288, 528},
        Ends{100, 256, 288, 528}, Ends{288, 528, 600}, Ends{288, 256, 528}}) {
    CHECK_FALSE(layout_with_ends(tensors, 4, ends));
  }
}
