// Point-to-point messages and groups: any order, between any ranks, without deadlock; beside
// collectives; and what happens when the two ends do not fit, or one of them is gone.
#include <signal.h>

#include <algorithm>
#include <random>
#include <thread>

#include "tests/comm/communicator/await.hpp"
#include "tests/comm/communicator/world.hpp"

namespace rondo::testing {
namespace {

/// What rank `from` sends rank `to` as its message number `k`: `count` numbers.
int32_t number(int from, int to, size_t k, size_t i) {
  return static_cast<int32_t>(from * 1000003 + to * 10007 + static_cast<int>(k * 101 + i));
}

std::vector<int32_t> message(int from, int to, size_t k, size_t count) {
  std::vector<int32_t> numbers(count);
  for (size_t i = 0; i < count; ++i) numbers[i] = number(from, to, k, i);
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

std::string between(int from, int to, size_t count) {
  return std::to_string(count) + " from rank " + std::to_string(from) + " to rank " +
         std::to_string(to);
}

}  // namespace

TEST_CASE("a message arrives, whatever its size, in both kinds of memory") {
  for (const How how : kHows) {
    for (const int size : {2, 3, 5}) {
      require_all_ok(run_world(how, size, [](Communicator& comm) {
        const int n = comm.size(), r = comm.rank();
        size_t k = 0;
        for (const size_t count : kCounts) {
          for (const bool library : {false, true}) {
            ++k;
            // Round the ring; the first rank starts.
            Box box(count, library);
            const int next = (r + 1) % n, prev = (r + n - 1) % n;
            if (r == 0) {
              box.put(message(0, 0, k, count));
              expect_ok(comm.send(box.buffer.data(), count, DataType::kInt32, next), "send");
            }
            Box got(count, library);
            expect_ok(comm.recv(got.buffer.data(), count, DataType::kInt32, prev), "recv");
            got.expect_is(message(0, 0, k, count), between(prev, r, count));
            if (r != 0) {
              expect_ok(comm.send(got.buffer.data(), count, DataType::kInt32, next), "send");
            }
          }
        }
      }));
    }
  }
}

TEST_CASE("in a group everybody sends to everybody, itself included, in any order") {
  for (const How how : kHows) {
    for (const int size : {1, 2, 3, 4, 7}) {
      for (const bool asynchronous : {false, true}) {
        require_all_ok(run_world(how, size, [&](Communicator& comm) {
          const int n = comm.size(), r = comm.rank();
          std::mt19937 random(static_cast<unsigned>(r) + 5);
          for (const size_t count : kCounts) {
            // Three messages for each pair, each rank's calls in an order of its own; those to one
            // peer stay in theirs.
            constexpr size_t kEach = 3;
            std::vector<std::unique_ptr<Box>> out, in;
            struct Call {
              bool sends;
              int peer;
            };
            std::vector<Call> calls;
            for (int p = 0; p < n; ++p) {
              for (size_t k = 0; k < kEach; ++k) {
                out.push_back(std::make_unique<Box>(count + k, k == 1));
                out.back()->put(message(r, p, k, count + k));
                in.push_back(std::make_unique<Box>(count + k, k == 2));
                calls.push_back({true, p});
                calls.push_back({false, p});
              }
            }
            std::shuffle(calls.begin(), calls.end(), random);
            std::vector<size_t> sent(static_cast<size_t>(n)), received(static_cast<size_t>(n));
            std::vector<Work> works;
            if (!asynchronous) expect_ok(comm.group_start(), "group_start");
            for (const Call& call : calls) {
              const auto p = static_cast<size_t>(call.peer);
              Box& box = call.sends ? *out[p * kEach + sent[p]++] : *in[p * kEach + received[p]++];
              if (call.sends && asynchronous) {
                works.push_back(
                    comm.send_async(box.buffer.data(), box.count, DataType::kInt32, call.peer));
              } else if (asynchronous) {
                works.push_back(
                    comm.recv_async(box.buffer.data(), box.count, DataType::kInt32, call.peer));
              } else if (call.sends) {
                expect_ok(comm.send(box.buffer.data(), box.count, DataType::kInt32, call.peer),
                          "send");
              } else {
                expect_ok(comm.recv(box.buffer.data(), box.count, DataType::kInt32, call.peer),
                          "recv");
              }
            }
            if (!asynchronous) expect_ok(comm.group_end(), "group_end");
            for (Work& work : works) expect_ok(work.wait(), "work");
            for (int p = 0; p < n; ++p) {
              for (size_t k = 0; k < kEach; ++k) {
                in[static_cast<size_t>(p) * kEach + k]->expect_is(message(p, r, k, count + k),
                                                                  between(p, r, count + k));
              }
            }
          }
        }));
      }
    }
  }
}

TEST_CASE("a group holds several collectives and messages, and order does not matter") {
  for (const How how : kHows) {
    for (const int size : {2, 3, 5}) {
      for (const int kind : {0, 1, 2}) {  // blocking, asynchronous, mixed
        require_all_ok(run_world(how, size, [&](Communicator& comm) {
          const int n = comm.size(), r = comm.rank();
          const size_t count = 200003;
          for (int turn = 0; turn < 4; ++turn) {
            const int next = (r + 1) % n, prev = (r + n - 1) % n;
            std::vector<int32_t> sum(count, r + 1), all(static_cast<size_t>(n)), own{r};
            const std::vector<int32_t> out = message(r, next, 0, count);
            std::vector<int32_t> in(count);
            std::vector<Work> works;
            const auto messages = [&] {
              if (kind == 0) {
                expect_ok(comm.send(out.data(), count, DataType::kInt32, next), "send");
                expect_ok(comm.recv(in.data(), count, DataType::kInt32, prev), "recv");
              } else {
                works.push_back(comm.send_async(out.data(), count, DataType::kInt32, next));
                works.push_back(comm.recv_async(in.data(), count, DataType::kInt32, prev));
              }
            };
            expect_ok(comm.group_start(), "group_start");
            // Some ranks issue their messages first, some between, some last.
            if ((r + turn) % 3 == 0) messages();
            if (kind == 1) {
              works.push_back(
                  comm.all_reduce_async(sum.data(), sum.data(), count, DataType::kInt32));
            } else {
              expect_ok(comm.all_reduce(sum.data(), sum.data(), count, DataType::kInt32), "sum");
            }
            if ((r + turn) % 3 == 1) messages();
            expect_ok(comm.all_gather(own.data(), all.data(), 1, DataType::kInt32), "all_gather");
            if ((r + turn) % 3 == 2) messages();
            expect_eq(sum[count - 1], r + 1, "nothing has moved before group_end");
            expect_ok(comm.group_end(), "group_end");
            if (kind != 1) expect_eq(sum[count - 1], n * (n + 1) / 2, "sum");
            for (Work& work : works) expect_ok(work.wait(), "work");
            expect_eq(sum[count - 1], n * (n + 1) / 2, "sum");
            expect(in == message(prev, r, 0, count), "another message");
            for (int p = 0; p < n; ++p) expect_eq(all[static_cast<size_t>(p)], p, "gathered");
          }
        }));
      }
    }
  }
}

TEST_CASE("messages through tiny slots, over a pace, and beside asynchronous collectives") {
  for (const std::string pace : {"", "1GB/s,20us"}) {
    Config config;
    config.slots = 2;
    config.slot_bytes = pace.empty() ? 64 : 4096;
    config.pace = pace;
    require_all_ok(run_world(
        How::kForks, 3,
        [](Communicator& comm) {
          const int n = comm.size(), r = comm.rank();
          const size_t count = 5000;
          std::vector<int32_t> sum(count, 1);
          Work work = comm.all_reduce_async(sum.data(), sum.data(), count, DataType::kInt32);
          const std::vector<int32_t> out = message(r, (r + 1) % n, 0, count);
          std::vector<int32_t> in(count);
          // Blocking: each waits for its own counterpart only. Rank 0 receives first.
          if (r == 0) expect_ok(comm.recv(in.data(), count, DataType::kInt32, n - 1), "recv");
          expect_ok(comm.send(out.data(), count, DataType::kInt32, (r + 1) % n), "send");
          if (r != 0) expect_ok(comm.recv(in.data(), count, DataType::kInt32, r - 1), "recv");
          expect_ok(work.wait(), "all_reduce");
          expect(in == message((r + n - 1) % n, r, 0, count), "another message");
          expect_eq(sum[0], n, "sum");
        },
        config));
  }
}

TEST_CASE("ends that do not fit are told apart, on every rank") {
  for (const How how : kHows) {
    for (const int size : {2, 3}) {
      const auto disagree = [&](size_t sends, size_t expects, DataType type,
                                const std::string& words) {
        require_all_ok(run_world(how, size, [&](Communicator& comm) {
          std::vector<int64_t> data(1000);
          Status status;
          if (comm.rank() == 0) status = comm.send(data.data(), sends, DataType::kInt32, 1);
          if (comm.rank() == 1) status = comm.recv(data.data(), expects, type, 0);
          for (int turn = 0; turn < 100 && status.ok(); ++turn) status = comm.barrier();
          expect(status.code() == Code::kMismatch, status.to_string());
          expect(status.message().find(words) != std::string::npos, status.to_string());
        }));
      };
      disagree(10, 12, DataType::kInt32, "rank 0 sends 10 int32 to rank 1, which expects 12 int32");
      disagree(0, 12, DataType::kInt32, "rank 0 sends 0 int32 to rank 1, which expects 12 int32");
      disagree(10, 0, DataType::kInt32, "rank 0 sends 10 int32 to rank 1, which expects 0 int32");
      disagree(10, 10, DataType::kInt64, "rank 0 sends 10 int32 to rank 1, which expects 10 int64");
    }
  }
}

TEST_CASE("calls that make no sense are refused, and nothing is lost") {
  require_all_ok(run_world(How::kForks, 2, [](Communicator& comm) {
    std::vector<int32_t> data(8, 1);
    const auto refused = [](const Status& status, const std::string& words) {
      expect(status.code() == Code::kInvalidArgument, status.to_string());
      expect(status.message().find(words) != std::string::npos, status.to_string());
    };
    refused(comm.send(data.data(), 8, DataType::kInt32, 2), "rank 2 is none of 2 ranks");
    refused(comm.recv(data.data(), 8, DataType::kInt32, -1), "rank -1");
    refused(comm.send(nullptr, 8, DataType::kInt32, 0), "null");
    refused(comm.send(data.data(), 8, static_cast<DataType>(99), 0), "unknown data type 99");
    refused(comm.send(data.data(), ~size_t{0}, DataType::kInt32, 0), "overflows");
    refused(comm.recv(data.data(), 8, DataType::kInt32, comm.rank()), "waits for ever");
    refused(comm.group_end(), "without group_start");
    expect_ok(comm.group_start(), "group_start");
    expect_ok(comm.send(data.data(), 8, DataType::kInt32, comm.rank()), "send");
    refused(comm.group_end(), "sends itself 1 messages and receives 0");
    expect_ok(comm.group_start(), "group_start");
    Work work = comm.all_reduce_async(data.data(), data.data(), 8, DataType::kInt32);
    refused(comm.send(data.data(), 8, DataType::kInt32, 7), "rank 7");
    refused(comm.group_end(), "rank 7");
    refused(work.wait(), "rank 7");
    // The communicator works on.
    expect_ok(comm.all_reduce(data.data(), data.data(), 8, DataType::kInt32), "all_reduce");
    expect_eq(data[0], 2, "sum");
  }));
}

TEST_CASE("groups inside a group are part of it") {
  for (const How how : kHows) {
    require_all_ok(run_world(how, 2, [&](Communicator& comm) {
      const int other = 1 - comm.rank();
      const std::vector<int32_t> out(1 << 18, comm.rank() + 1);
      std::vector<int32_t> in(out.size());
      int32_t sum = comm.rank() + 1;
      expect_ok(comm.group_start(), "outer start");
      expect_ok(comm.group_start(), "first inner start");
      expect_ok(comm.send(out.data(), out.size(), DataType::kInt32, other), "send");
      // Alone it would wait for the other rank's recv, which is only called afterwards.
      expect_ok(comm.group_end(), "first inner end");
      expect_ok(comm.group_start(), "second inner start");
      expect_ok(comm.recv(in.data(), in.size(), DataType::kInt32, other), "recv");
      expect_ok(comm.all_reduce(&sum, &sum, 1, DataType::kInt32), "all_reduce");
      expect_ok(comm.group_end(), "second inner end");
      expect_eq(sum, comm.rank() + 1, "nothing has begun, so the sum");
      expect_ok(comm.group_end(), "outer end");
      expect_eq(in.back(), other + 1, "last element");
      expect_eq(sum, 3, "sum");
      expect(!comm.group_end().ok(), "an end too many");
      expect_ok(comm.group_start(), "outer start");
      expect_ok(comm.group_start(), "inner start");
      expect(!comm.recv(in.data(), 1, DataType::kInt32, 2).ok(), "a rank that is none");
      expect_ok(comm.group_end(), "inner end");
      expect(!comm.group_end().ok(), "what was refused inside spoils the whole");
    }));
  }
}

TEST_CASE("an abandoned group runs nothing, and says why") {
  require_all_ok(run_world(How::kThreads, 2, [&](Communicator& comm) {
    const int other = 1 - comm.rank();
    int32_t in = -1, out = 5;
    const auto expect_reason = [](const Status& status, const std::string& what) {
      expect(status.code() == Code::kInvalidArgument, what);
      expect(status.message().find("the group was abandoned: no more data") != std::string::npos,
             status.message());
    };
    expect(!comm.group_abandon("none").ok(), "without a group");
    expect_ok(comm.group_start(), "start");
    expect_ok(comm.send(&out, 1, DataType::kInt32, other), "send");
    Work received = comm.recv_async(&in, 1, DataType::kInt32, other);
    expect_ok(comm.group_abandon("no more data"), "abandon");
    expect_reason(received.wait(), "its Work");
    expect(!comm.group_end().ok(), "it has ended");
    expect_ok(comm.group_start(), "outer start");
    expect_ok(comm.group_start(), "inner start");
    received = comm.recv_async(&in, 1, DataType::kInt32, other);
    expect_ok(comm.group_abandon("no more data"), "abandon the inner one");
    expect(!comm.finish().ok(), "the outer one is open");
    expect_reason(comm.group_end(), "the outer one");
    expect_reason(received.wait(), "the inner Work");
    expect_eq(in, -1, "nothing was received");
    expect_ok(comm.all_reduce(&out, &out, 1, DataType::kInt32), "the communicator is whole");
    expect_eq(out, 10, "sum");
  }));
}

TEST_CASE("of two messages that end in the same moment, one well and one badly, both end",
          "[one_host]") {
  for (int turn = 0; turn < 10; ++turn) {
    std::atomic<int> sent{0};
    require_all_ok(run_world(How::kThreads, 3, [&](Communicator& comm) {
      std::vector<int32_t> data(100), other(100);
      if (comm.rank() != 0) {
        expect_ok(comm.send(data.data(), 100, DataType::kInt32, 0), "send");
        sent.fetch_add(1);
        Status status;
        while (status.ok()) status = comm.barrier();
        expect(status.code() == Code::kMismatch, status.to_string());
        return;
      }
      await("both are there", [&] { return sent.load() == 2; });
      Work good = comm.recv_async(data.data(), 100, DataType::kInt32, 1);
      Work bad = comm.recv_async(other.data(), 99, DataType::kInt32, 2);
      expect(bad.wait().code() == Code::kMismatch, bad.wait().to_string());
      const Status status = good.wait();
      expect(status.ok() || status.code() == Code::kMismatch, status.to_string());
    }));
  }
}

TEST_CASE("a collective that a group cannot do leaves its messages whole", "[mapped]") {
  for (const bool asynchronous : {false, true}) {
    require_all_ok(run_world(How::kForks, 2, [&](Communicator& comm) {
      const int other = 1 - comm.rank();
      std::vector<int32_t> out(300000), in(300000), ones(1000, 1), sum(1000);
      for (int32_t turn = 0; turn < 5; ++turn) {
        std::fill(out.begin(), out.end(), 10 * turn + comm.rank());
        std::vector<Work> works;
        expect_ok(comm.group_start(), "group_start");
        if (asynchronous) {
          works.push_back(comm.send_async(out.data(), out.size(), DataType::kInt32, other));
        } else {
          expect_ok(comm.send(out.data(), out.size(), DataType::kInt32, other), "send");
        }
        // Needs library memory, which this is not.
        expect_ok(comm.all_reduce(ones.data(), sum.data(), 1000, DataType::kInt32, ReduceOp::kSum,
                                  {.algorithm = Algorithm::kTwoShotDirect}),
                  "all_reduce");
        expect_ok(comm.all_reduce(ones.data(), sum.data(), 1000, DataType::kInt32), "all_reduce");
        expect_ok(comm.recv(in.data(), in.size(), DataType::kInt32, other), "recv");
        const Status status = comm.group_end();
        expect(status.code() == Code::kUnavailable, status.to_string());
        for (Work& work : works) expect_ok(work.wait(), "send");
        expect(std::all_of(in.begin(), in.end(), [&](int32_t v) { return v == 10 * turn + other; }),
               "another message");
        expect_eq(sum[999], 2, "what the group could do");
      }
    }));
  }
}

TEST_CASE("a message on its way when its sender leaves arrives, also over a slow link") {
  Config config;
  config.pace = "100MB/s,5ms";
  require_all_ok(run_world(
      How::kForks, 2,
      [](Communicator& comm) {
        std::vector<int32_t> data(20000, comm.rank() + 1);
        if (comm.rank() == 0) {
          expect_ok(comm.send(data.data(), data.size(), DataType::kInt32, 1), "send");
          return;
        }
        expect_ok(comm.recv(data.data(), data.size(), DataType::kInt32, 0), "recv");
        expect_eq(data[19999], 1, "data");
      },
      config));
}

TEST_CASE("a collective's deadline begins with it, not with a message that waited before") {
  require_all_ok(run_world(How::kForks, 2, [](Communicator& comm) {
    int32_t message = comm.rank(), one = 1;
    Work waiting = comm.recv_async(&message, 1, DataType::kInt32, 1 - comm.rank());
    // Rank 0 calls when the message has waited for longer than the deadline, and then waits for
    // rank 1 for as long as a wrong deadline would need to be noticed.
    const auto timeout = std::chrono::milliseconds(1500), window = std::chrono::milliseconds(150);
    const auto passes = [](std::chrono::milliseconds time) {
      return [end = std::chrono::steady_clock::now() + time] {
        return std::chrono::steady_clock::now() > end;
      };
    };
    if (comm.rank() == 0) await("the message has waited", passes(timeout + window));
    if (comm.rank() == 1) {
      await("rank 0 waits in the collective", [&] {
        return comm.flight_record().find("all_reduce(int32, sum, count 1)  <- in progress") !=
               std::string::npos;
      });
      await("rank 0 has waited in the collective", passes(window));
    }
    expect_ok(
        comm.all_reduce(&one, &one, 1, DataType::kInt32, ReduceOp::kSum, {.timeout = timeout}),
        "all_reduce");
    expect_ok(comm.send(&one, 1, DataType::kInt32, 1 - comm.rank()), "send");
    expect_ok(waiting.wait(), "recv");
  }));
}

TEST_CASE("the flight record shows the messages with which ranks wait, until they have ended",
          "[one_host]") {
  require_all_ok(run_world(How::kForks, 3, [](Communicator& comm) {
    const int r = comm.rank();
    std::vector<int32_t> large(1'000'000, r), small(10, r);
    const auto shown = [&](const std::string& what) {
      await(what, [&] { return comm.flight_record().find(what) != std::string::npos; });
    };
    if (r == 0) {
      // Fills its FIFO, and waits for the rest of the room; more waits behind it.
      Work first = comm.send_async(large.data(), large.size(), DataType::kInt32, 2);
      Work second = comm.send_async(small.data(), small.size(), DataType::kInt32, 2);
      expect_ok(comm.recv(small.data(), small.size(), DataType::kInt32, 1), "recv");
      expect_ok(first.wait(), "send");
      expect_ok(second.wait(), "send");
    } else if (r == 1) {
      shown("recv(int32, count 10) from rank 1: 0 of 40 bytes, for ");
      shown("send(int32, count 1000000) to rank 2: ");
      shown(" of 4000000 bytes, for ");
      shown("; 1 more queued after it  <- pending");
      const std::string record = comm.flight_record();
      expect(record.find(" 0 of 4000000 bytes") == std::string::npos, record);
      expect_ok(comm.send(small.data(), small.size(), DataType::kInt32, 0), "send");
      int32_t go = 1;
      expect_ok(comm.send(&go, 1, DataType::kInt32, 2), "send");
    } else {
      int32_t go = 0;
      expect_ok(comm.recv(&go, 1, DataType::kInt32, 1), "recv");
      expect_ok(comm.recv(large.data(), large.size(), DataType::kInt32, 0), "recv");
      expect_ok(comm.recv(small.data(), small.size(), DataType::kInt32, 0), "recv");
    }
    // Nobody is in a message any more when all have come to the second.
    for (int i = 0; i < 2; ++i) expect_ok(comm.barrier(), "barrier");
    const std::string record = comm.flight_record();
    expect(record.find("pending") == std::string::npos, record);
  }));
}

TEST_CASE("a group that never ended ends with its communicator") {
  const TempDirectory directory;
  auto made = Communicator::create(world_config(directory.path(), 0, 1));
  REQUIRE(made.ok());
  auto comm = std::make_unique<Communicator>(std::move(*made));
  int32_t value = 1, other = 0;
  REQUIRE(comm->group_start().ok());
  Work sum = comm->all_reduce_async(&value, &value, 1, DataType::kInt32);
  Work send = comm->send_async(&value, 1, DataType::kInt32, 0);
  Work receive = comm->recv_async(&other, 1, DataType::kInt32, 0);
  CHECK(!sum.test());
  comm.reset();
  for (Work* work : {&sum, &send, &receive}) {
    CHECK(work->wait().code() == Code::kInvalidArgument);
    CHECK(work->wait().message().find("inside a group") != std::string::npos);
  }
}

TEST_CASE("a rank that is killed, leaves or hangs ends every wait for its messages") {
  for (const int size : {2, 3, 5}) {
    for (const bool library : {false, true}) {
      const TempDirectory directory;
      ForkGang gang(size, [&](int rank, Link& link) {
        auto comm = Communicator::create(world_config(directory.path(), rank, size));
        expect(comm.ok(), comm.status().to_string());
        Buffer data(8 << 20, library);
        link.announce("ready");
        Status status;
        if (rank == 0) {
          link.await("never");
        } else {
          // One waits for data, the others for room.
          expect_ok(comm->group_start(), "group_start");
          if (rank == 1) (void)comm->recv(data.data(), 1 << 20, DataType::kInt32, 0);
          (void)comm->send(data.data() + (4 << 20), 1 << 20, DataType::kInt32, 0);
          status = comm->group_end();
        }
        expect(status.code() == Code::kPeerDied, status.to_string());
        expect(status.message().find("rank 0") != std::string::npos, status.to_string());
      });
      for (int r = 0; r < size; ++r) gang.await(r, "ready");
      gang.kill(0, SIGKILL);
      const double killed = gang.seconds();
      const auto results = gang.join();
      for (int r = 1; r < size; ++r) {
        INFO(results[static_cast<size_t>(r)].message);
        CHECK(results[static_cast<size_t>(r)].ok);
        CHECK(results[static_cast<size_t>(r)].seconds - killed < 1);
      }
    }
  }
}

// A first message to another host needs its rank's help (transport/ucx), and so waits for it.
TEST_CASE("what was sent before leaving arrives, and what never was is missed", "[one_host]") {
  const TempDirectory directory;
  ForkGang gang(2, [&](int rank, Link& link) {
    auto comm = Communicator::create(world_config(directory.path(), rank, 2));
    expect(comm.ok(), comm.status().to_string());
    int32_t value = 7;
    if (rank == 0) return expect_ok(comm->send(&value, 1, DataType::kInt32, 1), "send");
    link.await("rank 0 has left");
    value = 0;
    expect_ok(comm->recv(&value, 1, DataType::kInt32, 0), "recv");
    expect_eq(value, 7, "value");
    const Status status = comm->recv(&value, 1, DataType::kInt32, 0);
    expect(status.code() == Code::kPeerDied, status.to_string());
    expect(status.message().find("rank 0 left") != std::string::npos, status.to_string());
  });
  gang.await_end(0);
  gang.tell(1, "rank 0 has left");
  require_all_ok(gang.join());
}

TEST_CASE("a recv from a rank that never sends ends at the deadline") {
  Config config;
  config.timeout = std::chrono::milliseconds(300);
  require_all_ok(run_world(
      How::kForks, 3,
      [](Communicator& comm) {
        int32_t value = 0;
        if (comm.rank() == 2) {
          await("the others' error", [&] { return !comm.status().ok(); });
          return;
        }
        const Status status = comm.recv(&value, 1, DataType::kInt32, comm.rank() + 1);
        expect(status.code() == Code::kTimeout, status.to_string());
        expect(status.message().find("rank 2") != std::string::npos, status.to_string());
      },
      config));
}

TEST_CASE("ranks that all send before they receive are told what to do") {
  require_all_ok(run_world(How::kForks, 2, [](Communicator& comm) {
    std::vector<int32_t> data(1 << 20);
    const Status status = comm.send(data.data(), data.size(), DataType::kInt32, 1 - comm.rank(),
                                    {.timeout = std::chrono::milliseconds(300)});
    expect(status.code() == Code::kTimeout, status.to_string());
    expect(status.message().find("put its sends and recvs into one group") != std::string::npos,
           status.to_string());
  }));
}

TEST_CASE("who waits in a message while the others are in a collective is named with it") {
  require_all_ok(run_world(How::kForks, 3, [](Communicator& comm) {
    std::vector<int32_t> data(1 << 20);
    const Status status = comm.rank() == 0
                              ? comm.send(data.data(), data.size(), DataType::kInt32, 1)
                              : comm.barrier({.timeout = std::chrono::milliseconds(300)});
    expect(status.code() == Code::kTimeout, status.to_string());
    expect(status.message().find("has not called it: it waits in send(int32, count 1048576) to "
                                 "rank 1") != std::string::npos,
           status.to_string());
  }));
}

TEST_CASE("a message's own timeout counts beside others that may take longer") {
  require_all_ok(run_world(How::kForks, 3, [](Communicator& comm) {
    if (comm.rank() != 0) {
      expect(comm.barrier().code() == Code::kTimeout, "the barrier");
      return;
    }
    int32_t a = 0, b = 0;
    const Work patient = comm.recv_async(&a, 1, DataType::kInt32, 1);
    Work urgent =
        comm.recv_async(&b, 1, DataType::kInt32, 2, {.timeout = std::chrono::milliseconds(300)});
    const Status status = urgent.wait();
    expect(status.code() == Code::kTimeout, status.to_string());
    expect(status.message().find("from rank 2") != std::string::npos, status.to_string());
  }));
}

}  // namespace rondo::testing
