// Point-to-point messages and groups: any order, between any ranks, without deadlock; beside
// collectives; and what happens when the two ends do not fit, or one of them is gone.
#include <signal.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "tests/comm/communicator/worlds.hpp"

namespace rondo::testing {
namespace {

/// What rank `from` sends rank `to` as its message number `k`.
std::vector<int32_t> message(int from, int to, size_t k, size_t count) {
  std::vector<int32_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(),
            from * 1000003 + to * 10007 + static_cast<int>(k * 101));
  return numbers;
}

struct Box {
  Box(size_t size, bool library) : count(size), buffer(size * 4, library) {}
  size_t count;
  Buffer buffer;
  void put(const std::vector<int32_t>& numbers) {
    if (count > 0) std::memcpy(buffer.data(), numbers.data(), count * 4);
  }
  void expect_is(const std::vector<int32_t>& numbers, const std::string& what) {
    expect(count == 0 || std::memcmp(buffer.data(), numbers.data(), count * 4) == 0,
           what + ": another message than was sent");
    buffer.check_guards(what);
  }
};

// Nothing, inside a header line, a slot, several slots, beyond the FIFO.
const std::vector<size_t> kCounts =
    kSanitized ? std::vector<size_t>{0, 15, 1000, 66000}
               : std::vector<size_t>{0, 1, 14, 15, 1000, 32768, 32769, 300007};

}  // namespace

TEST_CASE("a message arrives, whatever its size, in both kinds of memory") {
  run_each({2, 3, 5}, [](Communicator& comm) {
    const int n = comm.size(), r = comm.rank(), next = (r + 1) % n, prev = (r + n - 1) % n;
    for (const size_t count : kCounts) {
      for (const bool library : {false, true}) {
        // Round the ring; the first rank starts.
        Box box(count, library), got(count, library);
        const std::vector<int32_t> sent = message(0, 0, library ? 1 : 0, count);
        box.put(sent);
        if (r == 0) expect_ok(comm.send(box.buffer.data(), count, kInt, next), "send");
        expect_ok(comm.recv(got.buffer.data(), count, kInt, prev), "recv");
        got.expect_is(sent, std::to_string(count) + " from the rank before");
        if (r != 0) expect_ok(comm.send(got.buffer.data(), count, kInt, next), "send");
      }
    }
  });
}

TEST_CASE("in a group everybody sends to everybody, itself included, in any order") {
  for (const bool asynchronous : {false, true}) {
    run_exhaustively({1, 2, 3, 4, 7}, {}, [&](Communicator& comm) {
      const int n = comm.size(), r = comm.rank();
      std::mt19937 random(static_cast<unsigned>(r) + 5);
      for (const size_t count : kCounts) {
        // Three messages for each pair, each rank's calls in an order of its own; those to one peer
        // stay in theirs.
        constexpr size_t kEach = 3;
        std::vector<std::unique_ptr<Box>> out, in;
        std::vector<std::pair<bool, int>> calls;  // whether it sends, and the peer
        for (int p = 0; p < n; ++p) {
          for (size_t k = 0; k < kEach; ++k) {
            out.push_back(std::make_unique<Box>(count + k, k == 1));
            out.back()->put(message(r, p, k, count + k));
            in.push_back(std::make_unique<Box>(count + k, k == 2));
            calls.emplace_back(true, p);
            calls.emplace_back(false, p);
          }
        }
        std::shuffle(calls.begin(), calls.end(), random);
        std::vector<size_t> sent(static_cast<size_t>(n)), received(static_cast<size_t>(n));
        std::vector<Work> works;
        if (!asynchronous) expect_ok(comm.group_start(), "group_start");
        for (const auto& [sends, peer] : calls) {
          const auto p = static_cast<size_t>(peer);
          Box& box = sends ? *out[p * kEach + sent[p]++] : *in[p * kEach + received[p]++];
          void* const data = box.buffer.data();
          if (asynchronous) {
            works.push_back(sends ? comm.send_async(data, box.count, kInt, peer)
                                  : comm.recv_async(data, box.count, kInt, peer));
          } else {
            expect_ok(sends ? comm.send(data, box.count, kInt, peer)
                            : comm.recv(data, box.count, kInt, peer),
                      "a message of the group");
          }
        }
        if (!asynchronous) expect_ok(comm.group_end(), "group_end");
        expect_ok(wait_all(works), "works");
        for (int p = 0; p < n; ++p) {
          for (size_t k = 0; k < kEach; ++k) {
            in[static_cast<size_t>(p) * kEach + k]->expect_is(
                message(p, r, k, count + k), std::to_string(count) + " from " + std::to_string(p));
          }
        }
      }
    });
  }
}

