// The cost model against the schedules it prices, against measured times, and the choices that
// follow from it.
#include <cmath>

#include "comm/tuner/choose.hpp"
#include "tests/comm/schedule/builtins.hpp"
#include "tests/comm/schedule/predictions.hpp"

namespace rondo::tuner::test {
namespace {

using schedule::Limits;
using schedule::SharedHosts;
using schedule::test::all_builtins;
using schedule::test::build_on;
using schedule::test::usual_hosts;

constexpr Available kEverything{.publish = true, .references = true, .signals = true};
constexpr Available kPlainMemory{.publish = true, .references = false, .signals = true};
constexpr Available kLinksOnly{};

Algorithm chosen(Collective collective, int ranks, uint64_t bytes, const Available& available,
                 bool in_place = false, const LinkProfile& profile = shared_memory_profile()) {
  return choose(collective, ranks, bytes, available, in_place, profile);
}

/// Out of place, on the memory that the algorithm needs.
double predict_us(Collective collective, Algorithm algorithm, int ranks, uint64_t bytes,
                  const LinkProfile& profile) {
  const SharedHosts hosts = usual_hosts(algorithm, ranks);
  return price(question_of(collective, algorithm, ranks, bytes, hosts), profile).total_us();
}

}  // namespace

TEST_CASE("the terms count what the schedules do") {
  const LinkProfile profile = shared_memory_profile();
  const Limits limits{.element_bytes = 1, .slot_bytes = 64, .depth = 4, .align = 1};
  for (const auto& [collective, algorithm] : all_builtins()) {
    if (collective == Collective::kBarrier || is_varying(collective)) continue;
    for (const int n : {2, 3, 5, 8, 9}) {
      if (n == 5 && schedule::test::needs_hosts(algorithm))
        continue;  // exact for hosts of one size
      const uint64_t count = 40 * static_cast<uint64_t>(n);
      const SharedHosts hosts = usual_hosts(algorithm, n);
      const algorithms::Terms terms =
          terms_of(question_of(collective, algorithm, n, count, hosts), profile);
      double busiest_slots = 0, busiest_reduced = 0;
      for (int r = 0; r < n; ++r) {
        auto s = build_on(hosts, collective, algorithm, n, r, 0);
        REQUIRE(s.ok());
        auto program = schedule::lower(*s, count, limits);
        REQUIRE(program.ok());
        double slots = 0, reduced = 0;
        for (const schedule::Instruction& step : program->instructions) {
          const auto length = static_cast<double>(step.length);
          for (uint32_t o = 0; o < uint32_t{step.sources} + step.destinations; ++o) {
            const schedule::OperandKind place = program->operands[step.first + o].place;
            const bool slot =
                place == schedule::OperandKind::kSlot || place == schedule::OperandKind::kPublished;
            slots += slot ? length : 0;
          }
          if (step.sources > 0) reduced += length * static_cast<double>(step.sources - 1);
        }
        busiest_slots = std::max(busiest_slots, slots);
        busiest_reduced = std::max(busiest_reduced, reduced);
      }
      INFO(name(algorithm) << " " << name(collective) << ", " << n << " ranks");
      // For chains the model adds the way along them.
      const bool chain = collective == Collective::kBroadcast ||
                         collective == Collective::kReduce ||
                         (is_scan(collective) && algorithm == Algorithm::kRing);
      if (!chain) {
        CHECK(terms.slot_bytes == Approx(busiest_slots));
      }
      CHECK(terms.reduced_bytes == Approx(busiest_reduced));
    }
  }
}

TEST_CASE("predictions are finite, positive and grow with size and ranks") {
  for (const LinkProfile& profile :
       {shared_memory_profile(), oversubscribed_profile(), wire_profile(1e9, 20e-6),
        wire_profile(INFINITY, 0), wire_profile(INFINITY, 20e-6)}) {
    for (const auto& [collective, algorithm] : all_builtins()) {
      double last = 0;
      for (uint64_t bytes = 1; bytes <= uint64_t{1} << 40; bytes *= 4) {
        const double us = predict_us(collective, algorithm, 4, bytes, profile);
        INFO(profile.name << " " << name(algorithm) << " " << name(collective) << " " << bytes);
        CHECK(std::isfinite(us));
        CHECK(us >= last);
        // More ranks on a host share the work of its link.
        if (!schedule::test::needs_hosts(algorithm)) {
          CHECK(us <= predict_us(collective, algorithm, 8, bytes, profile));
        }
        last = us;
      }
      CHECK(predict_us(collective, algorithm, 1, 8, profile) <=
            predict_us(collective, algorithm, 2, 8, profile));
    }
  }
}

TEST_CASE(
    "predictions for two ranks are within a factor of two of the measurements the profile comes "
    "from") {
  struct Measured {
    Algorithm algorithm;
    uint64_t bytes;
    double us;
  };
  const auto profile = shared_memory_profile();
  // Two pinned processes on a 2-core Zen 3 VM, fp32 sum out of place.
  for (const Measured& m : {Measured{Algorithm::kOneShot, 8, 0.20},
                            {Algorithm::kOneShot, 2048, 0.36},
                            {Algorithm::kOneShot, 8 << 10, 1.0},
                            {Algorithm::kTwoShot, 32 << 10, 3.0},
                            {Algorithm::kTwoShot, 512 << 10, 44},
                            {Algorithm::kTwoShotDirect, 2048, 0.29},
                            {Algorithm::kTwoShotDirect, 8 << 10, 0.34},
                            {Algorithm::kTwoShotDirect, 32 << 10, 0.92},
                            {Algorithm::kTwoShotDirect, 512 << 10, 15},
                            {Algorithm::kTwoShotDirect, 8 << 20, 370},
                            {Algorithm::kTwoShotDirect, 128 << 20, 17300},
                            // And on a 2-core Zen 4 VM.
                            {Algorithm::kRing, 16 << 10, 3.2},
                            {Algorithm::kRing, 64 << 10, 9.0},
                            {Algorithm::kRing, 256 << 10, 30},
                            {Algorithm::kRing, 1 << 20, 95}}) {
    const double us = predict_us(Collective::kAllReduce, m.algorithm, 2, m.bytes, profile);
    INFO(name(m.algorithm) << " " << m.bytes << ": predicted " << us << ", measured " << m.us);
    CHECK(us < 2 * m.us);
    CHECK(us > m.us / 2);
  }
}

TEST_CASE("the choice follows from the prediction") {
  using A = Algorithm;
  const Collective ar = Collective::kAllReduce;
  for (const int n : {3, 4, 8}) {
    CHECK(chosen(ar, n, 8, kPlainMemory) == A::kOneShot);
    CHECK(chosen(ar, n, 64 << 20, kPlainMemory) == A::kTwoShot);
    CHECK(chosen(ar, n, 8, kEverything) == A::kOneShot);
    CHECK(chosen(ar, n, 64 << 20, kEverything) == A::kTwoShotDirect);
    CHECK(chosen(ar, n, 64 << 20, kEverything, true) == A::kTwoShotDirect);
    CHECK(chosen(ar, n, 8, kLinksOnly) == A::kTwoShot);
  }
  // The same steps as two-shot: the first of equals.
  CHECK(chosen(ar, 2, 64 << 20, kLinksOnly) == A::kRing);
  CHECK(chosen(Collective::kBarrier, 4, 0, kEverything) == A::kFlat);
  CHECK(chosen(Collective::kBarrier, 4, 0, kLinksOnly) == A::kTwoShot);
  CHECK(chosen(Collective::kBroadcast, 4, 64 << 20, kEverything) == A::kOneShotDirect);
  CHECK(chosen(Collective::kBroadcast, 8, 64 << 20, kLinksOnly) == A::kRing);
  CHECK(chosen(Collective::kAllGather, 4, 64 << 20, kEverything) == A::kTwoShotDirect);
  CHECK(chosen(Collective::kReduceScatter, 4, 64 << 20, kEverything) == A::kTwoShotDirect);
}

TEST_CASE("what is not available, or not safe in place, is never chosen, and always something is") {
  for (int mask = 0; mask < 16; ++mask) {
    const Available available{.publish = (mask & 1) != 0,
                              .references = (mask & 2) != 0,
                              .signals = (mask & 4) != 0,
                              .offers = (mask & 8) != 0};
    for (const Collective collective : schedule::test::collectives()) {
      for (uint64_t bytes = 1; bytes < uint64_t{1} << 34; bytes *= 8) {
        for (const bool in_place : {false, true}) {
          if (in_place && collective == Collective::kAllToAllV) continue;  // none can be
          const LinkProfile profile = shared_memory_profile();
          const Algorithm choice = choose(collective, 5, bytes, available, in_place, profile);
          const algorithms::Needs needs = algorithms::traits_of(choice).needs;
          CHECK(algorithms::find(collective, choice) != nullptr);
          CHECK((!needs.publish || available.publish));
          CHECK((!needs.references || available.references));
          CHECK((!needs.signals || available.signals));
          // Of those that ranks decide on together, one that is in place refuses.
          CHECK((!in_place || algorithms::is_in_place_safe(collective, choice) ||
                 (collective == Collective::kAllToAll && needs.references && available.offers)));
          const auto all = candidates(collective, 5, bytes, available, in_place, profile);
          double cheapest = INFINITY, chosen_us = 0;
          for (const Candidate& candidate : all) {
            if (candidate.refusal == nullptr)
              cheapest = std::min(cheapest, candidate.price.total_us());
            if (candidate.algorithm == choice) chosen_us = candidate.price.total_us();
          }
          CHECK(chosen_us == cheapest);
        }
      }
    }
  }
}

TEST_CASE("a wire's slots hold what is in flight") {
  const LinkProfile slow = wire_profile(1e9, 20e-6);
  CHECK(0.5 * static_cast<double>(slow.slot_bytes * slow.slots) >= 1e9 * 20e-6);
  CHECK(wire_profile(100e9, 1).slot_bytes <= size_t{1} << 20);
  // 1 GB/s, 20 us, 4 ranks, 4 MB by ring: 6 hops of latency and 1.5 * 4 MB on the wire.
  const double us = predict_us(Collective::kAllReduce, Algorithm::kRing, 4, 4'000'000, slow);
  CHECK(us > 6 * 20 + 6000);
  CHECK(us < 1.2 * (6 * 20 + 6000));  // what passes over it is copied, too
}

TEST_CASE("ranks that share cores wait for a turn at every message of a wire") {
  // Two-shot between 4 ranks: 2 hops, and in each 2 peers more.
  const LinkProfile wire = wire_profile(1e9, 20e-6), shared = taking_turns(wire);
  const auto us = [](Algorithm algorithm, const LinkProfile& profile) {
    return predict_us(Collective::kAllReduce, algorithm, 4, 512, profile);
  };
  CHECK(us(Algorithm::kTwoShot, wire) < 45);
  CHECK(us(Algorithm::kTwoShot, shared) == Approx(us(Algorithm::kTwoShot, wire) + 6 * 40));
  CHECK(us(Algorithm::kRing, shared) == Approx(us(Algorithm::kRing, wire) + 6 * 40));
  CHECK(shared.slot_us_per_byte == wire.slot_us_per_byte);
}

TEST_CASE("slots shrink where many links would take too much memory, and only there") {
  for (const LinkProfile& profile :
       {shared_memory_profile(), oversubscribed_profile(), wire_profile(10e9, 500e-6)}) {
    INFO(profile.name);
    CHECK(fit_to_memory(profile, 2, 1).slot_bytes == profile.slot_bytes);
    for (const int ranks : {1, 2, 8, 9, 64, 300}) {
      for (const int channels : {1, 4}) {
        const LinkProfile fitted = fit_to_memory(profile, ranks, channels);
        const size_t slots =
            (static_cast<size_t>(ranks) + 1) * static_cast<size_t>(channels) * fitted.slots;
        CHECK((slots * fitted.slot_bytes <= size_t{12} << 20 || fitted.slot_bytes == 4096));
        // Not smaller than it has to be.
        CHECK((fitted.slot_bytes == profile.slot_bytes ||
               slots * fitted.slot_bytes * 2 > size_t{12} << 20));
        CHECK(fitted.slots == profile.slots);
      }
    }
  }
}

}  // namespace rondo::tuner::test
