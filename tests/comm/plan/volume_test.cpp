// Every algorithm's program against its formula, byte for byte, on every rank.
#include "comm/plan/plan.hpp"
#include "tests/comm/schedule/builtins.hpp"

namespace rondo::plan::test {
namespace {

using schedule::test::builtins;
using schedule::test::says;

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

}  // namespace

TEST_CASE("what every algorithm moves is what its formula says, and every plan is verified") {
  for (const auto& [collective, algorithm] : builtins()) {
    for (const int n : {2, 3, 4, 5, 8}) {
      PlanRequest r = request(collective, algorithm, n, static_cast<uint64_t>(n) * 4096 * 5);
      r.root = is_rooted(collective) ? n - 1 : 0;
      const ExplainedPlan plan = planned(r);
      INFO(name(algorithm) << " " << name(collective) << ", " << n << " ranks");
      CHECK((plan.equal_chunks || collective == Collective::kBarrier));
      CHECK(plan.bytes_match());
      CHECK(plan.right());
      REQUIRE(plan.verification);
      CHECK(plan.verification->verdict.ok());
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
  using schedule::test::consecutive;
  for (const auto& hosts : {consecutive({1, 1}), consecutive({2, 2, 2}), consecutive({1, 3}),
                            consecutive({2, 1, 4}), schedule::test::hosts_of({0, 1, 0, 1})}) {
    const auto n = static_cast<uint64_t>(hosts->ranks());
    for (int c = 0; c < kCollectives; ++c) {
      const auto collective = static_cast<Collective>(c);
      for (const Algorithm algorithm : schedule::test::algorithms_between_hosts(collective)) {
        // Whole cache lines for every division: 2, 3 and 6 chunks, and one of each rank.
        PlanRequest r = request(collective, algorithm, hosts->ranks(), n * 64 * 60);
        r.hosts = hosts;
        r.root = is_rooted(collective) ? hosts->ranks() - 1 : 0;
        const ExplainedPlan plan = planned(r);
        INFO(name(algorithm) << " " << name(collective) << schedule::test::describe(hosts));
        CHECK((plan.equal_chunks || collective == Collective::kBarrier));
        CHECK(plan.right());
        REQUIRE(plan.verification);
        CHECK(plan.verification->verdict.ok());
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
}

TEST_CASE("a host's link that carries something else than its formula says is not called right") {
  PlanRequest r = request(Collective::kAllReduce, Algorithm::kHierarchical, 4, 65536);
  r.hosts = schedule::test::consecutive({2, 2});
  ExplainedPlan plan = planned(r);
  REQUIRE(plan.right());
  CHECK(plan.wire->busiest() == 65536);
  CHECK(plan.wire->text == "2(H-1)/H * S");
  plan.wire->hosts[1].received += 4;
  CHECK_FALSE(plan.right());
  // Chunks that end on cache lines are compared with nothing.
  r.size_bytes = 40000;
  const ExplainedPlan odd = planned(r);
  CHECK_FALSE(odd.equal_chunks);
  CHECK(odd.right());
}

TEST_CASE("an algorithm for several hosts is refused on one, with the reason") {
  const PlanRequest r = request(Collective::kAllReduce, Algorithm::kHierarchical, 4, 64);
  const Status status = make_plan(r).status();
  CHECK(status.code() == Code::kUnavailable);
  CHECK_THAT(status.message(), says("all ranks are on one host"));
}

TEST_CASE("a ring all-reduce sends exactly 2(N-1)/N of the data") {
  for (const uint64_t n : {2, 3, 7, 16, 64}) {
    const uint64_t size = n * 4096;
    const ExplainedPlan plan =
        planned(request(Collective::kAllReduce, Algorithm::kRing, static_cast<int>(n), size));
    for (const RankBytes& b : plan.bytes) {
      CHECK(b.sent == 2 * (n - 1) * size / n);
      CHECK(b.fetched == 0);
      CHECK(b.sent_text == "2(N-1)/N * S");
    }
  }
}

TEST_CASE("a program that moves something else is not called right") {
  ExplainedPlan plan = planned(request(Collective::kAllReduce, Algorithm::kRing, 4, 65536));
  REQUIRE(plan.right());
  plan.bytes[2].sent += 4;
  CHECK_FALSE(plan.right());
}

TEST_CASE("chunks of different lengths are no match and no mistake") {
  const ExplainedPlan plan = planned(request(Collective::kAllReduce, Algorithm::kRing, 3, 40000));
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

TEST_CASE("the choice is the communicator's, and says why") {
  PlanRequest r = request(Collective::kAllReduce, Algorithm::kAuto, 4, 64 << 20);
  ExplainedPlan plan = planned(r);
  CHECK(plan.algorithm == Algorithm::kTwoShotDirect);
  CHECK_THAT(plan.why, says("the cheapest that is possible"));
  r.available.references = false;
  plan = planned(r);
  CHECK(plan.algorithm == Algorithm::kTwoShot);
  for (const tuner::Candidate& c : plan.candidates) {
    const bool direct = algorithms::traits_of(c.algorithm).needs.references;
    CHECK((c.refusal != nullptr) == direct);
  }
  // Library memory is not copied by the kernel, whatever is chosen.
  PlanRequest little = request(Collective::kAllGather, Algorithm::kAuto, 3, 12);
  little.available.process_copy = true;
  for (const tuner::Candidate& c : planned(little).candidates) {
    INFO(name(c.algorithm));
    CHECK(c.price.process_copy_us == 0);
  }
  r.algorithm = Algorithm::kStar;
  plan = planned(r);
  CHECK(plan.algorithm == Algorithm::kStar);
  CHECK_THAT(plan.why, says("asked for; two-shot would be chosen"));
  r.algorithm = Algorithm::kTwoShotDirect;
  CHECK_THAT(planned(r).why,
             says("although it is not possible here: peers' buffers are not mapped"));
}

TEST_CASE("one rank of very many") {
  PlanRequest r = request(Collective::kAllReduce, Algorithm::kRing, 4096, uint64_t{1} << 30);
  r.rank = 4095;
  const ExplainedPlan plan = planned(r);
  REQUIRE(plan.schedules.size() == 1);
  CHECK(plan.schedules[0].rank == 4095);
  CHECK(plan.schedules[0].steps.size() == 2 * 4096 - 1);
  CHECK(plan.bytes[0].sent == 2 * uint64_t{4095} * ((uint64_t{1} << 30) / 4096));
  CHECK(plan.bytes_match());
  CHECK_FALSE(plan.verification);
  CHECK_THAT(plan.not_verified, says("one rank"));
  r.rank.reset();
  CHECK_THAT(planned(r).not_verified, says("4 GiB"));
}

TEST_CASE("rounds that are alike stand for each other, and are counted all the same") {
  const ExplainedPlan plan =
      planned(request(Collective::kAllReduce, Algorithm::kRing, 4, uint64_t{256} << 20));
  REQUIRE(plan.verification);
  const schedule::VerifyReport& report = plan.verification->report;
  CHECK(report.rounds == plan.programs[0].channels[0].rounds);
  CHECK(report.rounds > 100);
  CHECK(report.rounds_carried_out < 5);
  for (const uint64_t sent : report.elements_sent) CHECK(sent * 4 == uint64_t{384} << 20);
  // Where the last round is shorter, and the last chunk too.
  for (const uint64_t more : {uint64_t{4 * 4096}, uint64_t{40000}}) {
    const ExplainedPlan odd =
        planned(request(Collective::kAllReduce, Algorithm::kRing, 4, (uint64_t{16} << 20) + more));
    REQUIRE(odd.verification);
    CHECK(odd.verification->report.rounds_carried_out < odd.verification->report.rounds);
    uint64_t sent = 0;
    for (const uint64_t elements : odd.verification->report.elements_sent) sent += elements * 4;
    CHECK(sent == 6 * ((uint64_t{16} << 20) + more));
    CHECK(odd.right());
  }
}

TEST_CASE("what makes no sense is refused with the value") {
  const auto message = [](const PlanRequest& r) { return make_plan(r).status().message(); };
  PlanRequest r = request(Collective::kBroadcast, Algorithm::kAuto, 4, 64);
  r.root = 4;
  CHECK_THAT(message(r), says("root 4 is not one of 4 ranks"));
  r.root = 0;
  r.rank = 7;
  CHECK_THAT(message(r), says("rank 7 is not one of 4 ranks"));
  r.rank.reset();
  r.algorithm = Algorithm::kTwoShot;
  CHECK_THAT(message(r), says("no broadcast by two-shot"));
  r = request(Collective::kAllReduce, Algorithm::kAuto, 4, 64);
  r.op = ReduceOp::kBxor;
  CHECK_THAT(message(r), says("no bxor of float"));
}

}  // namespace rondo::plan::test