TEST_CASE("a group holds several collectives and messages, and order does not matter") {
  for (const int kind : {0, 1, 2}) {  // blocking, asynchronous, mixed
    run_each({2, 3, 5}, [&](Communicator& comm) {
      const int n = comm.size(), r = comm.rank(), next = (r + 1) % n, prev = (r + n - 1) % n;
      const size_t count = 200003;
      for (int turn = 0; turn < 4; ++turn) {
        std::vector<int32_t> sum(count, r + 1), all(static_cast<size_t>(n)), own{r};
        const std::vector<int32_t> out = message(r, next, 0, count);
        std::vector<int32_t> in(count);
        std::vector<Work> works;
        const auto messages = [&] {
          if (kind == 0) {
            expect_ok(comm.send(out.data(), count, kInt, next), "send");
            expect_ok(comm.recv(in.data(), count, kInt, prev), "recv");
          } else {
            works.push_back(comm.send_async(out.data(), count, kInt, next));
            works.push_back(comm.recv_async(in.data(), count, kInt, prev));
          }
        };
        expect_ok(comm.group_start(), "group_start");
        // Some ranks issue their messages first, some between, some last.
        if ((r + turn) % 3 == 0) messages();
        if (kind == 1) {
          works.push_back(comm.all_reduce_async(sum.data(), sum.data(), count, kInt));
        } else {
          expect_ok(comm.all_reduce(sum.data(), sum.data(), count, kInt), "sum");
        }
        if ((r + turn) % 3 == 1) messages();
        expect_ok(comm.all_gather(own.data(), all.data(), 1, kInt), "all_gather");
        if ((r + turn) % 3 == 2) messages();
        expect_eq(sum[count - 1], r + 1, "nothing has moved before group_end");
        expect_ok(comm.group_end(), "group_end");
        if (kind != 1) expect_eq(sum[count - 1], n * (n + 1) / 2, "sum");
        expect_ok(wait_all(works), "works");
        expect_eq(sum[count - 1], n * (n + 1) / 2, "sum");
        expect(in == message(prev, r, 0, count), "another message");
        for (int p = 0; p < n; ++p) expect_eq(all[static_cast<size_t>(p)], p, "gathered");
      }
    });
  }
}

TEST_CASE("messages through tiny slots, over a pace, and beside asynchronous collectives") {
  for (const std::string pace : {"", "1GB/s,20us"}) {
    Config config = with(&Config::slots, 2);
    config.slot_bytes = pace.empty() ? 64 : 4096;
    config.pace = pace;
    run_ok(How::kForks, 3, config, [](Communicator& comm) {
      const int n = comm.size(), r = comm.rank();
      const size_t count = 5000;
      std::vector<int32_t> sum(count, 1);
      Work work = comm.all_reduce_async(sum.data(), sum.data(), count, kInt);
      const std::vector<int32_t> out = message(r, (r + 1) % n, 0, count);
      std::vector<int32_t> in(count);
      // Blocking: each waits for its own counterpart only. Rank 0 receives first.
      if (r == 0) expect_ok(comm.recv(in.data(), count, kInt, n - 1), "recv");
      expect_ok(comm.send(out.data(), count, kInt, (r + 1) % n), "send");
      if (r != 0) expect_ok(comm.recv(in.data(), count, kInt, r - 1), "recv");
      expect_ok(work.wait(), "all_reduce");
      expect(in == message((r + n - 1) % n, r, 0, count), "another message");
      expect_eq(sum[0], n, "sum");
    });
  }
}

