// Random faults at random moments of random operations, on ranks and hosts by a seed. Every run ends
// in right results, or in an error on every survivor that names the fault. RONDO_TEST_CHAOS: so many
// runs (else as many as fit half a minute, 60 at most), from seed RONDO_TEST_CHAOS_SEED (else 1);
// RONDO_TEST_CHAOS_FAULT: of these, the runs with "cut" or another fault only.
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>
#include <thread>

#include "tests/comm/faults/hosts_world.hpp"
#include "tests/comm/faults/operations.hpp"

namespace rondo::testing {
namespace {

enum class Fault { kNone, kKill, kKillTwo, kStop, kCut, kFreeze, kAbort, kDisagree, kLeave };
constexpr const char* kFaultNames[] = {"nothing", "kill",  "kill two", "stop", "cut",
                                       "freeze",  "abort", "disagree", "leave"};
// As often as it stands here: those that need a deadline take seconds.
constexpr Fault kFaults[] = {Fault::kNone,  Fault::kKill,     Fault::kKill,  Fault::kKill,
                             Fault::kKill,  Fault::kKillTwo,  Fault::kStop,  Fault::kCut,
                             Fault::kAbort, Fault::kDisagree, Fault::kLeave, Fault::kFreeze,
                             Fault::kAbort, Fault::kDisagree, Fault::kLeave, Fault::kKillTwo};
const Placement kPlacements[] = {{0, 1},       {0, 0, 1},    {0, 1, 2},    {0, 0, 1, 1},
                                 {0, 1, 0, 1}, {0, 1, 1, 2}, {0, 0, 1, 2}, {0, 0, 1, 1, 2, 2}};
constexpr size_t kMostElements = 60'000;
constexpr int kTurnsWithoutFault = 20;

struct Run {
  unsigned seed;
  Placement placement;
  Fault fault;
  int victim, other;  // ranks; of kKillTwo both
  int turn;           // in which the victim does something else
  std::chrono::microseconds moment;

