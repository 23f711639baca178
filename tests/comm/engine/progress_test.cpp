// The queue of asynchronous operations, moved by the test's own thread.
#include "comm/host/progress.hpp"

#include <cstring>
#include <functional>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "comm/board/tags.hpp"
#include "tests/harness/catch.hpp"
#include "transport/memory/segment.hpp"
#include "transport/shm/factory.hpp"

namespace rondo::engine {
namespace {

/// Two ranks in this thread: rank 0 with a runner and a queue, rank 1 with its end of the links.
struct TwoRanks {
  static constexpr transport::shm::FifoSizes kShape{
      .ranks = 2, .channels = 2, .depth = 4, .slot_bytes = 4096};

  explicit TwoRanks(std::function<void(TwoRanks&)> while_waiting)
      : segment(*transport::Segment::create("progress-test", transport::shm::bytes_needed(kShape))),
        board_memory(*transport::Segment::create("board", board::Board::bytes_needed(2))),
        links(transport::shm::create(kShape, 0, segment.base(), {}, true).value()),
        peer_links(transport::shm::create(kShape, 1, segment.base(), {}, true).value()),
        board(board_memory.base(), 2, 0),
        peer_board(board_memory.base(), 2, 1),
        watch(board,
              [this, act = std::move(while_waiting)](int) {
                act(*this);
                return -1;
              }),
        runner(std::make_unique<Runner>(*links, board, watch, RunnerOptions{})),
        queue(*runner) {}

  void send_from_peer(int32_t value) const {
    transport::Sender& sender = peer_links->sender(1, 0);  // channel 1 is the lanes'
    std::byte* const slot = sender.try_acquire(sizeof(value));
    std::memcpy(slot, &value, sizeof(value));
    constexpr uint64_t kOneInt32 = board::message_word(DataType::kInt32, 1);
    REQUIRE(sender.try_publish(sizeof(value), kOneInt32));
  }
  void leave_as_peer() const {
    peer_board.state(1).life.store(static_cast<uint32_t>(board::Life::kGone));
  }

  transport::Segment segment, board_memory;
  std::unique_ptr<transport::Transport> links, peer_links;
  board::Board board, peer_board;
  board::Watch watch;
  std::unique_ptr<Runner> runner;
  Queue queue;
};

std::list<Transfer> recv_of(int32_t* value, std::shared_ptr<Work::State> work) {
  std::list<Transfer> message;
  message.push_back({.sends = false,
                     .peer = 1,
                     .buffer = reinterpret_cast<std::byte*>(value),
                     .count = 1,
                     .type = DataType::kInt32,
                     .timeout_ns = 60'000'000'000,
                     .work = std::move(work)});
  return message;
}

}  // namespace

// The last message of a rank that leaves is found by a second look of the wait itself; an error
// follows. The moment in which its Work has ended and nobody holds it any more is the caller's: the
// queue is empty, and so the runner is the caller's again.
TEST_CASE("a queue that fails does not touch its runner when everything of it has ended") {
  bool came = false;
  TwoRanks two([&came](TwoRanks& ranks) {
    if (std::exchange(came, true)) return;
    ranks.send_from_peer(17);
    ranks.leave_as_peer();
  });
  int32_t value = 0, later = 0;
  bool empty = false;
  std::shared_ptr<Work::State> work(new Work::State, [&](Work::State* state) {
    empty = two.queue.empty();
    std::list<Transfer> message = recv_of(&later, nullptr);
    two.runner->lanes().push(message);  // as a blocking call does
    delete state;
  });
  std::list<Operation> none;
  std::list<Transfer> message = recv_of(&value, std::move(work));
  two.queue.push(none, message);
  while (value == 0) two.queue.advance(true);
  REQUIRE_FALSE(two.queue.empty());  // the end of the message has not been reported yet
  (void)two.peer_board.raise({Code::kAborted, "by rank 1"});
  two.queue.advance(true);
  CHECK(empty);
  CHECK(two.queue.empty());
  CHECK_FALSE(two.runner->lanes().empty());  // the caller's own message is still there
}

// Over UCX the connection to a rank that leaves can be refused before its agent, which looks every 100 ms,
// has told this host's.
TEST_CASE("a rank that left is named though its connection was lost long before the news") {
  int looks = 0;
  TwoRanks two([&looks](TwoRanks& ranks) {
    if (++looks == 500) ranks.leave_as_peer();
  });
  const Status error =
      two.watch.link_failed({Code::kPeerDied, "lost the connection to rank 1"}, "recv", 1);
  CHECK(error.code() == Code::kPeerDied);
  CHECK_THAT(error.message(), Catch::Contains("rank 1 left the communicator"));
}

}  // namespace rondo::engine