TEST_CASE("ends that do not fit are told apart, on every rank") {
  for (const auto& [sends, room, type] : {std::tuple<size_t, size_t, DataType>{12, 10, kInt},
                                          {10, 0, kInt},
                                          {10, 10, DataType::kInt64}}) {
    const std::string words = "rank 0 sends " + std::to_string(sends) +
                              " int32 to rank 1, whose recv has room for " + std::to_string(room) +
                              " " + std::string(name(type));
    run_each({2, 3}, [&, sends = sends, room = room, type = type](Communicator& comm) {
      std::vector<int64_t> data(1000);
      Status status;
      if (comm.rank() == 0) status = comm.send(data.data(), sends, kInt, 1);
      if (comm.rank() == 1) status = comm.recv(data.data(), room, type, 0);
      expect_error(error_of_barriers(comm, status, 100), Code::kMismatch, words);
    });
  }
}

TEST_CASE("calls that make no sense are refused, and nothing is lost") {
  run_ok(How::kForks, 2, [](Communicator& comm) {
    std::vector<int32_t> data(8, 1);
    expect_refused(comm.send(data.data(), 8, kInt, 2), "rank 2 is none of 2 ranks");
    expect_refused(comm.recv(data.data(), 8, kInt, -1), "rank -1");
    expect_refused(comm.send(nullptr, 8, kInt, 0), "null");
    expect_refused(comm.send(data.data(), 8, static_cast<DataType>(99), 0), "unknown data type 99");
    expect_refused(comm.send(data.data(), ~size_t{0}, kInt, 0), "overflows");
    expect_refused(comm.recv(data.data(), 8, kInt, comm.rank()), "waits for ever");
    expect_refused(comm.group_end(), "without group_start");
    expect_ok(comm.group_start(), "group_start");
    expect_ok(comm.send(data.data(), 8, kInt, comm.rank()), "send");
    expect_refused(comm.group_end(), "sends itself 1 messages and receives 0");
    expect_ok(comm.group_start(), "group_start");
    Work work = comm.all_reduce_async(data.data(), data.data(), 8, kInt);
    expect_refused(comm.send(data.data(), 8, kInt, 7), "rank 7");
    expect_refused(comm.group_end(), "rank 7");
    expect_refused(work.wait(), "rank 7");
    // The communicator works on.
    expect_ok(comm.all_reduce(data.data(), data.data(), 8, kInt), "all_reduce");
    expect_eq(data[0], 2, "sum");
  });
}

TEST_CASE("groups inside a group are part of it") {
  run_each({2}, [&](Communicator& comm) {
    const int other = 1 - comm.rank();
    const std::vector<int32_t> out(1 << 18, comm.rank() + 1);
    std::vector<int32_t> in(out.size());
    int32_t sum = comm.rank() + 1;
    expect_ok(comm.group_start(), "outer start");
    expect_ok(comm.group_start(), "first inner start");
    expect_ok(comm.send(out, other), "send");
    // Alone it would wait for the other rank's recv, which is only called afterwards.
    expect_ok(comm.group_end(), "first inner end");
    expect_ok(comm.group_start(), "second inner start");
    expect_ok(comm.recv(in, other), "recv");
    expect_ok(comm.all_reduce(&sum, &sum, 1, kInt), "all_reduce");
    expect_ok(comm.group_end(), "second inner end");
    expect_eq(sum, comm.rank() + 1, "nothing has begun, so the sum");
    expect_ok(comm.group_end(), "outer end");
    expect_eq(in.back(), other + 1, "last element");
    expect_eq(sum, 3, "sum");
    expect(!comm.group_end().ok(), "an end too many");
    expect_ok(comm.group_start(), "outer start");
    expect_ok(comm.group_start(), "inner start");
    expect(!comm.recv(in.data(), 1, kInt, 2).ok(), "a rank that is none");
    expect_ok(comm.group_end(), "inner end");
    expect(!comm.group_end().ok(), "what was refused inside spoils the whole");
  });
}

