// The cost model and the choice for ranks on several hosts: the wire's terms against the schedules,
// which algorithm is chosen where, and that one host is as if there were no others.
#include <cmath>

#include "comm/tuner/choose.hpp"
#include "tests/comm/schedule/builtins.hpp"
#include "tests/comm/schedule/carry_out.hpp"
#include "tests/comm/schedule/predictions.hpp"

namespace rondo::tuner::test {
namespace {

using namespace schedule::test;  // NOLINT(google-build-using-namespace)
using schedule::Schedule;
using schedule::SharedHosts;
using A = Algorithm;

constexpr Available kWireOnly{.offers = true};

Algorithm chosen_on(const SharedHosts& hosts, Collective collective, uint64_t bytes,
                    Available available = kWireOnly,
                    const LinkProfile& profile = shared_memory_profile()) {
  available.hosts = hosts.get();
  return choose(collective, hosts->ranks(), bytes, available, true, profile);
}

Price price_on(const SharedHosts& hosts, Collective collective, Algorithm algorithm, uint64_t bytes,
               const LinkProfile& profile = shared_memory_profile()) {
  return price(question_of(collective, algorithm, hosts->ranks(), bytes, hosts), profile);
}

bool is_even(const base::HostMap& hosts) {
  return hosts.ranks_on(0).size() * static_cast<size_t>(hosts.hosts()) ==
             static_cast<size_t>(hosts.ranks()) &&
         algorithms::spread_of(hosts).most == algorithms::spread_of(hosts).least;
}

/// WireTerms hops that wait for each other: every rank carries out its steps one after the other, a
/// message to another host takes one unit of time and everything else none.
double dependent_hops(const SharedHosts& hosts, Collective collective, Algorithm algorithm) {
  struct Sent {
    int by;
    double at;
  };
  std::vector<Schedule> schedules;
  for (int r = 0; r < hosts->ranks(); ++r) {
    schedules.push_back(*build_on(hosts, collective, algorithm, hosts->ranks(), r, 0));
  }
  std::vector<double> now(schedules.size(), 0);
  carry_out<Sent>(
      schedules, [&](size_t rank, const schedule::Step&, const std::vector<Sent>& received) {
        const int self = static_cast<int>(rank);
        for (const Sent& sent : received) {
          now[rank] = std::max(now[rank], sent.at + (hosts->share_host(sent.by, self) ? 0 : 1));
        }
        return Sent{self, now[rank]};
      });
  return *std::max_element(now.begin(), now.end());
}

}  // namespace

TEST_CASE("the wire hops of the cost model are those that wait for each other in the schedules") {
  for (const SharedHosts& hosts :
       {consecutive({1, 1}), consecutive({2, 2}), consecutive({3, 3, 3}), consecutive({2, 2, 2, 2}),
        consecutive({1, 3}), consecutive({2, 1, 4}), hosts_of({0, 1, 0, 1, 0, 1}),
        consecutive({1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}), consecutive({2, 2, 2, 2, 2, 2, 2, 2, 2}),
        consecutive(std::vector<int>(128, 1))}) {
    for (const auto& [collective, algorithm] : builtins_between_hosts()) {
      INFO(name(algorithm) << " " << name(collective) << describe(hosts));
      const double hops = algorithms::find(collective, algorithm)
                              ->wire({.p = static_cast<double>(hosts->ranks()),
                                      .n = 1,
                                      .slot = 1,
                                      .on = algorithms::spread_of(*hosts)})
                              .hops;
      const double found = dependent_hops(hosts, collective, algorithm);
      // A ring's chunks begin at different ranks: the formula has the mean of their ways.
      const bool ring =
          algorithm == A::kRing && !internal::is_rooted(collective) && !is_scan(collective);
      // Between hosts of different sizes a hierarchical algorithm's are an estimate.
      const bool estimated = algorithm == A::kHierarchical && !is_even(*hosts);
      // The eleventh of eleven hosts adds two hops, one of which may pass beside the others.
      const bool left_over = algorithm == A::kHierarchicalTree && hosts->hosts() == 11;
      CHECK(hops <= (estimated ? 4 : 1) * found + (ring || left_over ? 1 : 0));
      CHECK(hops * (estimated ? 2 : 1) >= found - (ring ? 1 : 0));
    }
  }
}

TEST_CASE(
    "on one host nothing depends on the wire, and hierarchical algorithms are not candidates") {
  LinkProfile other = shared_memory_profile();
  other.wire_alpha_us = other.wire_message_us = other.wire_us_per_byte =
      other.wire_both_us_per_byte = 1e6;
  for (const int ranks : {2, 5, 8}) {
    const auto one = std::make_shared<const base::HostMap>(base::HostMap::one_host(ranks));
    for (const auto& [collective, algorithm] : builtins()) {
      for (uint64_t bytes = 1; bytes < uint64_t{1} << 30; bytes *= 32) {
        const Question question = question_of(collective, algorithm, ranks, bytes);
        const double us = price(question, shared_memory_profile()).total_us();
        CHECK(price_on(one, collective, algorithm, bytes).total_us() == us);
        CHECK(price(question, other).total_us() == us);
        Available available = kWireOnly;
        for (const base::HostMap* hosts : {one.get(), static_cast<const base::HostMap*>(nullptr)}) {
          available.hosts = hosts;
          for (const Candidate& c :
               candidates(collective, ranks, bytes, available, true, shared_memory_profile())) {
            CHECK_FALSE(needs_hosts(c.algorithm));
          }
        }
      }
    }
  }
}

TEST_CASE("between hosts no memory is shared, and reproducible results have the bits of one host") {
  Available available = kWireOnly;
  for (const bool shares : {false, true}) {  // what a transport says of memory inside the hosts
    available.publish = available.references = available.signals = available.process_copy = shares;
    for (const bool reproducible : {false, true}) {
      available.rank_order_only = reproducible;
      for (const DataType type : {DataType::kFloat32, DataType::kBFloat16}) {
        available.type = type;
        for (const SharedHosts& hosts :
             {consecutive({1, 1}), consecutive({2, 2}), consecutive({1, 3}),
              consecutive({4, 4, 4, 4}), hosts_of({0, 1, 0, 1}), consecutive({64, 64, 64})}) {
          for (const Collective collective : collectives()) {
            if (collective == Collective::kAllToAllV) continue;  // never in place
            for (uint64_t bytes = 1; bytes < uint64_t{1} << 32; bytes *= 16) {
              const Algorithm algorithm = chosen_on(hosts, collective, bytes, available);
              INFO(name(algorithm) << " " << name(collective) << " " << bytes << describe(hosts));
              REQUIRE(algorithms::find(collective, algorithm) != nullptr);
              CHECK_FALSE(algorithms::traits_of(algorithm).needs.one_host());
              if (!reproducible || !internal::form_of(collective).reduces) continue;
              // Folded in rank order, at once.
              CHECK(algorithms::folds_in_rank_order(collective, algorithm, type));
              CHECK_FALSE(needs_hosts(algorithm));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("the choice between hosts follows from the prediction") {
  const Collective ar = Collective::kAllReduce;
  const SharedHosts two = consecutive({1, 1}), eights = consecutive(std::vector<int>(8, 8));
  // Few wire hops for little data, few bytes on the wire for much.
  CHECK(chosen_on(eights, ar, 8) == A::kHierarchicalTree);
  CHECK(chosen_on(eights, ar, 1 << 10) == A::kHierarchicalTree);
  CHECK(chosen_on(eights, ar, 1 << 20) == A::kHierarchical);
  CHECK(chosen_on(eights, ar, 256 << 20) == A::kHierarchical);
  CHECK(chosen_on(eights, Collective::kBarrier, 0) == A::kHierarchicalTree);
  CHECK(chosen_on(eights, Collective::kBroadcast, 8) == A::kHierarchicalTree);
  CHECK(chosen_on(eights, Collective::kBroadcast, 64 << 20) == A::kHierarchical);
  CHECK(chosen_on(eights, Collective::kReduce, 64 << 20) == A::kHierarchical);
  CHECK(chosen_on(eights, Collective::kReduceScatter, 1 << 20) == A::kHierarchical);
  CHECK(chosen_on(eights, Collective::kAllGather, 1 << 20) == A::kHierarchical);
  CHECK(chosen_on(eights, Collective::kAllToAll, 1 << 20) == A::kTwoShot);
  // One rank on each of two hosts: a ring is all that there is, and two-shot and hierarchical are the
  // same. The wire is most of it.
  for (uint64_t bytes = 8; bytes <= uint64_t{256} << 20; bytes *= 2) {
    INFO(bytes);
    const Algorithm algorithm = chosen_on(two, ar, bytes);
    CHECK(algorithm == (bytes <= (256 << 10) ? A::kHierarchicalTree : A::kRing));
    CHECK(price_on(two, ar, A::kRing, bytes).total_us() ==
          price_on(two, ar, A::kHierarchical, bytes).total_us());
    const Price price = price_on(two, ar, algorithm, bytes);
    if (bytes <= 4096) CHECK(price.wire_us > 0.9 * price.total_us());
    CHECK(price.wire_us >= 10);
    CHECK(price.wire_us >= 1e-4 * static_cast<double>(bytes));
  }
  // A wire that is as good as memory: the shape of hosts hardly matters.
  LinkProfile perfect = shared_memory_profile();
  perfect.wire_alpha_us = perfect.wire_message_us = perfect.wire_us_per_byte = 0;
  CHECK(chosen_on(eights, ar, 64 << 20, kWireOnly, perfect) == A::kTwoShot);
}

TEST_CASE("ranks of a host share its link, its cores and its cache, and no other host's") {
  const Collective ar = Collective::kAllReduce;
  // 2(H-1)/H of the message, whatever the number of ranks.
  const double bytes = 256 << 20;
  for (const int each : {1, 4, 16}) {
    const SharedHosts hosts = consecutive({each, each, each, each});
    const Price price = price_on(hosts, ar, A::kHierarchical, static_cast<uint64_t>(bytes));
    CHECK(price.wire_us == Approx(1.5 * bytes * 1e-4).epsilon(0.2));
  }
  // Four cores on each host are enough for four ranks on each.
  LinkProfile four = shared_memory_profile();
  four.parallel_ranks = 4;
  const SharedHosts spread = consecutive({4, 4}), crowded = consecutive({7, 1});
  CHECK(price_on(spread, ar, A::kRing, 1 << 20, four).slots_us ==
        price_on(spread, ar, A::kRing, 1 << 20).slots_us);
  CHECK(price_on(crowded, ar, A::kRing, 1 << 20, four).slots_us ==
        Approx(7.0 / 4 * price_on(crowded, ar, A::kRing, 1 << 20).slots_us));
  // Corrections hold for hosts like those on which they were measured.
  LinkProfile corrected = shared_memory_profile();
  corrected.corrections = {
      {.hosts = base::HostMap::one_host(8),
       .tables = {
           {.collective = ar, .algorithm = A::kRing, .mapped = false, .points = {{64, 3.0}}}}}};
  CHECK(price_on(spread, ar, A::kRing, 64, corrected).correction == 1);
  CHECK(price_on(consecutive({8}), ar, A::kRing, 64, corrected).correction == 3);
}

namespace {

/// What everything between hosts would take by `profile`.
std::vector<Timing> timings_between(const std::vector<SharedHosts>& maps,
                                    const LinkProfile& profile) {
  std::vector<Timing> timings;
  for (const SharedHosts& hosts : maps) {
    // One goes both ways at once, the other one way.
    for (const Collective collective : {Collective::kAllReduce, Collective::kBroadcast}) {
      for (const Algorithm algorithm : algorithms_between_hosts(collective)) {
        for (uint64_t bytes = 8; bytes <= uint64_t{64} << 20; bytes *= 8) {
          const Question question =
              question_of(collective, algorithm, hosts->ranks(), bytes, hosts);
          timings.push_back({.question = question, .us = price(question, profile).total_us()});
        }
      }
    }
  }
  return timings;
}

}  // namespace

TEST_CASE("a fit between hosts finds the wire and leaves the host as it was") {
  LinkProfile machine = shared_memory_profile();
  machine.wire_alpha_us = 3.3;
  machine.wire_message_us = 0.21;
  machine.wire_us_per_byte = 4.2e-5;
  machine.wire_both_us_per_byte = 2.7e-5;
  for (const std::vector<SharedHosts>& maps :
       {std::vector{consecutive({1, 1})}, {consecutive({2, 2}), consecutive({2, 2, 2})}}) {
    const std::vector<Timing> timings = timings_between(maps, machine);
    const LinkProfile found = fitted(timings, shared_memory_profile());
    // With one message in each hop latency and overhead are one.
    const bool told_apart = maps.size() > 1;
    for (size_t c = 0; c < kConstantCount; ++c) {
      INFO(kConstants[c].name);
      const double LinkProfile::*constant = kConstants[c].value;
      if (c < kHostConstantCount) CHECK(found.*constant == shared_memory_profile().*constant);
      if (c >= kHostConstantCount && told_apart) {
        CHECK(found.*constant == Approx(machine.*constant).epsilon(0.02));
      }
    }
    CHECK(found.corrections.size() == maps.size());
    check_predictions(timings, found, 0.002);
    check_factors(found, 0.05);
  }
}

TEST_CASE("a fit between hosts and one on a host keep each other's predictions") {
  LinkProfile machine = shared_memory_profile();
  machine.wire_alpha_us = 40;
  machine.wire_us_per_byte = 8e-4;
  const SharedHosts two = consecutive({1, 1}), four = consecutive({2, 2});
  std::vector<Timing> of_two = timings_between({two}, machine);
  std::vector<Timing> of_four = timings_between({four}, machine), of_host;
  for (size_t i = 0; i < of_two.size(); ++i) of_two[i].us *= i % 2 == 0 ? 1.4 : 0.7;
  for (Timing& t : of_four) {
    t.us *= 3;  // four ranks share two cores
    if (needs_hosts(t.question.algorithm)) continue;
    of_host.push_back(t);
    of_host.back().question.hosts = nullptr;
    of_host.back().us = 5 * price(of_host.back().question, machine).total_us();
  }
  const LinkProfile found =
      fitted(of_host, fitted(of_four, fitted(of_two, shared_memory_profile())));
  CHECK(found.corrections.size() == 3);
  for (const auto& timings : {of_two, of_four, of_host}) check_predictions(timings, found, 0.005);
}

TEST_CASE("a fit is of timings between hosts, or of timings on one") {
  const SharedHosts hosts = consecutive({2, 2});
  const LinkProfile base = shared_memory_profile();
  std::vector<Timing> timings = timings_between({hosts}, base);
  CHECK_THAT(fit(std::span(timings).first(2), base).status().message(),
             says("2 timings cannot determine 4 constants"));
  timings[3].us = -1;
  CHECK_THAT(fit(timings, base).status().message(), says("cannot have taken"));
  timings[3].us = 1;
  timings[3].question.hosts = nullptr;
  CHECK_THAT(fit(timings, base).status().message(), says("timings on one host and between hosts"));
}

TEST_CASE("between hosts slots are at least as large as the wire prefers, within some memory") {
  const LinkProfile host = shared_memory_profile();
  const RanksOnHost one{.ranks = 2, .cores = 2};
  RanksOnHost two = one;
  two.ranks_elsewhere = 2;
  CHECK(profile_of(one, host).slot_bytes == host.slot_bytes);
  CHECK(profile_of(two, host).slot_bytes == host.wire_slot_bytes);
  LinkProfile more = host;
  more.wire_slots = 9;
  CHECK(profile_of(two, more).slots == 9);
  CHECK(profile_of(one, more).slots == host.slots);
  // Links to other hosts take memory only where they are used.
  two.ranks_elsewhere = 10000;
  CHECK(profile_of(two, host).slot_bytes == host.wire_slot_bytes);
  two.ranks = 200;
  const LinkProfile many = profile_of(two, host);
  CHECK(many.slot_bytes * many.slots * 2 * 201 <= size_t{64} << 20);
}

}  // namespace rondo::tuner::test
