// The verifier refuses broken programs, and says in a sentence what is wrong. Each test breaks one
// thing in a valid program.
#include "tests/comm/schedule/builtins.hpp"
#include "tests/comm/schedule/put_in_place.hpp"

namespace rondo::schedule::test {
namespace {

/// Elements of `chunks` chunks over three rounds of tiny slots at depth 2.
constexpr uint64_t kChunk = 40;

LoweredOperation make(Collective collective, Algorithm algorithm, int ranks,
                      const Limits& limits = tiny(2), bool in_place = false) {
  const auto n = static_cast<uint64_t>(ranks);
  const uint64_t count = collective == Collective::kAllReduce ? kChunk * n : kChunk;
  OperationShape shape = shape_of({collective, algorithm}, ranks, count);
  shape.in_place = in_place;
  return operation(shape, limits);
}

std::string refusal(const LoweredOperation& op, const Limits& limits = tiny(2)) {
  const Status status = verdict({op}, limits);
  CHECK_FALSE(status.ok());
  CHECK((status.ok() || status.code() == Code::kDataError));
  return status.message();
}

/// The first instruction of `rank` that is called `step`.
size_t find(const LoweredOperation& op, size_t rank, const std::string& step) {
  const Program& program = op.programs[rank];
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    if (name_of(program, i) == step) return i;
  }
  FAIL("no " << step);
  return 0;
}

void erase(LoweredOperation& op, size_t rank, size_t instruction) {
  auto& instructions = op.programs[rank].instructions;
  instructions.erase(instructions.begin() + static_cast<std::ptrdiff_t>(instruction));
}

void insert(LoweredOperation& op, size_t rank, size_t before, Step step) {
  Program& program = op.programs[rank];
  auto& operands = program.operands;
  const Instruction instruction{.action = step.action,
                                .flag = step.flag,
                                .finishes = step.finishes,
                                .sources = static_cast<uint16_t>(step.sources.size()),
                                .destinations = static_cast<uint16_t>(step.destinations.size()),
                                .peer = step.peer,
                                .chunk = step.chunk,
                                .first = static_cast<uint32_t>(operands.size()),
                                .length = 0};
  for (const Operand& o : step.sources) operands.push_back({o});
  for (const Operand& o : step.destinations) operands.push_back({o});
  program.instructions.insert(program.instructions.begin() + static_cast<std::ptrdiff_t>(before),
                              instruction);
  put_in_place(op);
}

Operand at(OperandKind place, int chunk, int peer = -1) {
  return {.place = place, .peer = peer, .chunk = chunk};
}

/// A step that copies a chunk from In to Out, or into a published slot.
Step copy(int chunk, OperandKind to = OperandKind::kOut) {
  return {.action = Action::kMove,
          .chunk = chunk,
          .sources = {at(OperandKind::kIn, chunk)},
          .destinations = {at(to, chunk)}};
}

/// Where the first instruction of `rank` that is called `step` is.
Instruction& the(LoweredOperation& op, size_t rank, const std::string& step) {
  return op.programs[rank].instructions[find(op, rank, step)];
}

/// Exchanges the first two sources of that instruction.
void swap_sources(LoweredOperation& op, size_t rank, const std::string& step) {
  Location* const first = &op.programs[rank].operands[the(op, rank, step).first];
  std::swap(first[0], first[1]);
}

void check_accepted(const LoweredOperation& op) {
  CHECK(verdict({op}, tiny(2)).to_string() == "ok");
}

}  // namespace

TEST_CASE("a missing reduction is refused") {
  LoweredOperation op = make(Collective::kAllReduce, Algorithm::kRing, 3);
  Instruction& i = the(op, 1, "recv_reduce_send");
  // The received part only.
  op.programs[1].operands[i.first + 1] = op.programs[1].operands[i.first];
  ++i.first;
  i.sources = 1;
  CHECK_THAT(refusal(op), says("contribution of rank 1 is missing"));

  LoweredOperation one_shot = make(Collective::kAllReduce, Algorithm::kOneShot, 3);
  --one_shot.programs[0].instructions[1].sources;  // rank 2's part becomes a destination
  CHECK_THAT(refusal(one_shot), says("rank 0"));
}