TEST_CASE("an abandoned group runs nothing, and says why") {
  run_ok(How::kThreads, 2, [&](Communicator& comm) {
    const int other = 1 - comm.rank();
    int32_t in = -1, out = 5;
    const auto expect_reason = [](const Status& status) {
      expect_error(status, Code::kInvalidArgument, "the group was abandoned: no more data");
    };
    expect(!comm.group_abandon("none").ok(), "without a group");
    expect_ok(comm.group_start(), "start");
    expect_ok(comm.send(&out, 1, kInt, other), "send");
    Work received = comm.recv_async(&in, 1, kInt, other);
    expect_ok(comm.group_abandon("no more data"), "abandon");
    expect_reason(received.wait());
    expect(!comm.group_end().ok(), "it has ended");
    expect_ok(comm.group_start(), "outer start");
    expect_ok(comm.group_start(), "inner start");
    received = comm.recv_async(&in, 1, kInt, other);
    expect_ok(comm.group_abandon("no more data"), "abandon the inner one");
    expect(!comm.finish().ok(), "the outer one is open");
    expect_reason(comm.group_end());
    expect_reason(received.wait());
    expect_eq(in, -1, "nothing was received");
    expect_ok(comm.all_reduce(&out, &out, 1, kInt), "the communicator is whole");
    expect_eq(out, 10, "sum");
  });
}

TEST_CASE("of two messages that end in the same moment, one well and one badly, both end",
          "[one_host]") {
  for (int turn = 0; turn < 10; ++turn) {
    std::atomic<int> sent{0};
    run_ok(How::kThreads, 3, [&](Communicator& comm) {
      std::vector<int32_t> data(100), other(100);
      if (comm.rank() != 0) {
        expect_ok(comm.send(data.data(), 100, kInt, 0), "send");
        sent.fetch_add(1);
        return expect_error(error_of_barriers(comm), Code::kMismatch);
      }
      await("both are there", [&] { return sent.load() == 2; });
      Work good = comm.recv_async(data.data(), 100, kInt, 1);
      Work bad = comm.recv_async(other.data(), 99, kInt, 2);
      expect_error(bad.wait(), Code::kMismatch);
      const Status status = good.wait();
      expect(status.ok() || status.code() == Code::kMismatch, status.to_string());
    });
  }
}

TEST_CASE("a collective that a group cannot do leaves its messages whole", "[mapped]") {
  for (const bool asynchronous : {false, true}) {
    run_ok(How::kForks, 2, [&](Communicator& comm) {
      const int other = 1 - comm.rank();
      std::vector<int32_t> out(300000), in(300000), ones(1000, 1), sum(1000);
      for (int32_t turn = 0; turn < 5; ++turn) {
        std::fill(out.begin(), out.end(), 10 * turn + comm.rank());
        std::vector<Work> works;
        expect_ok(comm.group_start(), "group_start");
        if (asynchronous) {
          works.push_back(comm.send_async(out, other));
        } else {
          expect_ok(comm.send(out, other), "send");
        }
        // Needs library memory, which this is not.
        expect_ok(comm.all_reduce(ones.data(), sum.data(), 1000, kInt, ReduceOp::kSum,
                                  {.algorithm = Algorithm::kTwoShotDirect}),
                  "all_reduce");
        expect_ok(comm.all_reduce(ones.data(), sum.data(), 1000, kInt), "all_reduce");
        expect_ok(comm.recv(in, other), "recv");
        expect_error(comm.group_end(), Code::kUnavailable);
        expect_ok(wait_all(works), "send");
        expect(in == std::vector<int32_t>(in.size(), 10 * turn + other), "another message");
        expect_eq(sum[999], 2, "what the group could do");
      }
    });
  }
}

