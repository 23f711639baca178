// What ranks print alike before they end, by a clock of the test's own.
#include "comm/launch/repeated_lines.hpp"

#include "tests/harness/catch.hpp"

namespace rondo::run {
namespace {

using namespace std::chrono_literals;

/// Four ranks and what was printed of them.
struct Ranks {
  std::string printed;
  RepeatedLines lines{{"[0] ", "[1] ", "[2] ", "[3] "},
                      [this](std::string_view line) { printed += line; }};
  RepeatedLines::Time now{};

  void add(std::initializer_list<int> ranks, const std::string& line) {
    for (const int rank : ranks) lines.add(rank, line + "\n", now);
  }
  void end(std::initializer_list<int> ranks) {
    for (const int rank : ranks) lines.end(rank, now);
  }
  void pass(std::chrono::milliseconds time) {
    now += time;
    lines.turn(now);
  }
};

TEST_CASE("the last lines that ranks print alike come once, with the ranks") {
  Ranks ranks;
  for (const int rank : {2, 0, 3, 1}) {
    ranks.add({rank}, "no such file");
    ranks.add({rank}, "see --help");
  }
  CHECK(ranks.printed == "[2] no such file\n[2] see --help\n");  // the first ones at once
  ranks.end({0, 1, 2, 3});
  CHECK(ranks.lines.next() == ranks.now + RepeatedLines::kHold);
  ranks.pass(RepeatedLines::kHold);
  CHECK(ranks.printed ==
        "[2] no such file\n[2] see --help\n"
        "rondo-run: rank 2's last 2 lines came from 4 ranks: 0 1 2 3\n");
  CHECK_FALSE(ranks.lines.next());
}

TEST_CASE("lines that differ, and updates of a progress bar, are printed at once") {
  Ranks ranks;
  ranks.add({0}, "a");
  ranks.add({1}, "b");
  CHECK(ranks.printed == "[0] a\n[1] b\n");
  ranks.add({1}, "b");  // a rank may repeat itself
  CHECK(ranks.printed == "[0] a\n[1] b\n[1] b\n");
  ranks.printed.clear();
  for (const int rank : {0, 1}) ranks.lines.add(rank, "50 %\r", ranks.now);
  CHECK(ranks.printed == "[0] 50 %\r[1] 50 %\r");
  CHECK_FALSE(ranks.lines.next());
}

TEST_CASE("a line that is not a rank's last is printed, before what follows it") {
  Ranks ranks;
  ranks.add({0, 1, 2}, "warning");
  ranks.add({1}, "more");
  CHECK(ranks.printed == "[0] warning\n[1] warning\n[1] more\n");
  ranks.end({0, 1, 2});  // rank 2 ended with rank 0's last line
  ranks.lines.finish();
  CHECK(ranks.printed ==
        "[0] warning\n[1] warning\n[1] more\n"
        "rondo-run: rank 0's last line came from 2 ranks: 0 2\n");
}

TEST_CASE("ranks that go on are not held up for longer than half a second") {
  Ranks ranks;
  ranks.add({0, 1}, "warning");
  ranks.end({1});  // but not rank 0
  ranks.pass(RepeatedLines::kHold - 1ms);
  CHECK(ranks.printed == "[0] warning\n");
  ranks.pass(1ms);
  CHECK(ranks.printed == "[0] warning\n[1] warning\n");
  ranks.add({2}, "warning");  // too late to be the same
  CHECK(ranks.printed == "[0] warning\n[1] warning\n[2] warning\n");
}

TEST_CASE("where the first rank said more than the others, all is printed") {
  Ranks ranks;
  ranks.add({0}, "error");
  ranks.add({0}, "details");
  ranks.add({1}, "error");
  ranks.end({0, 1});
  CHECK(ranks.printed == "[0] error\n[0] details\n[1] error\n");
}

TEST_CASE("nothing is lost when the job ends with lines that are held") {
  Ranks ranks;
  ranks.add({0, 1}, "error");
  ranks.end({1});
  ranks.lines.finish();  // rank 0's output was never closed
  CHECK(ranks.printed == "[0] error\n[1] error\n");
}

TEST_CASE("two groups of ranks that fail differently are counted separately") {
  Ranks ranks;
  ranks.add({0}, "x");
  ranks.add({1}, "y");
  ranks.add({2}, "x");
  ranks.add({3}, "y");
  ranks.end({0, 1, 2, 3});
  ranks.lines.finish();
  CHECK(ranks.printed ==
        "[0] x\n[1] y\nrondo-run: rank 0's last line came from 2 ranks: 0 2\n"
        "rondo-run: rank 1's last line came from 2 ranks: 1 3\n");
}

}  // namespace
}  // namespace rondo::run
