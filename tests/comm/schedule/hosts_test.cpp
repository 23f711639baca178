// Schedules of ranks on several hosts: every algorithm that works between hosts, on every map below,
// is proved, and moves the bytes of its formulas, also those that cross the wire.
#include "tests/comm/schedule/builtins.hpp"
#include "tests/comm/schedule/executor.hpp"

namespace rondo::schedule::test {
namespace {

/// Hosts of one size and of several, consecutive ranks and others.
std::vector<SharedHosts> maps() {
  std::vector<SharedHosts> all;
  for (const std::vector<int>& ranks_on : {std::vector{1, 1},
                                           {1, 3},
                                           {3, 1},
                                           {2, 2},
                                           {2, 2, 2},
                                           {3, 3},
                                           {4, 1},
                                           {2, 1, 4},
                                           {1, 5},
                                           {1, 1, 1, 1, 1},
                                           {4, 4, 4},
                                           {1, 2, 3},
                                           {3, 2, 1},
                                           {2, 5, 3, 1}}) {
    all.push_back(consecutive(ranks_on));
  }
  for (const std::vector<int>& labels : {std::vector{0, 1, 0, 1},
                                         {0, 1, 0, 1, 0, 1},
                                         {0, 1, 2, 0, 1, 2, 0},
                                         {0, 1, 1, 0, 0, 1, 2}}) {
    all.push_back(hosts_of(labels));
  }
  // For the stages of recursive multiplying: two of them, and hosts that are left over.
  if (!kSanitized) {
    for (const int hosts : {9, 11, 13}) {
      all.push_back(
          std::make_shared<const base::HostMap>(base::HostMap::equal(hosts, hosts == 9 ? 2 : 1)));
    }
  }
  return all;
}

/// Calls f(collective, algorithm, hosts) for these built-ins on all maps.
template <class F>
void for_all(const std::vector<Builtin>& builtins, F f) {
  for (const SharedHosts& hosts : maps()) {
    for (const auto& [collective, algorithm] : builtins) f(collective, algorithm, hosts);
  }
}

OperationShape shape_on(const SharedHosts& hosts, Collective collective, Algorithm algorithm,
                        uint64_t count) {
  OperationShape shape = shape_of({collective, algorithm}, hosts->ranks(), count);
  shape.hosts = hosts;
  return shape;
}

/// The rank with the last number on the host with the most ranks: on no rail where hosts differ.
int some_root(const base::HostMap& hosts) {
  int root = 0;
  for (int r = 0; r < hosts.ranks(); ++r) {
    if (hosts.local_rank(r) > hosts.local_rank(root)) root = r;
  }
  return root;
}

}  // namespace

TEST_CASE(
    "everything that works between hosts is proved, with the least depth and several rounds") {
  for_all(builtins_between_hosts(),
          [](Collective collective, Algorithm algorithm, const SharedHosts& hosts) {
            const auto n = static_cast<uint64_t>(hosts->ranks());
            const uint64_t per_rank = collective == Collective::kAllReduce ? n : 1;
            for (const uint32_t depth : {least_depth(collective, algorithm), 4u}) {
              for (const int channels : {1, 2}) {
                for (const uint64_t count : {uint64_t{0}, uint64_t{1}, n + 1, 150 * per_rank + 1}) {
                  for (const bool in_place : {false, true}) {
                    OperationShape shape = shape_on(hosts, collective, algorithm, count);
                    shape.in_place = in_place;
                    prove(shape, tiny(depth, channels));
                    if (!internal::is_rooted(collective)) continue;
                    shape.root = some_root(*hosts);
                    prove(shape, tiny(depth, channels));
                  }
                }
              }
            }
          });
}

TEST_CASE("every root of several hosts is proved") {
  for_all(hierarchical_builtins(),
          [](Collective collective, Algorithm algorithm, const SharedHosts& hosts) {
            OperationShape shape = shape_on(hosts, collective, algorithm, 200);
            for (shape.root = 0; internal::is_rooted(collective) && shape.root < hosts->ranks();
                 ++shape.root) {
              shape.in_place = false;
              prove(shape, tiny(least_depth(collective, algorithm)));
              shape.in_place = true;
              prove(shape, tiny(4));
            }
          });
}

TEST_CASE("the reference executor agrees, on every map") {
  Limits limits = tiny(4);
  limits.slot_bytes = 32;
  for_all(hierarchical_builtins(),
          [&](Collective collective, Algorithm algorithm, const SharedHosts& hosts) {
            for (const bool in_place : {false, true}) {
              if (in_place && !algorithms::is_in_place_safe(collective, algorithm)) continue;
              OperationShape shape = shape_on(hosts, collective, algorithm, 67);
              shape.root = internal::is_rooted(collective) ? some_root(*hosts) : 0;
              shape.in_place = in_place;
              INFO(describe(shape, limits));
              const LoweredOperation op = operation(shape, limits);
              for (const uint64_t seed : {0, 1, 2}) CHECK(execute(op, limits, seed) == "");
            }
          });
}

TEST_CASE(
    "a hierarchical all-reduce sends 2(H-1)/H of the data from every host, and no byte more") {
  for (const SharedHosts& hosts : maps()) {
    const auto h = static_cast<uint64_t>(hosts->hosts()), n = static_cast<uint64_t>(hosts->ranks());
    uint64_t rails = n;
    for (int host = 0; host < hosts->hosts(); ++host) {
      rails = std::min<uint64_t>(rails, hosts->ranks_on(host).size());
    }
    const uint64_t count = h * rails * 120;
    const Limits limits = tiny(4);
    const LoweredOperation op =
        operation(shape_on(hosts, Collective::kAllReduce, Algorithm::kHierarchical, count), limits);
    const VerifyReport report = report_of(op, limits);
    INFO(describe(hosts));
    REQUIRE(report.crossings.size() == h);
    for (const Crossing& crossing : report.crossings) {
      CHECK(crossing.elements_out * h == 2 * (h - 1) * count);
      CHECK(crossing.elements_in * h == 2 * (h - 1) * count);
    }
    if (h * rails != n) continue;
    for (const uint64_t sent : report.elements_sent) CHECK(sent * n == 2 * (n - 1) * count);
  }
}

TEST_CASE("what ranks send is what their formulas say, and what crosses hosts what theirs say") {
  for_all(builtins_between_hosts(), [](Collective collective, Algorithm algorithm,
                                       const SharedHosts& hosts) {
    const algorithms::CollectiveTraits& row = *algorithms::find(collective, algorithm);
    if (collective == Collective::kBarrier || is_varying(collective)) return;
    const auto n = static_cast<uint64_t>(hosts->ranks());
    const uint64_t count = 5040 * n;  // whatever it is divided by
    Limits limits = tiny(4);
    limits.align = 1;
    OperationShape shape = shape_on(hosts, collective, algorithm, count);
    for (const int root : {0, internal::is_rooted(collective) ? some_root(*hosts) : 0}) {
      shape.root = root;
      INFO(describe(shape, limits));
      const LoweredOperation op = operation(shape, limits);
      const VerifyReport report = report_of(op, limits);
      std::vector<Crossing> crossings(report.crossings.size());
      const internal::Form form = internal::form_of(collective);
      const auto size = static_cast<double>(
          std::max(internal::elements(form.in, count, n), internal::elements(form.out, count, n)));
      for (int r = 0; r < hosts->ranks(); ++r) {
        const auto at = static_cast<size_t>(r);
        INFO("rank " << r);
        CHECK(report.elements_sent[at] == traffic_of(op.programs[at], shape.ranks).elements_sent);
        CHECK(static_cast<double>(report.elements_sent[at]) ==
              algorithms::volume_of(collective, algorithm, *hosts, r, root).sent.bytes(size, n));
        add_crossings(op.programs[at], r, *hosts, crossings);
      }
      CHECK(crossings == report.crossings);
      uint64_t most = 0, most_both = 0;
      for (const Crossing& c : crossings) {
        most = std::max({most, c.elements_out, c.elements_in});
        most_both = std::max(most_both, c.elements_out + c.elements_in);
      }
      const algorithms::WireTerms wire = row.wire({.p = static_cast<double>(n),
                                                   .n = static_cast<double>(count),
                                                   .slot = 64,
                                                   .on = algorithms::spread_of(*hosts, root)});
      CHECK(wire.bytes == Approx(static_cast<double>(most)));
      CHECK(wire.both_bytes == Approx(static_cast<double>(most_both)));
    }
  });
}

TEST_CASE("ranks of two hosts share no memory: the verifier refuses schedules that say so") {
  const SharedHosts hosts = consecutive({2, 1});
  const auto refused = [&](Collective collective, Algorithm algorithm) {
    const auto status = algorithms::build(collective, algorithm, hosts, 0, 0).status();
    CHECK(status.code() == Code::kUnavailable);
    CHECK_THAT(status.message(), says("ranks on several hosts share no memory"));
    OperationShape shape = shape_on(hosts, collective, algorithm, 60);
    shape.hosts = nullptr;
    LoweredOperation op = operation(shape, tiny(4));
    CHECK(verdict({op}, tiny(4)).ok());
    op.hosts = hosts;
    return verdict({op}, tiny(4)).message();
  };
  CHECK_THAT(refused(Collective::kAllReduce, Algorithm::kOneShot),
             says("reaches into memory of rank 2, which is on another host"));
  CHECK_THAT(refused(Collective::kAllReduce, Algorithm::kTwoShotDirect), says("on another host"));
  CHECK_THAT(refused(Collective::kBarrier, Algorithm::kFlat),
             says("waits for the counter of rank 2, which is on another host"));
}

TEST_CASE("operations of one sequence are between the same hosts, which have all ranks") {
  const OperationShape ring =
      shape_on(consecutive({2, 1}), Collective::kAllReduce, Algorithm::kRing, 60);
  LoweredOperation one = operation(ring, tiny(4)), other = one;
  CHECK(verdict({one, other}, tiny(4)).ok());
  other.hosts = consecutive({1, 2});
  CHECK_THAT(verdict({one, other}, tiny(4)).message(), says("other hosts than in operation 0"));
  other.hosts = nullptr;
  CHECK_THAT(verdict({one, other}, tiny(4)).message(), says("other hosts than in operation 0"));
  one.hosts = consecutive({2, 2});
  CHECK_THAT(verdict({one}, tiny(4)).message(), says("hosts of 4 ranks for programs of 3"));
}

}  // namespace rondo::schedule::test
