// The mirror: rows that travel are what another host reads, nonsense is refused, and of two errors
// the verdict is the one that all report.
#include "comm/board/mirror.hpp"

#include <thread>

#include "comm/base/clock.hpp"
#include "comm/health/diagnose.hpp"
#include "tests/comm/engine/board_memory.hpp"
#include "tests/harness/catch.hpp"
#include "tests/harness/contains.hpp"

namespace rondo::board {

TEST_CASE("another host reads the rows that travelled") {
  TwoHosts two;
  const Mirror from(two.b), to(two.a);
  for (uint64_t at = 1; at <= 100; ++at) {
    two.b.post(at, odd_call(at), {.kind = 1, .arena = 4, .offset = 4096}, {}, 0.5);
    two.b.finish(at - 1);
  }
  two.b.state(1).waiting_for.store(2);
  two.b.state(1).waiting_since_ns.store(base::now_ns() - 3'000'000'000);
  two.b.show_message(0, awaited_message(base::now_ns() - 2'000'000'000));
  two.b.show_messages(1);

  REQUIRE(to.unpack_rows(from.pack_rows(1, kHistory), 1).ok());
  CHECK(two.a.state(1).posted.load() == 100);
  CHECK(two.a.state(1).finished.load() == 99);
  CHECK(two.a.state(1).waiting_for.load() == 2);
  CHECK(two.a.state(1).pid.load() == two.b.state(1).pid.load());
  CHECK(two.a.state(1).life.load() == static_cast<uint32_t>(Life::kAlive));
  // /proc of this host says nothing about that process.
  CHECK(two.a.state(1).pid_namespace.load() == 0);
  CHECK(base::now_ns() - two.a.state(1).waiting_since_ns.load() >= 3'000'000'000);
  for (uint64_t at = 100 - kHistory + 1; at <= 100; ++at) {
    const auto posted = two.a.read(1, at);
    REQUIRE(posted);
    CHECK(posted->call == odd_call(at));
    CHECK(posted->in.kind == transport::Reference::kNone);
    CHECK(posted->factor == 0.5);
  }
  const auto messages = two.a.messages(1);
  REQUIRE(messages.size() == 1);
  CHECK_THAT(messages[0].describe(),
             testing::contains("recv(int64, count 12, tag 5) from any rank: 40 of 96 bytes"));
  CHECK_THAT(messages[0].describe(), testing::contains("3 more queued"));
  CHECK(messages[0].seconds() >= 2);

  // Later rows replace earlier ones; only those that are asked for travel.
  two.b.post(101, odd_call(1000), {}, {});
  REQUIRE(to.unpack_rows(from.pack_rows(1, 1), 1).ok());
  REQUIRE(two.a.read(1, 101));
  CHECK(two.a.read(1, 101)->call.count == 1000);
  CHECK(two.a.read(1, 100));
}

TEST_CASE("what an all_to_all_v exchanges travels") {
  TwoHosts two;
  const uint64_t sends[] = {5, 6, 7}, expects[] = {8, 9, 10};
  two.b.post_counts(1, sends, expects);
  two.b.post(1, odd_call(0, Collective::kAllToAllV), {}, {});
  const uint64_t own_sends[] = {1, 8, 2}, own_expects[] = {1, 4, 2};
  two.a.post_counts(1, own_sends, own_expects);
  REQUIRE(Mirror(two.a).unpack_rows(Mirror(two.b).pack_rows(1, 4), 1).ok());
  const auto exchange = two.a.exchange(1, 0, 1);
  REQUIRE(exchange);
  CHECK(exchange->sends == 5);
  CHECK(exchange->expects == 4);
  CHECK(two.a.exchange(0, 1, 1)->expects == 8);
  // Those of earlier operations, too.
  const uint64_t later[] = {0, 0, 0};
  two.b.post_counts(2, later, later);
  two.b.post(2, odd_call(0, Collective::kAllToAllV), {}, {});
  REQUIRE(Mirror(two.a).unpack_rows(Mirror(two.b).pack_rows(1, 4), 1).ok());
  CHECK(two.a.exchange(1, 0, 1)->sends == 5);
}

TEST_CASE("the rows of a host fit a frame, however many ranks it has and whatever they exchange") {
  constexpr int kRanks = 1024;
  TwoHosts two(kRanks);
  const std::vector<uint64_t> counts(kRanks, 5);
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == 1) continue;
    Board board(two.at_a.base(), kRanks, rank, "world", TwoHosts::places(kRanks));
    for (uint64_t at = 1; at <= kHistory; ++at) {
      if (at + 4 > kHistory) board.post_counts(at, counts, counts);
      board.post(at, odd_call(at, Collective::kAllToAllV), {}, {});
    }
    board.show_messages(kMessages);
  }
  const std::string rows = Mirror(two.a).pack_rows(0, kHistory);
  CHECK(rows.size() <= size_t{1} << 20);  // comm::kMaxBlobBytes
  REQUIRE(Mirror(two.b).unpack_rows(rows, 0).ok());
  const auto last = two.b.read(kRanks - 1, kHistory);
  REQUIRE(last);
  CHECK(last->call == odd_call(kHistory, Collective::kAllToAllV));
}

TEST_CASE("a host's rows are only for other hosts, and nonsense is refused") {
  TwoHosts two;
  two.b.post(1, odd_call(3), {}, {});
  const std::string rows = Mirror(two.b).pack_rows(1, kHistory);
  CHECK_FALSE(Mirror(two.b).unpack_rows(rows, 1).ok());
  for (const int host : {0, 2, -1}) CHECK_FALSE(Mirror(two.a).unpack_rows(rows, host).ok());
  CHECK_FALSE(Mirror(two.a).unpack_rows(rows + "x", 1).ok());
  for (size_t bytes = 0; bytes < rows.size(); ++bytes) {
    CHECK_FALSE(Mirror(two.a).unpack_rows(std::string_view(rows).substr(0, bytes), 1).ok());
  }
}

TEST_CASE("the first error that the deciding host hears of is every host's") {
  TwoHosts two;
  const Mirror at_a(two.a), at_b(two.b);
  two.a.propose({Code::kTimeout, "stalled"});
  two.b.propose({Code::kPeerDied, "died"});
  CHECK(two.a.has_error());
  // Both wait for the verdict, which is b's.
  Status of_other;
  std::thread waiting([&] { of_other = two.other.error(); });
  const auto found = at_b.error();
  REQUIRE(found);
  const auto travelled = at_a.unpack_error(Mirror::pack_error(*found));
  REQUIRE(travelled.ok());
  at_a.decide(*travelled);
  at_b.decide(*travelled);
  waiting.join();
  for (const Status& status :
       {two.a.error(), two.b.error(), of_other, two.a.raise({Code::kSystem, "late"})}) {
    CHECK(status.code() == Code::kPeerDied);
    CHECK(status.message() == "died");
  }
  CHECK(at_a.error()->finder == 1);
  CHECK(at_a.error()->status.message() == "died");
  // The verdict stays.
  at_a.decide({.finder = 0, .status = {Code::kSystem, "other"}});
  CHECK(two.a.error().message() == "died");
}

TEST_CASE("without a verdict a host's own error holds after two seconds, on all its ranks") {
  TwoHosts two;
  two.other.propose({Code::kAborted, "rank 2 aborted"});
  const int64_t began = base::now_ns();
  CHECK(two.a.error().message() == "rank 2 aborted");
  CHECK(base::now_ns() - began >= 1'900'000'000);
  CHECK(two.other.error().code() == Code::kAborted);
  Mirror(two.a).decide({.finder = 1, .status = {Code::kPeerDied, "too late"}});
  CHECK(two.a.error().message() == "rank 2 aborted");
}

TEST_CASE("errors of no rank, or of no code, are refused") {
  TwoHosts two;
  const Mirror mirror(two.a);
  CHECK_FALSE(mirror.unpack_error("").ok());
  CHECK_FALSE(mirror.unpack_error("1234567").ok());
  CHECK_FALSE(
      mirror.unpack_error(Mirror::pack_error({.finder = 3, .status = {Code::kSystem, ""}})).ok());
  CHECK_FALSE(mirror.unpack_error(Mirror::pack_error({.finder = 0, .status = {}})).ok());
  const auto longest = mirror.unpack_error(
      Mirror::pack_error({.finder = 1, .status = {Code::kSystem, std::string(5000, 'x')}}));
  REQUIRE(longest.ok());
  mirror.decide(*longest);
  CHECK(two.a.error().message() == std::string(1019, 'x'));
}

TEST_CASE("processes of other hosts are told apart, though they have the same numbers") {
  const BoardMemory memory(4);
  const Board board(memory.base(), 4, 0, "world",
                    {.hosts = base::HostMap({0, 1, 2, 2}), .names = {"a", "b", "c"}});
  const Mirror mirror(board);
  mirror.introduce(1, 7, 0xefffffff, "boot b");
  mirror.introduce(2, 7, 0xefffffff, "boot c");
  mirror.introduce(3, 7, 0xf0000001, "boot c");
  for (const int rank : {1, 2, 3}) {
    board.state(0).elsewhere.store(board.observe(rank).packed_process());
    CHECK(awaited_elsewhere(board.observe_all(), 0) == rank);
    CHECK(board.state(rank).pid_namespace.load() < 0xef000000);  // none of this host
  }
}

TEST_CASE("who is dead stays dead, unless a goodbye was on its way") {
  TwoHosts two;
  const Mirror at_a(two.a), at_b(two.b);
  two.a.learn(1, Life::kDead);  // before its first row has come
  CHECK(two.a.state(1).life.load() == static_cast<uint32_t>(Life::kDead));
  REQUIRE(at_a.unpack_rows(at_b.pack_rows(1, 1), 1).ok());
  CHECK(two.a.state(1).life.load() == static_cast<uint32_t>(Life::kDead));
  two.b.state(1).life.store(static_cast<uint32_t>(Life::kGone));
  REQUIRE(at_a.unpack_rows(at_b.pack_rows(1, 1), 1).ok());
  CHECK(two.a.has_left(1));
  two.a.learn(1, Life::kDead);
  CHECK(two.a.has_left(1));
}

}  // namespace rondo::board
