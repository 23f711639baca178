// What a board is read as by somebody who is no rank: who does what, who waits for whom, and that
// nothing but a board is taken for one.
#include "comm/status/snapshot.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <thread>

#include "comm/base/clock.hpp"
#include "tests/harness/catch.hpp"
#include "transport/memory/segment.hpp"

namespace rondo::status {
namespace {

using board::Board;
using board::BoardHeader;
using board::RankState;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// A communicator whose ranks are all this process, and do what a test says.
class Ranks {
 public:
  explicit Ranks(int ranks, const board::Places& places = {}) {
    auto made =
        transport::Segment::create(kBoardName, (Board::bytes_needed(ranks) + 4095) & ~4095u);
    REQUIRE(made.ok());
    segment_ = std::move(*made);
    base_ = segment_.base();
    for (int rank = 0; rank < ranks; ++rank) {
      boards_.emplace_back(segment_.base(), ranks, rank, "training", places);
    }
  }
  Board& operator[](int rank) { return boards_[static_cast<size_t>(rank)]; }
  /// As the agent of that host has it: its first rank writes the header.
  void see_from(int host) { header().host = static_cast<uint32_t>(host); }
  void post(int rank, uint64_t sequence) {
    boards_[static_cast<size_t>(rank)].post(sequence,
                                            {.collective = Collective::kAllReduce,
                                             .type = DataType::kFloat32,
                                             .op = ReduceOp::kSum,
                                             .algorithm = Algorithm::kAuto,
                                             .root = 0,
                                             .count = 1000},
                                            {}, {});
  }
  void wait(int rank, int peer, uint32_t step = 0, Algorithm algorithm = Algorithm::kRing) {
    RankState& state = boards_[static_cast<size_t>(rank)].state(rank);
    state.waiting_since_ns = base::now_ns() - 1'500'000'000;
    state.algorithm = static_cast<uint32_t>(algorithm);
    state.step = step;
    state.waiting_for = peer;
  }
  int fd() const { return segment_.fd(); }
  BoardHeader& header() { return *reinterpret_cast<BoardHeader*>(base_); }
  board::HostRecord& host_record(size_t rank) {
    const auto ranks = boards_.size();  // they come last
    return reinterpret_cast<board::HostRecord*>(
        base_ + Board::bytes_needed(static_cast<int>(ranks)))[static_cast<ptrdiff_t>(rank - ranks)];
  }
  board::FirstError& first_error() {
    return *reinterpret_cast<board::FirstError*>(base_ + sizeof(BoardHeader));
  }
  Snapshot look() const {
    auto board = MappedBoard::open(transport::UniqueFd(dup(fd())));
    REQUIRE(board.ok());
    return take(*board);
  }

