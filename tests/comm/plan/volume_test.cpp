// Every algorithm's program against its formula, byte for byte, on every rank.
#include "comm/plan/plan.hpp"
#include "tests/comm/schedule/builtins.hpp"

namespace rondo::plan::test {
namespace {

using namespace schedule::test;  // NOLINT(google-build-using-namespace)

PlanRequest request(Collective collective, Algorithm algorithm, int ranks, uint64_t size) {
  PlanRequest r;
  r.collective = collective;
  r.algorithm = algorithm;
  r.ranks = ranks;
  r.size_bytes = size;
  r.available = {.publish = true, .references = true, .signals = true};
  r.links = tuner::shared_memory_profile();
  return r;
}

ExplainedPlan planned(const PlanRequest& r) {
  auto plan = make_plan(r);
  if (!plan.ok()) FAIL(plan.status().to_string());
  return std::move(plan).value();
}

/// Of equal chunks, right and verified.
ExplainedPlan checked(const PlanRequest& r) {
  ExplainedPlan plan = planned(r);
  INFO(name(r.algorithm) << " " << name(r.collective) << ", " << r.ranks << " ranks"
                         << describe(r.hosts));
  CHECK((plan.equal_chunks || r.collective == Collective::kBarrier));
  CHECK(plan.right());
  REQUIRE(plan.verification);
  CHECK(plan.verification->verdict.ok());
  return plan;
}

}  // namespace

TEST_CASE("what every algorithm moves is what its formula says, and every plan is verified") {
  for (const auto& [collective, algorithm] : builtins()) {
    for (const int n : {2, 3, 4, 5, 8}) {
      PlanRequest r = request(collective, algorithm, n, static_cast<uint64_t>(n) * 4096 * 5);
      r.root = internal::is_rooted(collective) ? n - 1 : 0;
      const ExplainedPlan plan = checked(r);
      CHECK(plan.bytes_match());
      if (collective == Collective::kBarrier) continue;
      REQUIRE(plan.bytes.size() == static_cast<size_t>(n));
      for (const RankBytes& b : plan.bytes) {
        CHECK(static_cast<double>(b.sent) == b.formula_sent);
        CHECK(static_cast<double>(b.fetched) == b.formula_fetched);
      }
    }
  }
}

TEST_CASE("between hosts the bytes of ranks and of hosts' links are those of the formulas") {
  for (const auto& hosts : {consecutive({1, 1}), consecutive({2, 2, 2}), consecutive({1, 3}),
                            consecutive({2, 1, 4}), hosts_of({0, 1, 0, 1})}) {
    for (const auto& [collective, algorithm] : builtins_between_hosts()) {
      // Whole cache lines for every division: 2, 3 and 6 chunks, and one of each rank.
      PlanRequest r = request(collective, algorithm, hosts->ranks(),
                              static_cast<uint64_t>(hosts->ranks()) * 64 * 60);
      r.hosts = hosts;
      r.root = internal::is_rooted(collective) ? hosts->ranks() - 1 : 0;
      const ExplainedPlan plan = checked(r);
      if (collective == Collective::kBarrier) continue;
      REQUIRE(plan.wire);
      CHECK(plan.wire->hosts.size() == static_cast<size_t>(hosts->hosts()));
      CHECK(static_cast<double>(plan.wire->busiest()) == Approx(plan.wire->formula));
      uint64_t out = 0, in = 0;
      for (const HostBytes& h : plan.wire->hosts) out += h.sent, in += h.received;
      CHECK(out == in);
    }
  }
}

TEST_CASE("a program, or a host's link, that moves something else is not called right") {
  PlanRequest r = request(Collective::kAllReduce, Algorithm::kRing, 4, 65536);
  ExplainedPlan plan = checked(r);
  plan.bytes[2].sent += 4;
  CHECK_FALSE(plan.right());
  r.algorithm = Algorithm::kHierarchical;
  CHECK_THAT(make_plan(r).status().message(), says("all ranks are on one host"));
  r.hosts = consecutive({2, 2});
  plan = checked(r);
  CHECK(plan.wire->busiest() == 65536);
  CHECK(plan.wire->text == "2(H-1)/H * S");
  plan.wire->hosts[1].received += 4;
  CHECK_FALSE(plan.right());
  // Chunks that end on cache lines are compared with nothing.
  r.size_bytes = 40000;
  plan = planned(r);
  CHECK_FALSE(plan.equal_chunks);
  CHECK(plan.right());
  plan = planned(request(Collective::kAllReduce, Algorithm::kRing, 3, 40000));
  CHECK_FALSE(plan.equal_chunks);
  CHECK(plan.right());
  uint64_t all = 0;
  for (const RankBytes& b : plan.bytes) all += b.sent;
  CHECK(all == 4 * 40000);  // 2(N-1) * S over all ranks, whatever the chunks
}

TEST_CASE("one rank alone, no data, and barriers have plans too") {
  for (const auto& [collective, algorithm] : builtins()) {
    for (const int n : {1, 3}) {
      for (const uint64_t size : {0, 1, 100}) {
        INFO(name(algorithm) << " " << name(collective) << ", " << n << " ranks, " << size);
        CHECK(planned(request(collective, algorithm, n, size)).right());
      }
    }
  }
}

TEST_CASE("library memory is not copied by the kernel, whatever is chosen") {
  PlanRequest r = request(Collective::kAllGather, Algorithm::kAuto, 3, 12);
  r.available.process_copy = true;
  for (const tuner::Candidate& c : planned(r).candidates) {
    INFO(name(c.algorithm));
    CHECK(c.price.process_copy_us == 0);
  }
}

TEST_CASE("rounds that are alike stand for each other, and are counted all the same") {
  // In whole rounds; where the last round is shorter; and where the last chunk is, too.
  for (const uint64_t more : {uint64_t{0}, uint64_t{4 * 4096}, uint64_t{40000}}) {
    const uint64_t size = (uint64_t{64} << 20) + more;
    const ExplainedPlan plan = planned(request(Collective::kAllReduce, Algorithm::kRing, 4, size));
    REQUIRE(plan.verification);
    const schedule::VerifyReport& report = plan.verification->report;
    CHECK(report.rounds == plan.programs[0].channels[0].rounds);
    CHECK(report.rounds > 50);
    CHECK(report.rounds_carried_out < 10);
    uint64_t sent = 0;
    for (const uint64_t elements : report.elements_sent) sent += elements * 4;
    CHECK(sent == 6 * size);
    CHECK(plan.right());
  }
}

}  // namespace rondo::plan::test