TEST_CASE("a doubled reduction is refused") {
  LoweredOperation op = make(Collective::kAllReduce, Algorithm::kRing, 4);
  // Rank 1 adds its part of chunk 3 and, when that chunk has gone on, nothing undoes the second
  // time.
  const size_t step = find(op, 1, "recv_reduce_send");
  const int chunk = op.programs[1].instructions[step].chunk;
  insert(op, 1, step, copy(chunk));
  check_accepted(op);  // a scratch copy harms nobody
  Program& program = op.programs[1];
  for (const Operand& o : {at(OperandKind::kSlot, chunk, 0), at(OperandKind::kIn, chunk),
                           at(OperandKind::kOut, chunk), at(OperandKind::kSlot, chunk, 2)}) {
    program.operands.push_back({o});
  }
  Instruction& reduce = program.instructions[step + 1];
  reduce.first = static_cast<uint32_t>(program.operands.size() - 4);
  reduce.sources = 3;
  put_in_place(op);
  CHECK_THAT(refusal(op), says("rank 1") && says("contribution of rank 1 a second time"));
}

TEST_CASE("a reduction that is finished twice, never, or not alike everywhere is refused") {
  LoweredOperation op = make(Collective::kAllReduce, Algorithm::kRing, 3);
  the(op, 2, "recv_reduce_send").finishes = true;
  CHECK_THAT(refusal(op), says("goes on reducing a finished result"));
  op = make(Collective::kReduceScatter, Algorithm::kTwoShot, 3);
  the(op, 2, "recv_reduce_copy").finishes = false;
  CHECK_THAT(refusal(op), says("rank 2") && says("no step finishes"));
  op = make(Collective::kAllReduce, Algorithm::kOneShot, 3);
  swap_sources(op, 1, "recv_reduce_copy");
  CHECK_THAT(refusal(op), says("another order than on rank 0"));
}

TEST_CASE("a circular wait is refused and named, and so is a wait for a rank that has ended") {
  LoweredOperation op = make(Collective::kReduceScatter, Algorithm::kTwoShot, 3);
  for (size_t r = 0; r < 3; ++r) {  // everybody receives before sending
    auto& instructions = op.programs[r].instructions;
    std::swap(instructions.front(), instructions.back());
  }
  CHECK_THAT(refusal(op), says("circular wait") && says("waits for data from rank"));

  op = make(Collective::kAllReduce, Algorithm::kRing, 3);
  for (size_t r = 0; r < 3; ++r) {
    std::swap(op.programs[r].instructions[0], op.programs[r].instructions[1]);
  }
  CHECK_THAT(refusal(op), says("circular wait: operation 0 (all_reduce), rank 0") &&
                              says("waits for data from rank 2") && says("back to rank 0"));

  op = make(Collective::kBroadcast, Algorithm::kRing, 3);
  op.programs[0].instructions.clear();
  CHECK_THAT(refusal(op), says("waits for data from rank 0; rank 0 has ended"));
}

TEST_CASE("FIFOs that are too shallow are refused by lowering, and by the verifier") {
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kTwoShot}) {
    const Builtin builtin{Collective::kAllReduce, algorithm};
    const Status status = make_operation(shape_of(builtin, 3, 96), tiny(1)).status();
    CHECK(status.code() == Code::kInvalidArgument);
    CHECK_THAT(status.message(), says("at least 2 slots, not 1"));
    CHECK_THAT(refusal(operation(shape_of(builtin, 3, 96), tiny(2)), tiny(1)),
               says("a free slot, all 1 being taken"));
    // A round in which more slices are in flight than the FIFOs hold.
    CHECK_THAT(refusal(operation(shape_of(builtin, 3, 3 * 64), tiny(8)), tiny(3)),
               says("circular wait") && says("a free slot"));
  }
}

