// The queue of asynchronous operations, moved by the test's own thread, as the progress thread moves
// those of all communicators.
#include "comm/host/progress.hpp"

#include <cstring>
#include <functional>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "comm/base/clock.hpp"
#include "comm/board/mirror.hpp"
#include "comm/board/tags.hpp"
#include "comm/plans.hpp"
#include "tests/comm/engine/board_memory.hpp"
#include "tests/harness/catch.hpp"
#include "tests/harness/contains.hpp"
#include "tests/transport/lazy.hpp"
#include "transport/memory/segment.hpp"
#include "transport/shm/factory.hpp"

namespace rondo::engine {
namespace {

struct Setting {
  std::function<int(const board::Board&)> find_dead = [](const board::Board&) { return -1; };
  bool two_hosts = false;
  bool lost = false;  // the connection, of links that move in progress() only
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

/// Two ranks in this thread: rank 0 with a runner and a queue, rank 1 with its end of the links.
struct TwoRanks {
  static constexpr transport::shm::FifoSizes kShape{
      .ranks = 2, .channels = 2, .depth = 4, .slot_bytes = 4096};

  explicit TwoRanks(const Setting& setting = {})
      : segment(*transport::Segment::create("progress-test", transport::shm::bytes_needed(kShape))),
        board_memory(2),
        links(transport::shm::create(kShape, 0, segment.base(), {}, true).value()),
        peer_links(transport::shm::create(kShape, 1, segment.base(), {}, true).value()),
        board(board_memory.base(), 2, 0, "", places(setting.two_hosts)),
        peer_board(board_memory.base(), 2, 1, "", places(setting.two_hosts)),
        watch(board, [this, setting](int first) {
          const int dead = setting.find_dead(board);
          return dead >= first ? dead : -1;
        }) {
    if (setting.lost) {
      links = transport::test::lazy(std::move(links), 0, 2, kShape.channels);
      transport::test::fail_links(0, 1);
    }
    runner = std::make_unique<Runner>(*links, board, watch, RunnerOptions{});
    queue = std::make_unique<Queue>(*runner);
  }

  static board::Places places(bool two_hosts) {
    if (!two_hosts) return {};
    return {.hosts = base::HostMap({0, 1}), .names = {"a", "b"}};
  }
  void recv(int32_t* value, std::shared_ptr<Work::State> work) const {
    std::list<Operation> none;
    std::list<Transfer> message = recv_of(value, std::move(work));
    queue->push(none, message);
  }
  void send_from_peer(int channel, int32_t value, uint64_t word) const {
    transport::Sender& sender = peer_links->sender(channel, 0);
    std::byte* const slot = sender.try_acquire(sizeof(value));
    std::memcpy(slot, &value, sizeof(value));
    REQUIRE(sender.try_publish(sizeof(value), word));
  }
  void send_message_from_peer(int32_t value) const {
    send_from_peer(1, value, board::message_word(DataType::kInt32, 1));  // channel 1 is the lanes'
  }
  void leave_as_peer() const {
    peer_board.state(1).life.store(static_cast<uint32_t>(board::Life::kGone));
  }