TEST_CASE("a message on its way when its sender leaves arrives, also over a slow link") {
  run_ok(How::kForks, 2, with(&Config::pace, "100MB/s,5ms"), [](Communicator& comm) {
    std::vector<int32_t> data(20000, comm.rank() + 1);
    if (comm.rank() == 0) return expect_ok(comm.send(data.data(), 20000, kInt, 1), "send");
    expect_ok(comm.recv(data.data(), 20000, kInt, 0), "recv");
    expect_eq(data[19999], 1, "data");
  });
}

TEST_CASE("a collective's deadline begins with it, not with a message that waited before") {
  run_ok(How::kForks, 2, [](Communicator& comm) {
    int32_t message = comm.rank(), one = 1;
    Work waiting = comm.recv_async(&message, 1, kInt, 1 - comm.rank());
    // Rank 0 calls when the message has waited for longer than the deadline, and then waits for
    // rank 1 for as long as a wrong deadline would need to be noticed.
    const auto timeout = 1500ms, window = 150ms;
    const auto passes = [](std::chrono::milliseconds time) {
      return [end = Clock::now() + time] { return Clock::now() > end; };
    };
    if (comm.rank() == 0) await("the message has waited", passes(timeout + window));
    if (comm.rank() == 1) {
      await("rank 0 waits in the collective", [&] {
        return comm.flight_record().find("all_reduce(int32, sum, count 1)  <- in progress") !=
               std::string::npos;
      });
      await("rank 0 has waited in the collective", passes(window));
    }
    expect_ok(comm.all_reduce(&one, &one, 1, kInt, ReduceOp::kSum, {.stall_timeout = timeout}),
              "all_reduce");
    expect_ok(comm.send(&one, 1, kInt, 1 - comm.rank()), "send");
    expect_ok(waiting.wait(), "recv");
  });
}

TEST_CASE("the flight record shows the messages with which ranks wait, until they have ended",
          "[one_host]") {
  run_ok(How::kForks, 3, [](Communicator& comm) {
    const int r = comm.rank();
    std::vector<int32_t> large(1'000'000, r), small(10, r);
    const auto shown = [&](const std::string& what) {
      await(what, [&] { return comm.flight_record().find(what) != std::string::npos; });
    };
    if (r == 0) {
      // Fills its FIFO, and waits for the rest of the room; more waits behind it.
      std::vector<Work> sends;
      sends.push_back(comm.send_async(large, 2));
      sends.push_back(comm.send_async(small, 2));
      expect_ok(comm.recv(small, 1), "recv");
      expect_ok(wait_all(sends), "sends");
    } else if (r == 1) {
      shown("recv(int32, count 10) from rank 1: 0 of 40 bytes, for ");
      shown("send(int32, count 1000000) to rank 2: ");
      shown(" of 4000000 bytes, for ");
      shown("; 1 more queued after it  <- pending");
      const std::string record = comm.flight_record();
      expect(record.find(" 0 of 4000000 bytes") == std::string::npos, record);
      expect_ok(comm.send(small, 0), "send");
      int32_t go = 1;
      expect_ok(comm.send(&go, 1, kInt, 2), "send");
    } else {
      int32_t go = 0;
      expect_ok(comm.recv(&go, 1, kInt, 1), "recv");
      expect_ok(comm.recv(large, 0), "recv");
      expect_ok(comm.recv(small, 0), "recv");
    }
    // Nobody is in a message any more when all have come to the second.
    for (int i = 0; i < 2; ++i) expect_ok(comm.barrier(), "barrier");
    const std::string record = comm.flight_record();
    expect(record.find("pending") == std::string::npos, record);
  });
}