TEST_CASE("rounds and slices that overrun, miss or overlap are refused") {
  const LoweredOperation good = make(Collective::kAllReduce, Algorithm::kRing, 3);
  const auto broken = [&](auto&& change) {
    LoweredOperation op = good;
    for (Program& program : op.programs) change(program.channels[0]);
    return refusal(op);
  };
  CHECK_THAT(broken([](Geometry& g) { ++g.rounds; }), says("overruns: 4 rounds of 16"));
  CHECK_THAT(broken([](Geometry& g) { --g.rounds; }), says("misses the last"));
  CHECK_THAT(broken([](Geometry& g) { g.slice *= 2, g.window *= 2, g.rounds = 2; }),
             says("overruns its slots: a slice of 32 elements takes 128 bytes, a slot has 64"));
  CHECK_THAT(broken([](Geometry& g) { g.window /= 2; }), says("rounds of 8 elements"));
  CHECK_THAT(broken([](Geometry& g) { g.end += 8; }), says("of a chunk of 40"));
  CHECK_THAT(broken([](Geometry& g) { g.end -= 4; }), says("end at element 36 of chunks of 40"));
  CHECK_THAT(broken([](Geometry& g) { g.begin += 4, g.rounds = 3; }), says("leave a gap"));
  CHECK_THAT(broken([](Geometry& g) { g.total += 1; }), says("the collective has 120"));
  CHECK_THAT(broken([](Geometry& g) { g.block = 30; }), says("more than 3 chunks of 30"));
  LoweredOperation op = good;
  op.programs[1].operands[op.programs[1].instructions[0].first].offset += 1;
  CHECK_THAT(refusal(op), says("at element 1 of a buffer in which it begins at 0"));
  op = good;
  op.programs[1].instructions[1].length -= 1;
  CHECK_THAT(refusal(op), says("moves 39 elements of chunk"));
  op = good;
  op.programs[2].channels[0].slice = 8;
  CHECK_THAT(refusal(op), says("rank 2 has another geometry than rank 0"));

  const LoweredOperation two = make(Collective::kAllReduce, Algorithm::kRing, 3, tiny(2, 2));
  op = two;
  for (Program& program : op.programs) {
    program.channels[1].begin -= 4;
  }
  CHECK_THAT(refusal(op), says("channels overlap"));
}

TEST_CASE("layouts of _v collectives that do not fit together are refused") {
  const auto made = [&](Collective collective) {
    LoweredOperation op = operation(shape_of({collective, Algorithm::kTwoShot}, 3, 20), tiny(2));
    check_accepted(op);
    return op;
  };
  LoweredOperation op = made(Collective::kAllGatherV);
  op.layouts[1].out_counts[2] += 1;
  CHECK_THAT(refusal(op), says("rank 1 has another layout than rank 0"));
  op = made(Collective::kReduceScatterV);
  for (BlockLayout& layout : op.layouts) layout.in_offsets[1] += 3;
  CHECK_THAT(refusal(op), says("of a buffer in which it begins at"));
  op = made(Collective::kAllToAllV);
  op.layouts[0].in_counts[2] += 1;
  CHECK_THAT(refusal(op), says("rank 0 sends rank 2"));
  op = made(Collective::kAllToAllV);
  op.layouts.pop_back();
  CHECK_THAT(refusal(op), says("2 layouts for 3 ranks"));
}

TEST_CASE("a scratch copy is accepted, also in place onto itself or into a place written again") {
  LoweredOperation op = make(Collective::kAllReduce, Algorithm::kTwoShot, 3, tiny(2), true);
  insert(op, 0, 0, copy(1));
  check_accepted(op);
  op = make(Collective::kAllGather, Algorithm::kRing, 3, tiny(2), true);
  insert(op, 1, find(op, 1, "recv_copy_send") + 1, copy(1));
  check_accepted(op);
  op = make(Collective::kReduceScatter, Algorithm::kTwoShot, 3);
  insert(op, 0, 0, copy(0));
  check_accepted(op);
}

TEST_CASE("reading In after Out overwrote it is named as such") {
  LoweredOperation op = make(Collective::kAllReduce, Algorithm::kOneShot, 2);
  for (size_t r = 0; r < 2; ++r) {  // publish, reduce into Out, then the same again
    const int other = 1 - static_cast<int>(r);
    insert(op, r, 2, copy(0, OperandKind::kPublished));
    Step again{.action = Action::kMove,
               .finishes = true,
               .chunk = 0,
               .sources = {},
               .destinations = {at(OperandKind::kOut, 0)}};
    for (int p = 0; p < 2; ++p) {
      again.sources.push_back(p == other ? at(OperandKind::kPublished, 0, p)
                                         : at(OperandKind::kIn, 0));
    }
    insert(op, r, 3, again);
  }
  check_accepted(op);
  op.in_place = true;
  CHECK_THAT(refusal(op), says("of In of rank 1 after Out, in the same place"));
}