 private:
  transport::Segment segment_;
  std::byte* base_;
  std::deque<Board> boards_;  // they do not move
};

/// The one sentence about who waits for whom.
std::string chain_of(const Snapshot& snapshot) {
  const std::vector<std::string> chains = waiting_chains(snapshot);
  REQUIRE(chains.size() == 1);
  return chains.front();
}

Status opened(int fd) { return MappedBoard::open(transport::UniqueFd(fd)).status(); }

}  // namespace

TEST_CASE("each rank's state is told apart") {
  Ranks ranks(6);
  ranks[1].state(1).life = static_cast<uint32_t>(board::Life::kAbsent);
  ranks.post(2, 7);
  ranks[2].finish(7);
  ranks.post(3, 8);
  ranks.post(4, 8);
  ranks.wait(4, 3, 1);
  ranks[5].state(5).life = static_cast<uint32_t>(board::Life::kGone);
  ranks[0].state(0).pid = 1 << 30;  // no process has this pid

  const Snapshot snapshot = ranks.look();
  CHECK(snapshot.communicator == "training");
  REQUIRE(snapshot.ranks.size() == 6);
  CHECK(snapshot.ranks[0].doing == Doing::kDead);
  CHECK(snapshot.ranks[0].operation.empty());
  CHECK(snapshot.ranks[1].doing == Doing::kNotCome);
  CHECK(snapshot.ranks[2].doing == Doing::kOutside);
  CHECK(snapshot.ranks[2].ended == 7);
  CHECK(snapshot.ranks[3].doing == Doing::kWorking);
  CHECK(snapshot.ranks[5].doing == Doing::kLeft);
  const RankSnapshot& waiting = snapshot.ranks[4];
  CHECK(waiting.doing == Doing::kWaiting);
  CHECK(waiting.pid == getpid());
  CHECK(waiting.begun == 8);
  CHECK(waiting.operation == "all_reduce(float, sum, count 1000)");
  CHECK(waiting.peer == 3);
  CHECK(waiting.seconds >= 1.5);
  CHECK(waiting.seconds < 60);
  CHECK(waiting.step == 1u);
  CHECK(waiting.steps == 11);  // of a ring of 6: 2(N-1) transfers, and one that starts them
  CHECK(waiting.action == "recv_reduce_send");
  CHECK(contains(to_text(snapshot), "  1 of 11 recv_reduce_send  "));  // as rondo-plan counts them
  CHECK(chain_of(snapshot) == "rank 4 waits for rank 3, which works on #8");
}

TEST_CASE("with several hosts each rank's is shown, and the step of hierarchical operations") {
  Ranks ranks(5, {.hosts = base::HostMap({0, 1, 0, 1, 2}), .names = {"ant", "bee", "wasp"}});
  ranks.see_from(0);
  for (int rank = 0; rank < 5; ++rank) ranks.post(rank, 4);
  ranks.wait(0, 3, 1, Algorithm::kHierarchical);
  ranks.wait(1, 0, 1, Algorithm::kHierarchicalTree);
  // Far away, where pids mean other processes: this one does not live here.
  for (int rank : {1, 3, 4}) {
    ranks[rank].state(rank).heard_ns = base::now_ns() - 2'000'000'000;
    ranks[rank].state(rank).pid = 1 << 30;
  }
  ranks[4].state(4).life = static_cast<uint32_t>(board::Life::kDead);
  const Snapshot snapshot = ranks.look();
  CHECK(snapshot.hosts == std::vector<std::string>{"ant", "bee", "wasp"});
  std::vector<int> hosts;
  for (const RankSnapshot& rank : snapshot.ranks) hosts.push_back(rank.host);
  CHECK(hosts == std::vector<int>{0, 1, 0, 1, 2});
  CHECK(snapshot.ranks[0].doing == Doing::kWaiting);
  CHECK_FALSE(snapshot.ranks[0].process.empty());
  CHECK_FALSE(snapshot.ranks[0].age_seconds);
  CHECK(snapshot.ranks[0].step == 1u);
  CHECK(snapshot.ranks[0].steps > 2u);
  CHECK_FALSE(snapshot.ranks[0].action.empty());
  CHECK(snapshot.ranks[1].doing == Doing::kWaiting);
  CHECK(snapshot.ranks[1].process.empty());
  CHECK_FALSE(snapshot.ranks[1].foreign_pid);
  REQUIRE(snapshot.ranks[1].age_seconds);
  CHECK(*snapshot.ranks[1].age_seconds >= 2);
  CHECK(snapshot.ranks[1].step == 1u);
  CHECK(snapshot.ranks[3].doing == Doing::kWorking);
  CHECK(snapshot.ranks[4].doing == Doing::kDead);
  const std::string text = to_text(snapshot);
  CHECK(contains(text, "rank  host       pid  does"));
  CHECK(contains(text, "   1  bee   1073741824  waits"));
  CHECK(contains(text, "ranks 1, 3, 4: on other hosts, as it was up to 2"));
  CHECK_FALSE(contains(text, "PID namespace"));
  // The flight recorder says where a rank is, too.
  auto mapped = MappedBoard::open(transport::UniqueFd(dup(ranks.fd())));
  REQUIRE(mapped.ok());
  CHECK(contains(mapped->view().to_string(), "rank 3 (pid 1073741824 on host bee, here)"));
  // Of another host's board the other ranks are the near ones.
  ranks.see_from(1);
  const Snapshot there = ranks.look();
  CHECK(there.ranks[0].age_seconds);
  CHECK(there.ranks[1].doing == Doing::kDead);
}

// In a container of its own every rank has pid 1, which is another process here.
TEST_CASE("the process of a rank of another PID namespace is not looked for among this one's") {
  Ranks ranks(3);
  for (int rank = 0; rank < 3; ++rank) ranks.post(rank, 1);
  ranks.wait(0, 1);
  ranks.wait(1, 2);
  for (int rank : {1, 2}) ranks[rank].state(rank).pid_namespace.fetch_add(1);
  ranks[1].state(1).pid = 1;
  ranks[2].state(2).pid = 1 << 30;
  const Snapshot snapshot = ranks.look();
  CHECK(!snapshot.ranks[0].process.empty());
  CHECK(snapshot.ranks[1].process.empty());
  CHECK(snapshot.ranks[1].doing == Doing::kWaiting);
  CHECK(snapshot.ranks[2].doing == Doing::kWorking);
  CHECK(contains(to_text(snapshot),
                 "ranks 1, 2: in another PID namespace, where their pids count; whether these "
                 "processes live cannot be seen from here\n"));
}

TEST_CASE("a rank that waits in another communicator is said to") {
  Ranks ranks(3);
  ranks.post(2, 1);
  ranks.wait(2, 0);
  ranks[1].state(1).pid = getppid();
  ranks[0].state(0).elsewhere = ranks[1].observe(1).packed_process();
  CHECK(chain_of(ranks.look()) ==
        "rank 2 waits for rank 0, which waits in another communicator for rank 1, which has not "
        "begun an operation");
}

TEST_CASE("chains are followed to their end, and ranks that wait alike share a sentence") {
  Ranks ranks(5);
  for (int rank = 1; rank < 5; ++rank) ranks.post(rank, 1);
  ranks.wait(1, 0);
  ranks.wait(2, 1);
  ranks.wait(3, 2);
  ranks.wait(4, 2);
  const std::string chain = chain_of(ranks.look());
  CHECK(chain ==
        "ranks 3, 4 wait for rank 2, which waits for rank 1, which waits for rank 0, "
        "which has not begun an operation");
  const std::string text = to_text(ranks.look());
  CHECK(contains(text, "communicator \"training\" of 5 ranks"));
  CHECK(contains(text, chain));
  CHECK(contains(text, "all_reduce(float, sum, count 1000) by ring"));
}

TEST_CASE("messages are told with their peer, direction and bytes, and how long they have waited") {
  Ranks ranks(3);
  ranks.wait(1, 2);
  ranks[1].show_message(0, {.sends = false,
                            .peer = 0,
                            .type = DataType::kFloat32,
                            .count = 10,
                            .since_ns = base::now_ns() - 2'500'000'000});
  ranks[1].show_message(1, {.sends = true,
                            .peer = 2,
                            .type = DataType::kInt64,
                            .count = 1000,
                            .moved_bytes = 4096,
                            .since_ns = base::now_ns() - 7'500'000'000,
                            .behind = 3});
  ranks[1].show_messages(board::kMessages + 2);
  const Snapshot snapshot = ranks.look();
  CHECK(snapshot.ranks[1].doing == Doing::kWaiting);
  CHECK(snapshot.ranks[1].operation == "send(int64, count 1000) to rank 2");
  CHECK(snapshot.ranks[1].messages.size() >= 2);
  const std::string text = to_text(snapshot);
  INFO(text);
  CHECK(contains(text, "rank 1: recv(float, count 10) from rank 0: 0 of 40 bytes, for 2."));
  CHECK(contains(text, "rank 1: send(int64, count 1000) to rank 2: 4096 of 8000 bytes, for 7."));
  CHECK(contains(text, " s; 3 more queued after it\n"));
  CHECK(contains(text, "rank 1: and those of 2 more lanes\n"));
}

TEST_CASE("a rank that waits for a message from any rank waits, and ends a chain") {
  Ranks ranks(3);
  ranks.wait(1, kAnySource);
  ranks.wait(2, 1);
  ranks[1].show_message(
      0, {.sends = false, .peer = kAnySource, .type = DataType::kFloat32, .count = 10, .tag = 7});
  ranks[1].show_message(1, {.sends = false,
                            .peer = kAnySource,
                            .type = DataType::kUint8,
                            .count = 0,
                            .tag = kAnyTag,
                            .probes = true});
  ranks[1].show_messages(2);
  const Snapshot snapshot = ranks.look();
  CHECK(snapshot.ranks[1].doing == Doing::kWaiting);
  CHECK(snapshot.ranks[1].operation == "recv(float, count 10, tag 7) from any rank");
  CHECK(chain_of(snapshot) == "rank 2 waits for rank 1, which waits for a message from any rank");
  const std::string text = to_text(snapshot);
  INFO(text);
  CHECK(contains(text, "    any  "));
  CHECK(contains(text, "rank 1: probe(any tag) from any rank: for "));
}

TEST_CASE("a circle is called one") {
  Ranks ranks(3);
  for (int rank = 0; rank < 3; ++rank) {
    ranks.post(rank, 1);
    ranks.wait(rank, (rank + 1) % 3);
  }
  CHECK(chain_of(ranks.look()) ==
        "rank 0 waits for rank 1, which waits for rank 2, which waits for rank 0: a circle");
}

TEST_CASE("a circle over hosts is claimed only where all its waits were there at one time") {
  Ranks ranks(3, {.hosts = base::HostMap({0, 1, 1}), .names = {"ant", "bee"}});
  ranks.see_from(0);
  for (int rank = 0; rank < 3; ++rank) {
    ranks.post(rank, 1);
    ranks.wait(rank, (rank + 1) % 3);  // for 1.5 s
  }
  const std::string words =
      "rank 0 waits for rank 1, which waits for rank 2, which waits for rank 0: a circle";
  const auto aged = [&](int64_t age_ns) {
    for (int rank : {1, 2}) {
      ranks[rank].state(rank).heard_ns = base::now_ns() - age_ns;
      ranks[rank].state(rank).waiting_since_ns = base::now_ns() - age_ns - 1'500'000'000;
    }
    return chain_of(ranks.look());
  };
  CHECK(aged(20'000'000) == words);
  // Rank 0 began to wait when the rows of the others were two minutes old.
  CHECK(aged(120'000'000'000) == words + ", if all of this was so at one time");
  // A rank that goes on while the rows are read is in no circle.
  aged(20'000'000);
  Snapshot snapshot = ranks.look();
  snapshot.ranks[0].is_steady = false;
  CHECK(chain_of(snapshot) == words + ", if all of this was so at one time");
}

TEST_CASE("a board that changes while it is read has no steady rows") {
  Ranks ranks(2);
  ranks.post(0, 1);
  ranks.wait(0, 1);
  CHECK(ranks.look().ranks[0].is_steady);
  std::atomic<bool> ends = false;
  std::thread writer([&] {
    for (uint32_t step = 0; !ends; ++step) ranks[0].state(0).step = step;
  });
  bool was_seen = false;
  const auto until = base::now_ns() + int64_t{30'000'000'000};
  while (!was_seen && base::now_ns() < until) {
    const Snapshot snapshot = ranks.look();
    was_seen = !snapshot.ranks[0].is_steady && snapshot.ranks[1].is_steady;
  }
  ends = true;
  writer.join();
  CHECK(was_seen);
}

TEST_CASE("a rank of another host is shown as stopped where its agent says so") {
  Ranks ranks(2, {.hosts = base::HostMap({0, 1}), .names = {"ant", "bee"}});
  ranks.see_from(0);
  ranks.post(0, 1);
  ranks.wait(0, 1);
  ranks[1].state(1).heard_ns = base::now_ns();
  ranks[1].state(1).pid = 1 << 30;
  ranks[1].state(1).process = 'T';
  ranks[0].state(0).process = 'T';  // of the near one the kernel says more
  const Snapshot snapshot = ranks.look();
  CHECK(snapshot.ranks[1].process == "stopped by a signal");
  CHECK_FALSE(snapshot.ranks[0].process == "stopped by a signal");
  CHECK(chain_of(snapshot) ==
        "rank 0 waits for rank 1, which is stopped by a signal (pid 1073741824 on host bee)");
  ranks[1].state(1).process = 'x';  // a stranger's board
  CHECK(ranks.look().ranks[1].process.empty());
}

TEST_CASE("a rank whose host does not answer is lost, and not dead") {
  Ranks ranks(2, {.hosts = base::HostMap({0, 1}), .names = {"ant", "bee"}});
  ranks.see_from(0);
  ranks.post(0, 1);
  ranks.wait(0, 1);
  ranks[0].learn(1, board::Life::kLost);
  CHECK(
      contains(chain_of(ranks.look()), " on host bee): its host does not answer, and it may live"));
  CHECK(contains(to_text(ranks.look()), "  lost  "));
  ranks[0].learn(1, board::Life::kDead);
  CHECK(contains(chain_of(ranks.look()), "rank 0 waits for rank 1, which is dead (pid "));
}

TEST_CASE("a board is over when the ranks that share it have left or ended") {
  Ranks ranks(3, {.hosts = base::HostMap({0, 0, 1}), .names = {"ant", "bee"}});
  ranks.see_from(0);
  const auto is_over = [&] {
    auto board = MappedBoard::open(transport::UniqueFd(dup(ranks.fd())));
    REQUIRE(board.ok());
    return board->is_over();
  };
  ranks[0].state(0).life = static_cast<uint32_t>(board::Life::kGone);
  CHECK_FALSE(is_over());
  ranks[1].state(1).pid = 1 << 30;  // it was killed: no process has this pid
  CHECK(is_over());                 // rank 2 has a board of its own
  ranks[1].state(1).life = static_cast<uint32_t>(board::Life::kAbsent);
  CHECK_FALSE(is_over());
}

TEST_CASE("nonsense on a board is shown as far as it makes sense") {
  Ranks ranks(2);
  ranks.post(0, 3);
  ranks.wait(0, 77);
  ranks.post(1, 3);
  ranks.wait(1, 0, 4'000'000);
  ranks[1].state(1).algorithm = 250;
  const Snapshot snapshot = ranks.look();
  CHECK(snapshot.ranks[0].doing == Doing::kWorking);
  CHECK(snapshot.ranks[1].peer == 0);
  CHECK_FALSE(snapshot.ranks[1].step.has_value());
  CHECK(contains(to_text(snapshot), "rank 1 waits for rank 0"));
}

TEST_CASE("hosts and names that a stranger's board invents do no harm") {
  Ranks ranks(2, {.hosts = base::HostMap({0, 1}), .names = {"a", std::string(100, '\x1b')}});
  ranks.see_from(-1);
  std::memset(ranks.header().name, '\x1b', sizeof(ranks.header().name));  // without an end
  ranks.host_record(0).host = 0xffffffff;
  ranks[1].post(1,
                {.collective = Collective::kBroadcast,
                 .type = DataType::kFloat32,
                 .op = ReduceOp::kSum,
                 .algorithm = Algorithm::kAuto,
                 .root = 1 << 20,
                 .count = 1000},
                {}, {});
  ranks.wait(1, 0, 0, Algorithm::kHierarchical);
  const Snapshot snapshot = ranks.look();
  CHECK(snapshot.ranks[1].doing == Doing::kWaiting);
  CHECK_FALSE(snapshot.ranks[1].step);
  CHECK(snapshot.hosts == std::vector<std::string>{"a", std::string(59, '?')});
  CHECK(snapshot.communicator == std::string(sizeof(ranks.header().name), '?'));
  CHECK(snapshot.ranks[0].host == 0);
  CHECK(snapshot.ranks[1].host == 1);
}

TEST_CASE("the error of all ranks is shown") {
  Ranks ranks(2);
  CHECK(ranks[1].raise({Code::kAborted, "no more"}).code() == Code::kAborted);
  CHECK(contains(to_text(ranks.look()), "no more"));
  ranks.first_error().finder = 3;
  CHECK(contains(ranks.look().error, "no rank"));
}

TEST_CASE("only a whole board of this version is taken for one") {
  Ranks ranks(2);
  CHECK(opened(dup(ranks.fd())).ok());
  ranks.header().version = BoardHeader::kVersion + 1;
  CHECK(contains(opened(dup(ranks.fd())).message(), "version"));
  ranks.header().version = BoardHeader::kVersion;
  for (const uint32_t count : {0u, 100u, 70'000u, 0x80000001u, 0xffffffffu}) {
    ranks.header().ranks = count;
    INFO(count);
    CHECK(opened(dup(ranks.fd())).code() == Code::kInvalidArgument);
  }
  ranks.header().ranks = 2;
  CHECK(opened(dup(ranks.fd())).ok());
  ranks.header().magic = 1;
  CHECK_FALSE(opened(dup(ranks.fd())).ok());
}

TEST_CASE("descriptors that are no boards are refused") {
  CHECK_FALSE(opened(-1).ok());
  CHECK_FALSE(opened(open("/dev/null", O_RDWR | O_CLOEXEC)).ok());
  // A board could be cut short while it is read if its size were not sealed.
  const int unsealed = memfd_create(kBoardName, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  REQUIRE(ftruncate(unsealed, 1 << 20) == 0);
  CHECK(contains(opened(unsealed).message(), "sealed"));
  auto tiny = transport::Segment::create(kBoardName, 100);
  REQUIRE(tiny.ok());
  CHECK_FALSE(opened(dup(tiny->fd())).ok());
}

}  // namespace rondo::status
