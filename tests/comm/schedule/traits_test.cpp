// Every row of traits against the schedules that it describes. (Its terms and its volume: tuner_test
// and volume_test; its order of folding: builtins_test.)
#include <set>

#include "tests/comm/schedule/builtins.hpp"

namespace rondo::schedule::test {
namespace {

using algorithms::AlgorithmTraits;
using algorithms::CollectiveTraits;

/// What the schedules of all ranks touch.
struct Found {
  bool slots = false, publish = false, references = false, signals = false;
  std::set<int> touched_in, touched_out;    // ranks whose buffers peers touch
  std::set<std::pair<int, int>> published;  // [to, from]
};

void look_at(const Schedule& s, Found& found) {
  for (const Step& step : s.steps) {
    found.signals |= step.action == Action::kSignal;
    for (const auto* operands : {&step.sources, &step.destinations}) {
      for (const Operand& o : *operands) {
        found.slots |= o.place == OperandKind::kSlot || o.place == OperandKind::kPublished;
        found.publish |= o.place == OperandKind::kPublished;
        found.references |= o.place == OperandKind::kPeerIn || o.place == OperandKind::kPeerOut;
        if (o.place == OperandKind::kPeerIn) found.touched_in.insert(o.peer);
        if (o.place == OperandKind::kPeerOut) found.touched_out.insert(o.peer);
      }
    }
    for (const Operand& o : step.sources) {
      if (o.place == OperandKind::kPublished) found.published.emplace(s.rank, o.peer);
    }
  }
}

Found found_in(Collective collective, Algorithm algorithm, int ranks, int root) {
  Found found;
  for (int r = 0; r < ranks; ++r) {
    const Result<Schedule> s =
        build_on(usual_hosts(algorithm, ranks), collective, algorithm, ranks, r, root);
    REQUIRE(s.ok());
    look_at(s.value(), found);
  }
  return found;
}

}  // namespace

TEST_CASE("every algorithm of the public enumeration has one row, in its order") {
  const auto all = algorithms::all();
  REQUIRE(all.size() == kAlgorithms - 1);
  for (size_t i = 0; i < all.size(); ++i) {
    CHECK(static_cast<size_t>(all[i]->algorithm) == i + 1);
    CHECK(&algorithms::traits_of(all[i]->algorithm) == all[i]);
    CHECK_FALSE(all[i]->collectives.empty());
    std::set<Collective> once;
    for (const CollectiveTraits& c : all[i]->collectives) {
      CHECK(once.insert(c.collective).second);
      CHECK_FALSE(is_varying(c.collective));
    }
  }
  for (const auto none : {Algorithm::kAuto, static_cast<Algorithm>(kAlgorithms)}) {
    CHECK(algorithms::find(Collective::kAllReduce, none) == nullptr);
    CHECK_FALSE(algorithms::is_in_place_safe(Collective::kAllReduce, none));
    CHECK_FALSE(algorithms::may_go_by_ll(Collective::kAllReduce, none));
    CHECK(algorithms::build(Collective::kAllReduce, none, 3, 0, 0).status().code() ==
          Code::kUnavailable);
  }
}

TEST_CASE("a row's needs, and the buffers that peers touch, are what its schedules have") {
  std::set<Algorithm> publishing;
  for (const auto& [collective, algorithm] : all_builtins()) {
    const AlgorithmTraits& traits = algorithms::traits_of(algorithm);
    const CollectiveTraits& row = *algorithms::find(collective, algorithm);
    for (const int n : {2, 3, 5, 8}) {
      for (const int root : {0, internal::is_rooted(collective) ? n - 1 : 0}) {
        INFO(name(algorithm) << " " << name(collective) << ", " << n << " ranks, root " << root);
        const Found found = found_in(collective, algorithm, n, root);
        CHECK(found.publish == traits.needs.publish);
        CHECK(found.references == traits.needs.references);
        CHECK(found.signals == traits.needs.signals);
        CHECK(found.slots == !found.signals);  // lower() relies on it
        for (int r = 0; r < n; ++r) {
          CHECK(found.touched_in.contains(r) == algorithms::is_touched(row.in, r, root));
          CHECK(found.touched_out.contains(r) == algorithms::is_touched(row.out, r, root));
        }
        if (algorithms::may_go_by_ll(collective, algorithm)) {
          CHECK(found.published.size() == static_cast<size_t>(n) * static_cast<size_t>(n - 1));
        }
      }
    }
  }
}

TEST_CASE("the hierarchical algorithms need several hosts, and no other does") {
  for (int a = 0; a < kAlgorithms; ++a) {
    const auto algorithm = static_cast<Algorithm>(a);
    const bool hierarchical =
        algorithm == Algorithm::kHierarchical || algorithm == Algorithm::kHierarchicalTree;
    INFO(name(algorithm));
    CHECK(needs_hosts(algorithm) == hierarchical);
  }
}

TEST_CASE("a row's depth is the smallest, and what it calls unsafe in place is") {
  for (const auto& [collective, algorithm] : all_builtins()) {
    INFO(name(algorithm) << " " << name(collective));
    const CollectiveTraits& row = *algorithms::find(collective, algorithm);
    // Three hosts of two: with two of them less would do.
    const int ranks = needs_hosts(algorithm) ? 6 : 4;
    OperationShape shape = shape_of({collective, algorithm}, ranks, 96);
    const Limits limits = tiny(row.least_depth);
    const LoweredOperation op = operation(shape, limits);
    if (row.least_depth > 1) CHECK_FALSE(verdict({op}, tiny(row.least_depth - 1)).ok());
    shape.in_place = true;
    if (!row.in_place && !is_varying(collective)) {
      CHECK_FALSE(verdict({operation(shape, limits)}, limits).ok());
    }
  }
}

}  // namespace rondo::schedule::test