  transport::Segment segment;
  board::BoardMemory board_memory;
  std::unique_ptr<transport::Transport> links, peer_links;
  board::Board board, peer_board;
  board::Watch watch;
  std::unique_ptr<Runner> runner;
  std::unique_ptr<Queue> queue;
};

void advance_until(Queue& queue, const std::function<bool()>& happened) {
  const int64_t limit_ns = base::now_ns() + 30'000'000'000;
  while (!happened()) {
    REQUIRE(base::now_ns() < limit_ns);
    queue.advance(false);
  }
}

/// A communicator whose only call fails; it must learn something before it can report the failure.
struct FailingCall {
  Setting setting{};
  /// The call is a message, or else an operation that receives a slot of another one.
  bool is_message = true;
  bool raises_at_once = false;
  /// What it waits for comes.
  std::function<void(const TwoRanks&)> tell;
  const char* says;
};

std::shared_ptr<const Prepared> all_reduce_of_one() {
  comm::Plans plans({.ranks = 2,
                     .rank = 0,
                     .channels = 1,
                     .depth = 4,
                     .publish_depth = 0,
                     .slot_bytes = 4096,
                     .publish_slot_bytes = 0,
                     .profile = tuner::shared_memory_profile(),
                     .available = {}});
  return plans.find({.call = board::all_reduce_call(1)}).value();
}

}  // namespace

// The last message of a rank that leaves is found by a second look of the wait itself; an error
// follows. The moment in which its Work has ended and nobody holds it any more is the caller's: the
// queue is empty, and so the runner is the caller's again.
TEST_CASE("a queue that fails does not touch its runner when everything of it has ended") {
  bool came = false;
  TwoRanks* ranks = nullptr;
  TwoRanks two({.find_dead = [&](const board::Board&) {
    if (std::exchange(came, true)) return -1;
    ranks->send_message_from_peer(17);
    ranks->leave_as_peer();
    return -1;
  }});
  ranks = &two;
  int32_t value = 0, later = 0;
  bool empty = false;
  std::shared_ptr<Work::State> work(new Work::State, [&](Work::State* state) {
    empty = two.queue->empty();
    std::list<Transfer> message = recv_of(&later, nullptr);
    two.runner->lanes().push(message);  // as a blocking call does
    delete state;
  });
  two.recv(&value, std::move(work));
  while (value == 0) two.queue->advance(true);
  REQUIRE_FALSE(two.queue->empty());  // the end of the message has not been reported yet
  (void)two.peer_board.raise({Code::kAborted, "by rank 1"});
  two.queue->advance(true);
  CHECK(empty);
  CHECK(two.queue->empty());
  CHECK_FALSE(two.runner->lanes().empty());  // the caller's own message is still there
}

// The thread that moves this queue has the queues of other communicators to move, too. Over UCX the
// connection to a rank that leaves can be refused before its agent, which looks every 100 ms, has told
// this host's.
TEST_CASE("a rank that fails stops at once, and holds up no other communicator while it waits") {
  const FailingCall cases[] = {
      // The agent of rank 0's host is silent; then its verdict comes.
      {.setting = {.find_dead = [](const board::Board&) { return 1; }, .two_hosts = true},
       .raises_at_once = true,
       .tell =
           [](const TwoRanks& two) {
             board::Mirror(two.board).decide({1, Status(Code::kAborted, "rank 1 aborted")});
           },
       .says = "rank 1 aborted"},
      // Why the connection is lost is not known yet; then it is known that the rank has left.
      {.setting = {.lost = true},
       .tell = [](const TwoRanks& two) { two.leave_as_peer(); },
       .says = "rank 1 left the communicator"},
      // What the other host's rank has called is not known yet; then its row comes.
      {.setting = {.two_hosts = true},
       .is_message = false,
       .tell =
           [](const TwoRanks& two) {
             board::Board peer(two.board_memory.base(), 2, 1, "", TwoRanks::places(true));
             peer.post(1, board::all_reduce_call(9), {}, {});
             board::Mirror(two.board).show_agent(board::FirstError::kAgentEnded);
           },
       .says = "rank 1 called all_reduce(float, sum, count 9)"}};
  for (const FailingCall& failing : cases) {
    INFO(failing.says);
    TwoRanks failed(failing.setting), other;
    int32_t in = 1, out = 0;
    const auto work = std::make_shared<Work::State>();
    if (failing.is_message) {
      failed.recv(&out, work);
    } else {
      std::list<Operation> operations;
      std::list<Transfer> none;
      Operation& operation = operations.emplace_back();
      operation.keep_alive = all_reduce_of_one();
      operation.prepared = operation.keep_alive.get();
      operation.in = reinterpret_cast<const std::byte*>(&in);
      operation.out = reinterpret_cast<std::byte*>(&out);
      operation.timeout_ns = 60'000'000'000;
      operation.work = work;
      failed.send_from_peer(0, 5, 99);
      failed.queue->push(operations, none);
    }
    advance_until(*failed.queue, [&] { return failed.peer_board.has_withdrawn(0); });
    CHECK(failed.board.has_error() == failing.raises_at_once);
    CHECK_FALSE(work->ended);

    int32_t value = 0;
    other.recv(&value, std::make_shared<Work::State>());
    other.send_message_from_peer(17);
    advance_until(*other.queue, [&] { return other.queue->empty(); });
    CHECK(value == 17);
    failed.queue->advance(false);
    CHECK_FALSE(work->ended);

    failing.tell(failed);
    advance_until(*failed.queue, [&] { return failed.queue->empty(); });
    CHECK_THAT(work->status.message(), testing::contains(failing.says));
  }
}

}  // namespace rondo::engine