  explicit Run(unsigned of) : seed(of) {
    std::mt19937 random(seed);
    const auto below = [&](size_t n) { return static_cast<int>(random() % n); };
    placement = kPlacements[below(std::size(kPlacements))];
    fault = kFaults[below(std::size(kFaults))];
    victim = below(placement.size());
    other = (victim + 1 + below(placement.size() - 1)) % static_cast<int>(placement.size());
    turn = 3 + below(20);
    moment = std::chrono::microseconds(below(40'000));
  }

  int host() const { return placement[static_cast<size_t>(victim)]; }
  bool takes_host() const { return fault == Fault::kCut || fault == Fault::kFreeze; }
  bool strikes_itself() const {
    return fault == Fault::kAbort || fault == Fault::kDisagree || fault == Fault::kLeave;
  }
  /// Ranks that see the fault and go on.
  std::vector<int> survivors() const {
    std::vector<int> ranks;
    for (int rank = 0; rank < static_cast<int>(placement.size()); ++rank) {
      const bool struck = takes_host() ? placement[static_cast<size_t>(rank)] == host()
                                       : rank == victim && fault != Fault::kNone;
      if (struck && fault != Fault::kAbort && fault != Fault::kDisagree) continue;
      if (fault == Fault::kKillTwo && rank == other) continue;
      ranks.push_back(rank);
    }
    return ranks;
  }
  std::string to_string() const {
    std::string text = "seed " + std::to_string(seed) + ": " +
                       kFaultNames[static_cast<size_t>(fault)] + ", rank " +
                       std::to_string(victim) + ", hosts";
    for (const int at : placement) text += " " + std::to_string(at);
    return text;
  }
};

/// The ranks' part: the same calls on all, by the seed.
Status work(const Run& run, Communicator& comm, Link& link) {
  const std::vector<Operation>& all = operations();
  std::mt19937 common(run.seed), own(run.seed * 64 + static_cast<unsigned>(comm.rank()));
  Buffers buffers(kMostElements, own() % 2 == 0);
  const bool is_victim = comm.rank() == run.victim;
  for (int turn = 0;; ++turn) {
    // A rank that fails by itself may be three turns ahead of one that has not begun.
    if (turn == (run.strikes_itself() ? 0 : 3)) link.announce("going");
    if (run.fault == Fault::kNone && turn == kTurnsWithoutFault) return {};
    const size_t counts[] = {60, 1200, 12'000, kMostElements};
    buffers.count = counts[common() % std::size(counts)];
    const Operation& operation = all[common() % all.size()];
    const bool now = turn == run.turn;
    if (now && is_victim && run.fault == Fault::kAbort) comm.abort("chaos");
    if (now && is_victim && run.fault == Fault::kLeave) return {};
    if (now && run.fault == Fault::kDisagree) {
      RONDO_TRY(is_victim ? comm.barrier() : all[0].call(comm, buffers, turn));
    }
    RONDO_TRY(operation.call(comm, buffers, turn));
  }
}

HostsGang::Wanted wanted(const Run& run) {
  HostsGang::Wanted all{.survivors = run.survivors(), .codes = {Code::kPeerDied}, .within_s = 4};
  const std::string victim = "rank " + std::to_string(run.victim) + " ";
  switch (run.fault) {
    case Fault::kNone:
      all.codes = {Code::kOk};
      break;
    case Fault::kKill:
      all.says = {victim};
      break;
    case Fault::kKillTwo:
      all.one_of = {victim, "rank " + std::to_string(run.other) + " "};
      break;
    case Fault::kStop:
      all.codes = {Code::kTimeout};
      all.says = {": " + victim};
      break;
    case Fault::kCut:
    case Fault::kFreeze:
      all.codes = {Code::kTimeout, Code::kPeerDied};
      for (int rank = 0; rank < static_cast<int>(run.placement.size()); ++rank) {
        if (run.placement[static_cast<size_t>(rank)] != run.host()) continue;
        all.one_of.push_back(": rank " + std::to_string(rank) + " ");
        if (run.fault == Fault::kCut) all.ends_too.push_back(rank);
      }
      break;
    case Fault::kAbort:
      all.codes = {Code::kAborted};
      all.says = {victim + "aborted: chaos"};
      break;
    case Fault::kDisagree:
      all.codes = {Code::kMismatch};
      all.says = {victim};
      break;
    case Fault::kLeave:
      all.says = {victim + "left the communicator"};
      break;
  }
  return all;
}

double carry_out(const Hosts& hosts, const Run& run) {
  INFO(run.to_string());
  Config config;
  config.timeout = std::chrono::seconds{1};
  HostsGang gang(
      hosts, run.placement, [&](Communicator& comm, Link& link) { return work(run, comm, link); },
      config, std::chrono::seconds{20});
  gang.await_all("going");
  // A random moment; nothing is synchronised by it.
  std::this_thread::sleep_for(run.moment);
  const int64_t struck_ns = now_ns();
  if (run.fault == Fault::kKill || run.fault == Fault::kKillTwo) {
    gang.ranks().kill(run.victim, SIGKILL);
  }
  if (run.fault == Fault::kKillTwo) gang.ranks().kill(run.other, SIGKILL);
  if (run.fault == Fault::kStop) gang.ranks().kill(run.victim, SIGSTOP);
  if (run.fault == Fault::kCut) hosts.cut(run.host());
  if (run.fault == Fault::kFreeze) hosts.freeze(run.host());
  const double took = gang.check(struck_ns, wanted(run));
  if (run.fault == Fault::kCut) hosts.mend(run.host());
  return took;
}

int number(const char* variable, int otherwise) {
  const char* const text = std::getenv(variable);
  return text != nullptr ? std::atoi(text) : otherwise;
}

}  // namespace

TEST_CASE("random faults on random hosts end in right results or named errors") {
  constexpr int64_t kMostNs = 30'000'000'000;
  const Hosts hosts(3);
  const bool asked = std::getenv("RONDO_TEST_CHAOS") != nullptr;
  const int runs = number("RONDO_TEST_CHAOS", 60), first = number("RONDO_TEST_CHAOS_SEED", 1);
  const char* const only = std::getenv("RONDO_TEST_CHAOS_FAULT");
  const int64_t start_ns = now_ns();
  std::map<std::string, std::pair<int, double>> seen;
  for (int i = 0; i < runs && (asked || now_ns() - start_ns < kMostNs); ++i) {
    const Run run(static_cast<unsigned>(first + i));
    const std::string fault = kFaultNames[static_cast<size_t>(run.fault)];
    if (only != nullptr && fault != only) continue;
    auto& [times, longest] = seen[fault];
    ++times;
    longest = std::max(longest, carry_out(hosts, run));
    if (i % 16 != 0) continue;
    for (const int host : {0, 1, 2}) CHECK(hosts.processes(host).empty());
  }
  for (const auto& [fault, all] : seen) {
    show_time("chaos: " + fault + ", " + std::to_string(all.first) + " times", all.second);
  }
}

}  // namespace rondo::testing