TEST_CASE("a group that never ended ends with its communicator") {
  const TempDirectory directory;
  auto comm = std::make_unique<Communicator>(created(world_config(directory.path(), 0, 1)));
  int32_t value = 1, other = 0;
  REQUIRE(comm->group_start().ok());
  Work sum = comm->all_reduce_async(&value, &value, 1, kInt);
  Work send = comm->send_async(&value, 1, kInt, 0);
  Work receive = comm->recv_async(&other, 1, kInt, 0);
  CHECK(!sum.test());
  comm.reset();
  for (Work* work : {&sum, &send, &receive}) {
    expect_error(work->wait(), Code::kInvalidArgument, "inside a group");
  }
}

TEST_CASE("a rank that is killed ends every wait for its messages, soon") {
  for (const int size : {2, 3, 5}) {
    for (const bool library : {false, true}) {
      WorldGang gang(size, [&](Communicator& comm, Link& link) {
        Buffer data(8 << 20, library);
        link.announce("ready");
        if (comm.rank() == 0) link.await("never");
        // One waits for data, the others for room.
        expect_ok(comm.group_start(), "group_start");
        if (comm.rank() == 1) (void)comm.recv(data.data(), 1 << 20, kInt, 0);
        (void)comm.send(data.data() + (4 << 20), 1 << 20, kInt, 0);
        expect_error(comm.group_end(), Code::kPeerDied, "rank 0");
      });
      gang.await_all("ready");
      gang.kill(0, SIGKILL);
      const double killed = gang.seconds();
      const auto results = gang.join();
      require_ok_but({0}, results);
      for (const RankResult& result : results) CHECK(result.seconds - killed < kSoonS);
    }
  }
}

// A first message to another host needs its rank's help (transport/ucx), and so waits for it.
TEST_CASE("what was sent before leaving arrives, and what never was is missed", "[one_host]") {
  WorldGang gang(2, [&](Communicator& comm, Link& link) {
    int32_t value = 7;
    if (comm.rank() == 0) return expect_ok(comm.send(&value, 1, kInt, 1), "send");
    link.await("rank 0 has left");
    value = 0;
    expect_ok(comm.recv(&value, 1, kInt, 0), "recv");
    expect_eq(value, 7, "value");
    expect_error(comm.recv(&value, 1, kInt, 0), Code::kPeerDied, "rank 0 left");
  });
  gang.await_end(0);
  gang.tell(1, "rank 0 has left");
  gang.require_ok();
}

TEST_CASE("a recv from a rank that never sends ends at the deadline") {
  run_ok(How::kForks, 3, with(&Config::stall_timeout, 300ms), [](Communicator& comm) {
    int32_t value = 0;
    if (comm.rank() == 2) return await("the error", [&] { return !comm.status().ok(); });
    expect_error(comm.recv(&value, 1, kInt, comm.rank() + 1), Code::kTimeout, "rank 2");
  });
}

TEST_CASE("ranks that all send before they receive are told what to do") {
  run_ok(How::kForks, 2, [](Communicator& comm) {
    std::vector<int32_t> data(1 << 20);
    const Status status = comm.send(data, 1 - comm.rank(), {.stall_timeout = 300ms});
    expect_error(status, Code::kTimeout, "put its sends and recvs into one group");
  });
}

TEST_CASE("who waits in a message while the others are in a collective is named with it") {
  run_ok(How::kForks, 3, [](Communicator& comm) {
    std::vector<int32_t> data(1 << 20);
    const Status status =
        comm.rank() == 0 ? comm.send(data, 1) : comm.barrier({.stall_timeout = 300ms});
    expect_error(status, Code::kTimeout,
                 "has not called it: it waits in send(int32, count 1048576) to rank 1");
  });
}

TEST_CASE("a message's own timeout counts beside others that may take longer") {
  run_ok(How::kForks, 3, [](Communicator& comm) {
    if (comm.rank() != 0) return expect_error(comm.barrier(), Code::kTimeout);
    int32_t a = 0, b = 0;
    const Work patient = comm.recv_async(&a, 1, kInt, 1);
    Work urgent = comm.recv_async(&b, 1, kInt, 2, {.stall_timeout = 300ms});
    expect_error(urgent.wait(), Code::kTimeout, "from rank 2");
  });
}

}  // namespace rondo::testing
