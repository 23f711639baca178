// Random single mutations of valid programs. The verifier must refuse every mutant that the
// reference executor, which works on numbers and shares no code with it, finds to misbehave in any
// of some interleavings. (It may refuse more: a slot that happens to hold equal data, a reduction
// in another order.) The executor also carries out every valid program.
#include <iostream>
#include <random>

#include "tests/comm/schedule/builtins.hpp"
#include "tests/comm/schedule/executor.hpp"
#include "tests/comm/schedule/put_in_place.hpp"

namespace rondo::schedule::test {
namespace {

using Random = std::mt19937_64;

size_t below(Random& random, size_t n) { return static_cast<size_t>(random() % n); }

/// Gives an instruction operands of its own, so that changing them does not change another's.
std::span<Location> own_operands(Program& p, Instruction& i) {
  const size_t size = size_t{i.sources} + i.destinations;
  const std::vector<Location> copy(
      p.operands.begin() + i.first,
      p.operands.begin() + i.first + static_cast<std::ptrdiff_t>(size));
  i.first = static_cast<uint32_t>(p.operands.size());
  p.operands.insert(p.operands.end(), copy.begin(), copy.end());
  return {p.operands.data() + i.first, size};
}

/// Changes one thing in the program of one rank; what, in words.
std::string mutate(LoweredOperation& op, Random& random) {
  const size_t ranks = op.programs.size(), rank = below(random, ranks);
  Program& p = op.programs[rank];
  auto& steps = p.instructions;
  if (steps.empty()) return "nothing";
  const size_t at = below(random, steps.size()), other = below(random, steps.size());
  const auto here = steps.begin() + static_cast<std::ptrdiff_t>(at);
  Instruction& i = *here;
  const std::string where = " in step " + std::to_string(at);
  const size_t kind = below(random, 11);
  if (kind == 0) return steps.erase(here), "dropped step" + where;
  if (kind == 1) return steps.insert(here, Instruction(i)), "doubled step" + where;
  if (kind == 2) return std::swap(i, steps[other]), "swapped with another step" + where;
  if (kind == 3) return i.finishes = !i.finishes, "finishes" + where;
  if (i.action != Action::kMove) {
    if (kind == 4) i.peer = static_cast<int>(below(random, ranks));
    if (kind == 5) i.flag = i.flag == Flag::kPosted ? Flag::kSignalled : Flag::kPosted;
    if (kind == 6) i.action = Action::kSignal;
    return "another signal or wait" + where;
  }
  const std::span<Location> all = own_operands(p, i);
  Location& one = all[below(random, all.size())];
  switch (kind) {
    case 4:
      i.chunk = static_cast<int>(below(random, ranks));
      for (Location& o : all) o.chunk = i.chunk;
      put_in_place(op, rank, i);
      return "another chunk" + where;
    case 5:
      std::swap(one, all[below(random, all.size())]);
      return "swapped operands" + where;
    case 6:
      one.peer = static_cast<int>(below(random, ranks + 1)) - (ranks > 2 ? 0 : 1);
      return "another peer" + where;
    case 7:
      one.place = static_cast<OperandKind>(below(random, 6));
      return "another place" + where;
    case 8:
      one.offset += below(random, 2) == 0 ? 1 : 16;
      return "another offset" + where;
    case 9:
      i.length -= i.length > 0 ? 1 : 0;
      return "a shorter chunk" + where;
    default:
      if (i.sources > 1) return ++i.first, --i.sources, "without the first source" + where;
      if (i.destinations > 1) return --i.destinations, "without the last destination" + where;
      return "nothing";
  }
}

constexpr uint64_t kInterleavings = 12;

/// What goes wrong in the first interleaving in which anything does.
std::string misbehaviour(const LoweredOperation& op, const Limits& limits) {
  for (uint64_t seed = 0; seed < kInterleavings; ++seed) {
    std::string fault = execute(op, limits, seed);
    if (!fault.empty()) return fault;
  }
  return {};
}

/// Counts that give chunks of different lengths, and two rounds of two slices on links.
OperationShape small(Collective collective, Algorithm algorithm, int ranks, bool in_place) {
  const auto n = static_cast<uint64_t>(ranks);
  const uint64_t count = collective == Collective::kAllReduce ? 33 * n - 5 : 33;
  OperationShape shape = shape_of({collective, algorithm}, ranks, count, ranks - 1);
  shape.in_place = in_place;
  return shape;
}

Limits two_slices() {
  Limits limits = tiny(4);
  limits.slot_bytes = 32;
  return limits;
}

struct Tally {
  int mutants = 0, broken = 0, refused = 0;
};

/// Mutates one operation `mutants` times; what misbehaves must be refused.
void check_mutants(const OperationShape& shape, const Limits& limits, int mutants, Random& random,
                   Tally& tally) {
  const LoweredOperation good = operation(shape, limits);
  for (int k = 0; k < mutants; ++k) {
    LoweredOperation mutant = good;
    const std::string what = mutate(mutant, random);
    const std::string fault = misbehaviour(mutant, limits);
    const bool refuses = !verdict({mutant}, limits).ok();
    ++tally.mutants;
    tally.broken += !fault.empty();
    tally.refused += refuses;
    INFO(describe(shape, limits) << ", mutant " << k << ": " << what << ": " << fault);
    if (!fault.empty()) CHECK(refuses);
  }
}

}  // namespace

TEST_CASE("the reference executor agrees that every built-in works") {
  const Limits limits = two_slices();
  for (const auto& [collective, algorithm] : all_builtins()) {
    for (const int n : {1, 2, 3, 4, 5, 7}) {
      for (const bool in_place : {false, true}) {
        if (in_place && !algorithms::is_in_place_safe(collective, algorithm)) continue;
        const OperationShape shape = small(collective, algorithm, n, in_place);
        INFO(describe(shape, limits));
        CHECK(misbehaviour(operation(shape, limits), limits) == "");
      }
    }
  }
}

TEST_CASE("the verifier refuses every random mutation that changes what a program does") {
  const Limits limits = two_slices();
  Random random(20240607);
  Tally tally;
  for (const auto& [collective, algorithm] : all_builtins()) {
    for (const int n : {2, 3, 4, 5}) {
      for (const bool in_place : {false, true}) {
        if (in_place && !algorithms::is_in_place_safe(collective, algorithm)) continue;
        check_mutants(small(collective, algorithm, n, in_place), limits, kSanitized ? 8 : 120,
                      random, tally);
      }
      // Where most rounds are alike and are not carried out.
      const bool signals = algorithms::traits_of(algorithm).needs.signals;
      if (n == 5 || signals || collective == Collective::kBarrier) continue;
      OperationShape shape = small(collective, algorithm, n, false);
      shape.count *= 4;  // some 8 rounds
      INFO(describe(shape, limits));
      const VerifyReport report = report_of(operation(shape, limits), limits);
      CHECK(report.rounds_carried_out < report.rounds);
      check_mutants(shape, limits, kSanitized ? 5 : 30, random, tally);
    }
  }
  std::cout << tally.mutants << " mutants, " << tally.broken << " misbehave, " << tally.refused
            << " refused\n";
  CHECK(tally.broken > tally.mutants / 3);    // the mutations bite
  CHECK(tally.refused < tally.mutants - 50);  // and the verifier does not simply refuse everything
}

}  // namespace rondo::schedule::test
