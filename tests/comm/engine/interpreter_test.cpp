// The interpreter over a scripted engine: it resumes exactly where it was blocked, whatever the
// pattern of blocking, makes every move once and in order, skips empty slices, and keeps to its
// budget.
#include "comm/engine/interpreter.hpp"

#include <random>
#include <string>
#include <vector>

#include "comm/host/host_engine.hpp"
#include "tests/comm/schedule/operations.hpp"
#include "tests/harness/catch.hpp"

namespace rondo::engine {
namespace {

// Writes down what is done, and refuses at random.
struct ScriptedEngine {
  std::vector<std::string> log;
  std::mt19937 random;
  int refuse_one_in;

  bool refuses() {
    return refuse_one_in > 0 && random() % static_cast<unsigned>(refuse_one_in) != 0;
  }
  Progress try_move(const SliceMove& move) {
    if (refuses()) return Progress::kBlocked;
    log.push_back("move " + std::to_string(move.instruction->chunk) + "@" +
                  std::to_string(move.offset) + "+" + std::to_string(move.length));
    return Progress::kDone;
  }
  Progress try_wait(const schedule::Instruction& i) {
    if (refuses()) return Progress::kBlocked;
    log.push_back("wait " + std::to_string(i.peer));
    return Progress::kDone;
  }
  void signal() { log.push_back("signal"); }
};

struct Walk {
  std::vector<std::string> log;
  int calls = 0;
};

Walk walk(const schedule::Program& program, size_t channel, int refuse_one_in, uint32_t budget) {
  const ProgramView view{program.instructions.data(), program.operands.data(),
                         static_cast<uint32_t>(program.instructions.size()),
                         static_cast<uint32_t>(program.operands.size())};
  ScriptedEngine engine{{}, std::mt19937(7), refuse_one_in};
  Cursor cursor;
  Walk result;
  while (true) {
    const size_t before = engine.log.size();
    const Progress made = advance(view, program.channels[channel], cursor, engine, budget);
    ++result.calls;
    if (made == Progress::kDone) break;
    // Blocked means that nothing at all was done; progressed that something was.
    REQUIRE((made == Progress::kBlocked) == (engine.log.size() == before));
    REQUIRE(engine.log.size() - before <= size_t{budget} + 8);
    REQUIRE(result.calls < 1'000'000);
  }
  result.log = engine.log;
  return result;
}

schedule::Program lowered(Algorithm algorithm, int ranks, uint64_t count) {
  auto schedule = algorithms::build(Collective::kAllReduce, algorithm, ranks, 1, 0);
  REQUIRE(schedule.ok());
  auto program = schedule::lower(*schedule, count,
                                 {.element_bytes = 4, .slot_bytes = 64, .depth = 4, .channels = 2});
  REQUIRE(program.ok());
  return *program;
}

}  // namespace

TEST_CASE("a walk does the same whether or not it is interrupted") {
  for (const Algorithm algorithm : schedule::test::algorithms_of(Collective::kAllReduce)) {
    for (const uint64_t count : {0, 1, 5, 100, 1003}) {
      const schedule::Program program = lowered(algorithm, 3, count);
      for (size_t channel = 0; channel < program.channels.size(); ++channel) {
        const Walk whole = walk(program, channel, 0, 1'000'000);
        CHECK(whole.calls == 1);
        CHECK(walk(program, channel, 3, 1'000'000).log == whole.log);
        CHECK(walk(program, channel, 10, 2).log == whole.log);
        CHECK(walk(program, channel, 0, 1).log == whole.log);
      }
    }
  }
}

TEST_CASE("a turn is a few moves, and no more than a few megabytes of large ones") {
  CHECK(moves_in_turn(false, 8) == 16);
  CHECK(moves_in_turn(false, size_t{256} << 10) == 16);
  CHECK(moves_in_turn(false, size_t{1} << 20) == 4);
  CHECK(moves_in_turn(false, size_t{64} << 20) == 1);
  CHECK(moves_in_turn(true, 8) == 1);
}

TEST_CASE("empty slices are skipped and nothing is left out") {
  // Chunks of 16, 4 and 0 elements.
  const schedule::Program program = lowered(Algorithm::kRing, 3, 20);
  uint64_t elements = 0;
  for (size_t channel = 0; channel < program.channels.size(); ++channel) {
    for (const std::string& entry : walk(program, channel, 0, 1'000'000).log) {
      const uint64_t length = std::stoull(entry.substr(entry.find('+') + 1));
      CHECK(length > 0);
      elements += length;
    }
  }
  uint64_t expected = 0;
  for (const schedule::Instruction& instruction : program.instructions) {
    expected += instruction.length;
  }
  CHECK(elements == expected);
}

}  // namespace rondo::engine
