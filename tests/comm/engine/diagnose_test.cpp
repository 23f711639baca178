// Which rank holds the others up, from plain observations, and what two ranks disagree about.
#include "comm/health/diagnose.hpp"

#include "tests/comm/engine/board_memory.hpp"
#include "tests/harness/catch.hpp"
#include "tests/harness/contains.hpp"

namespace rondo::board {
namespace {

constexpr uint64_t kSequence = 5;

/// Ranks inside operation kSequence. Rank 0 waits, and finds nothing that moves.
struct Ranks {
  explicit Ranks(size_t ranks) : before(ranks), now(ranks) {
    for (std::vector<Observation>* all : {&before, &now}) {
      for (Observation& each : *all) {
        each = {.life = Life::kAlive, .posted = kSequence, .finished = kSequence - 1};
      }
    }
    wait(0, 1);
  }
  /// A rank in a wait counts its looks.
  void wait(int rank, int peer) {
    now[static_cast<size_t>(rank)].waiting_for = peer;
    now[static_cast<size_t>(rank)].heartbeat = 1;
  }
  Observation& at(int rank) { return now[static_cast<size_t>(rank)]; }
  int culprit(int peer = 1) const {
    return find_culprit({.before = before,
                         .now = now,
                         .rank = 0,
                         .peer = peer,
                         .sequence = kSequence,
                         .source = [this](int rank) { return rank == silent ? 0 : rank; }});
  }

  std::vector<Observation> before, now;
  int silent = -1;  // its rows come through rank 0, and have stopped coming
};

}  // namespace

TEST_CASE("a path ends at a rank that waits for none, and at one that it has passed") {
  const int next[] = {1, 2, -1, 4, 3, 99};
  const auto from = [&](int first) {
    return follow(first, std::size(next), [&](int rank) { return next[rank]; });
  };
  CHECK(from(0) == std::vector<int>{0, 1, 2});
  CHECK(from(3) == std::vector<int>{3, 4});
  CHECK(from(5) == std::vector<int>{5});
  CHECK(from(kAnySource).empty());
}

TEST_CASE("the rank at the end of the chain holds the others up") {
  Ranks ranks(4);
  ranks.wait(1, 2);
  ranks.wait(2, 3);
  CHECK(ranks.culprit() == 3);
  ranks.wait(3, 1);  // a circle, and everybody looks around
  CHECK(ranks.culprit() == -1);
  ranks.at(2).heartbeat = 0;  // it is stopped, and still says for whom it waited
  CHECK(ranks.culprit() == 2);
}

TEST_CASE(
    "of ranks that no chain leads to, one that stands still is named, and none that is through") {
  Ranks ranks(4);
  ranks.wait(1, 0);
  CHECK(ranks.culprit() == 2);
  CHECK(ranks.culprit(kAnySource) == 2);
  ranks.at(2).finished = kSequence;
  CHECK(ranks.culprit() == 3);
  ranks.at(3).life = Life::kGone;
  CHECK(ranks.culprit() == -1);
}

TEST_CASE("a chain goes on through another communicator, and stops at news that do not come") {
  Ranks ranks(4);
  ranks.at(3).pid = 17;
  ranks.at(3).pid_namespace = 4;
  ranks.at(1).elsewhere = ranks.at(3).packed_process();
  CHECK(awaited_elsewhere(ranks.now, 1) == 3);
  CHECK(awaited_elsewhere(ranks.now, 2) == -1);
  CHECK(ranks.culprit() == 3);
  ranks.silent = 3;
  CHECK(ranks.culprit() == 0);
  ranks.silent = 1;
  CHECK(ranks.culprit() == 0);
}

TEST_CASE("the first difference between two ranks' calls is named, in calls and in counts") {
  const BoardMemory memory(2);
  Board boards[] = {Board(memory.base(), 2, 0), Board(memory.base(), 2, 1)};
  const auto post = [&](int rank, uint64_t at, uint64_t sends, const Fingerprint& call) {
    const uint64_t counts[] = {sends, sends};
    boards[rank].post_counts(at, counts, counts);
    boards[rank].post(at, call, {}, {});
  };
  const Fingerprint exchange = odd_call(0, Collective::kAllToAllV);
  for (const int rank : {0, 1}) {
    post(rank, 1, 3, all_reduce_call(1));
    post(rank, 2, 7, exchange);
  }
  CHECK(disagreement(boards[0], 0, 1, 1, 2).ok());
  post(0, 3, 7, exchange);
  post(1, 3, 8, exchange);
  post(0, 4, 0, all_reduce_call(1));
  CHECK(disagreement(boards[1], 0, 1, 4, 4).ok());  // rank 1 has not called it yet
  post(1, 4, 0, all_reduce_call(2));
  CHECK_THAT(disagreement(boards[1], 0, 1, 4, 4).message(),
             testing::contains("operation 4: rank 0 called all_reduce(float, sum, count 1), rank 1 "
                               "called all_reduce(float, sum, count 2)"));
  CHECK_THAT(disagreement(boards[1], 0, 1, 1, 4).message(),
             testing::contains("rank 0 sends 7 elements to rank 1, which expects 8 from it"));
}

}  // namespace rondo::board
