// Random single mutations of valid programs. The verifier must refuse every mutant that the
// reference executor, which works on numbers and shares no code with it, finds to misbehave in any
// of some interleavings. (It may refuse more: a slot that happens to hold equal data, a reduction
// in another order.) The executor also carries out every valid program.
#include <iostream>
#include <random>

#include "tests/comm/schedule/builtins.hpp"
#include "tests/comm/schedule/executor.hpp"

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

/// Where block `o.chunk` begins in the buffer of `o`.
uint64_t begin_of(const LoweredOperation& op, const Location& o, int rank) {
  const bool in = o.place == OperandKind::kIn || o.place == OperandKind::kPeerIn;
  const bool out = o.place == OperandKind::kOut || o.place == OperandKind::kPeerOut;
  const Form form = form_of(op.collective);
  if ((!in && !out) || (in ? form.in : form.out) == Holds::kOne) return 0;
  const auto block = static_cast<size_t>(o.chunk);
  if (!is_varying(op.collective)) return block * op.programs[0].channels[0].block;
  const bool own = o.place == OperandKind::kIn || o.place == OperandKind::kOut;
  const BlockLayout& layout = op.layouts[static_cast<size_t>(own ? rank : std::max(o.peer, 0))];
  return in ? layout.in_offsets[block] : layout.out_offsets[block];
}

/// Changes one thing in the program of one rank; what, in words.
std::string mutate(LoweredOperation& op, Random& random) {
  const auto ranks = static_cast<int>(op.programs.size());
  const size_t rank = below(random, op.programs.size());
  Program& p = op.programs[rank];
  auto& steps = p.instructions;
  if (steps.empty()) return "nothing";
  const size_t at = below(random, steps.size()), other = below(random, steps.size());
  const auto here = steps.begin() + static_cast<std::ptrdiff_t>(at);
  Instruction& i = *here;
  const bool moves = i.action == Action::kMove;
  const std::string where = " in step " + std::to_string(at);
  switch (below(random, 11)) {
    case 0:
      steps.erase(here);
      return "dropped step" + where;
    case 1:
      steps.insert(here, Instruction(i));
      return "doubled step" + where;
    case 2:
      std::swap(i, steps[other]);
      return "swapped with step " + std::to_string(other) + where;
    case 3: {
      if (!moves)
        return i.peer = static_cast<int>(below(random, op.programs.size())), "another peer" + where;
      const int chunk = static_cast<int>(below(random, op.programs.size()));
      i.chunk = chunk;
      i.length = chunk_length(op, chunk);
      for (Location& o : own_operands(p, i)) {
        o.chunk = chunk;
        o.offset = begin_of(op, o, static_cast<int>(rank));
      }
      return "another chunk" + where;
    }
    case 4: {
      if (!moves)
        return i.flag = i.flag == Flag::kPosted ? Flag::kSignalled : Flag::kPosted,
               "another flag" + where;
      const std::span<Location> all = own_operands(p, i);
      std::swap(all[below(random, all.size())], all[below(random, all.size())]);
      return "swapped operands" + where;
    }
    case 5: {
      if (!moves) return i.action = Action::kSignal, "signal" + where;
      const std::span<Location> all = own_operands(p, i);
      all[below(random, all.size())].peer =
          static_cast<int>(below(random, op.programs.size() + 1)) - (ranks > 2 ? 0 : 1);
      return "another peer" + where;
    }
    case 6: {
      if (!moves) return "nothing";
      const std::span<Location> all = own_operands(p, i);
      all[below(random, all.size())].place = static_cast<OperandKind>(below(random, 6));
      return "another place" + where;
    }
    case 7: {
      if (i.sources > 1) return ++i.first, --i.sources, "without the first source" + where;
      if (i.destinations > 1) return --i.destinations, "without the last destination" + where;
      return "nothing";
    }
    case 8: {
      if (!moves) return "nothing";
      const std::span<Location> all = own_operands(p, i);
      all[below(random, all.size())].offset += below(random, 2) == 0 ? 1 : 16;
      return "another offset" + where;
    }
    case 9:
      if (!moves || i.length == 0) return "nothing";
      --i.length;
      return "a shorter chunk" + where;
    default:
      i.finishes = !i.finishes;
      return "finishes" + where;
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
  return {.collective = collective,
          .algorithm = algorithm,
          .ranks = ranks,
          .root = ranks - 1,
          .in_place = in_place,
          .count = collective == Collective::kAllReduce ? 33 * n - 5 : 33};
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
    if (!fault.empty() && !refuses) CHECK(refuses);
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
    }
  }
  std::cout << tally.mutants << " mutants, " << tally.broken << " misbehave, " << tally.refused
            << " refused\n";
  CHECK(tally.broken > tally.mutants / 3);    // the mutations bite
  CHECK(tally.refused < tally.mutants - 50);  // and the verifier does not simply refuse everything
}

TEST_CASE("it refuses them too where most rounds are alike and are not carried out") {
  const Limits limits = two_slices();
  Random random(20261121);
  Tally tally;
  for (const auto& [collective, algorithm] : all_builtins()) {
    for (const int n : {2, 3, 4}) {
      OperationShape shape = small(collective, algorithm, n, false);
      shape.count *= 4;  // some 8 rounds
      const Result<VerifyReport> report = verify(std::vector{operation(shape, limits)}, limits);
      REQUIRE(report.ok());
      INFO(describe(shape, limits));
      const bool slots =
          !algorithms::traits_of(algorithm).needs.signals && collective != Collective::kBarrier;
      if (slots) CHECK(report.value().rounds_carried_out < report.value().rounds);
      if (slots) check_mutants(shape, limits, kSanitized ? 5 : 30, random, tally);
    }
  }
  CHECK(tally.broken > tally.mutants / 3);
  CHECK(tally.refused < tally.mutants - 10);
}

}  // namespace rondo::schedule::test