TEST_CASE("a rank that reads another rank's block in its own In is refused, also in place") {
  for (const bool in_place : {false, true}) {
    for (const Algorithm algorithm : {Algorithm::kStar, Algorithm::kCopyEngine}) {
      LoweredOperation op = make(Collective::kGather, algorithm, 3, tiny(2), in_place);
      for (Program& program : op.programs) {
        for (Instruction& i : program.instructions) {
          const Location& from = program.operands[i.first];
          if (i.action != Action::kMove || from.place != OperandKind::kIn || i.chunk != 0) continue;
          i.chunk = 1;
          for (uint32_t o = 0; o < 2; ++o) program.operands[i.first + o].chunk = 1;
        }
      }
      put_in_place(op);
      CHECK_THAT(refusal(op), says("is about chunk 1, which rank 0 does not send"));
    }
  }
}

TEST_CASE("direct access outside the owner's call, or unordered, is refused") {
  for (const auto& [collective, algorithm] : builtins()) {
    if (!algorithms::traits_of(algorithm).needs.references) continue;
    const LoweredOperation good = make(collective, algorithm, 4);
    for (size_t r = 0; r < 4; ++r) {
      for (size_t i = 0; i < good.programs[r].instructions.size(); ++i) {
        const Instruction& instruction = good.programs[r].instructions[i];
        if (instruction.action == Action::kMove) continue;
        LoweredOperation op = good;
        erase(op, r, i);
        INFO(name(algorithm) << " " << name(collective) << ", rank " << r << " without step " << i
                             << ", a " << name_of(good.programs[r], i));
        CHECK_FALSE(verdict({op}, tiny(2)).ok());
      }
    }
  }
  LoweredOperation op = make(Collective::kAllReduce, Algorithm::kTwoShotDirect, 3);
  erase(op, 1, 0);
  CHECK_THAT(refusal(op), says("rank 1") && says("without having waited"));
  op = make(Collective::kAllReduce, Algorithm::kTwoShotDirect, 3);
  erase(op, 1, op.programs[1].instructions.size() - 1);
  CHECK_THAT(refusal(op), says("may still touch") || says("may have returned"));
  // Two ranks that write the same place.
  op = make(Collective::kAllReduce, Algorithm::kTwoShotDirect, 3);
  for (Program& program : op.programs) {
    for (Instruction& i : program.instructions) i.chunk = 0;
    for (Operand& o : program.operands) o.chunk = 0;
  }
  put_in_place(op);
  CHECK_THAT(refusal(op), says("may still be writing the same place"));
}

TEST_CASE("slots that nobody consumes are refused, at once or by the next operation") {
  const LoweredOperation good =
      operation(shape_of({Collective::kAllGather, Algorithm::kOneShot}, 3, 8), tiny(2));
  LoweredOperation op = good;
  insert(op, 0, 0, copy(0, OperandKind::kPublished));
  CHECK_THAT(refusal(op), says("has not consumed 1 slots from rank 0"));
  CHECK_THAT(verdict({op, good}, tiny(4)).message(), says("of operation 0 for part 0"));
}

TEST_CASE("a barrier that somebody may leave early is refused") {
  LoweredOperation flat = make(Collective::kBarrier, Algorithm::kFlat, 3);
  erase(flat, 1, 2);
  CHECK_THAT(refusal(flat), says("rank 1 may leave before rank"));
  LoweredOperation exchange = make(Collective::kBarrier, Algorithm::kTwoShot, 3);
  Instruction& fold = exchange.programs[0].instructions[1];
  std::swap(exchange.programs[0].operands[fold.first],
            exchange.programs[0].operands[fold.first + 2]);
  --fold.sources;  // leaves out the own contribution, which is not needed ...
  exchange.programs[0].operands[fold.first + 2] = {at(OperandKind::kOut, 0)};
  check_accepted(exchange);
  --fold.sources;  // ... and a peer's, which is
  exchange.programs[0].operands[fold.first + 1] = {at(OperandKind::kOut, 0)};
  CHECK_THAT(refusal(exchange), says("may leave before") || says("has not consumed"));
}

TEST_CASE("a scan with the wrong contributions, or in another order, is refused") {
  for (const Collective scan : {Collective::kInclusiveScan, Collective::kExclusiveScan}) {
    const bool inclusive = scan == Collective::kInclusiveScan;
    for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kTwoShot}) {
      LoweredOperation order = make(scan, algorithm, 4);
      check_accepted(order);
      swap_sources(order, 3, "recv_reduce_copy");
      CHECK_THAT(refusal(order), says("rank 3") && says("not folded in rank order"));
    }

    // Rank 2 copies what it receives, and leaves out its own In, or that of rank 1.
    LoweredOperation missing = make(scan, Algorithm::kRing, 4);
    Instruction& fold = missing.programs[2].instructions.back();
    fold.sources = 1;
    auto& operands = missing.programs[2].operands;
    operands.erase(operands.begin() + static_cast<std::ptrdiff_t>(fold.first) + 1);
    CHECK_THAT(refusal(missing), says(inclusive ? "the contribution of rank 2 is missing"
                                                : "the contribution of rank 1 is missing"));

    LoweredOperation finished = make(scan, Algorithm::kTwoShot, 4);
    finished.programs[3].instructions.back().finishes = true;
    CHECK_THAT(refusal(finished), says("finishes a reduction where none is"));
  }
  // An inclusive scan is no exclusive one, nor the other way round; nor is it an all_reduce.
  const auto taken_for = [](Collective scan, Collective other) {
    LoweredOperation op = make(scan, Algorithm::kTwoShot, 3);
    op.collective = other;
    return refusal(op);
  };
  CHECK_THAT(taken_for(Collective::kInclusiveScan, Collective::kExclusiveScan),
             says("Out holds the contribution of rank 0") && says("which comes later"));
  CHECK_THAT(taken_for(Collective::kExclusiveScan, Collective::kInclusiveScan),
             says("the contribution of rank 0 is missing"));
  CHECK_THAT(taken_for(Collective::kInclusiveScan, Collective::kAllReduce),
             says("rank 0") && says("the contribution of rank 1 is missing"));
}

TEST_CASE("the identity anywhere else than alone into Out is refused") {
  const LoweredOperation good = make(Collective::kExclusiveScan, Algorithm::kTwoShot, 3);
  LoweredOperation op = good;
  op.programs[0].operands[op.programs[0].instructions.back().first + 1].place =
      OperandKind::kIdentity;
  CHECK_THAT(refusal(op), says("elsewhere than as the only source"));
  op = good;
  op.programs[2].operands[op.programs[2].instructions.back().first] = {
      at(OperandKind::kIdentity, 0)};
  CHECK_THAT(refusal(op), says("elsewhere than as the only source"));
}

TEST_CASE("malformed instructions are refused") {
  const LoweredOperation good = make(Collective::kAllReduce, Algorithm::kRing, 3);
  const auto broken = [&](auto&& change) {
    LoweredOperation op = good;
    change(op.programs[1]);
    return refusal(op);
  };
  CHECK_THAT(broken([](Program& p) { p.operands[1].peer = 7; }), says("names peer 7"));
  CHECK_THAT(broken([](Program& p) { p.operands[1].peer = 1; }), says("names peer 1"));
  CHECK_THAT(broken([](Program& p) { p.operands[1].chunk = 2; }), says("operand of chunk 2"));
  CHECK_THAT(broken([](Program& p) { p.operands[1].place = OperandKind::kIn; }),
             says("writes into In"));
  CHECK_THAT(broken([](Program& p) { p.operands[3] = p.operands[2]; }), says("same place twice"));
  CHECK_THAT(broken([](Program& p) { p.instructions[1].first = 1000; }), says("which is no move"));
  CHECK_THAT(broken([](Program& p) { p.instructions[1].sources = 0; }), says("which is no move"));
  CHECK_THAT(broken([](Program& p) { p.signals = 1; }), says("counters would drift"));
  LoweredOperation wait = make(Collective::kBarrier, Algorithm::kFlat, 3);
  wait.programs[1].instructions[1].peer = 1;
  CHECK_THAT(refusal(wait), says("waits for rank 1, which is not a peer"));
}

}  // namespace rondo::schedule::test
