// Work handles: progress without the caller, issue order, several outstanding, several
// communicators from several threads.
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <latch>
#include <thread>

#include "rondo/log.hpp"
#include "tests/comm/communicator/worlds.hpp"

namespace rondo::testing {

TEST_CASE("many operations in flight end in issue order with the right results") {
  run_each({1, 2, 3, 5}, [](Communicator& comm) {
    constexpr size_t kOperations = 12;
    std::vector<std::unique_ptr<Buffer>> buffers;
    std::vector<Work> works;
    for (size_t k = 0; k < kOperations; ++k) {
      const size_t count = k * k * 500 + 1;
      buffers.push_back(std::make_unique<Buffer>(count * 4, k % 2 == 0));
      fill(*buffers[k], 0, count, kInt, ReduceOp::kSum, comm.rank(), k);
      works.push_back(comm.all_reduce_async(buffers[k]->data(), buffers[k]->data(), count, kInt));
    }
    // A blocking call behind them takes its turn.
    expect_ok(comm.barrier(), "barrier");
    int64_t last = 0;
    for (size_t k = 0; k < kOperations; ++k) {
      expect(works[k].test(), "the barrier overtook operation " + std::to_string(k));
      expect_ok(works[k].wait(), "wait");
      expect_ok(works[k].wait(), "wait again");
      const Work::Times times = works[k].times();
      expect(times.issued_ns <= times.started_ns && times.started_ns <= times.ended_ns, "times");
      expect(times.started_ns >= last, "out of order");
      last = times.ended_ns;
      expect_sum(*buffers[k], k * k * 500 + 1, kInt, comm.size(), k);
    }
  });
}

TEST_CASE("an operation ends while its caller never calls rondo again") {
  run_ok(How::kForks, 2, [](Communicator& comm) {
    Buffer data(40000, false);
    fill(data, 0, 10000, kFloat, ReduceOp::kSum, comm.rank());
    Work work = comm.all_reduce_async(data.data(), data.data(), 10000, kFloat);
    while (!work.test()) std::this_thread::yield();
    expect_ok(work.status(), "status");
    expect_sum(data, 10000, kFloat, 2);
  });
}

TEST_CASE("a wait for what an open group holds is refused, and the group goes on") {
  run_ok(How::kThreads, 2, [](Communicator& comm) {
    int32_t sums[3] = {1, 2, 3};
    const auto begin = [&](int32_t& sum) { return comm.all_reduce_async(&sum, &sum, 1, kInt); };
    std::vector<Work> works = {begin(sums[0])};
    expect_ok(works[0].wait(), "outside the group");
    expect_ok(comm.group_start(), "group_start");
    works.push_back(begin(sums[1]));
    works.push_back(begin(sums[2]));
    expect_refused(works[1].wait(), "call group_end() first");
    expect_refused(wait_all(works), "call group_end() first");
    expect_eq(wait_any(works), size_t{0}, "the one that has ended");
    expect_eq(wait_any(std::span(works).subspan(1)), size_t{0}, "none has ended");
    expect(!works[1].test() && works[1].status().ok(), "it is not over");
    expect_ok(comm.group_end(), "group_end");
    expect_ok(wait_all(works), "after the group's end");
    for (int32_t i = 0; i < 3; ++i) expect_eq(sums[i], 2 * (i + 1), "sum");
  });
}

TEST_CASE("finish waits for operations whose handles are gone, and abort ends it") {
  run_ok(How::kThreads, 3, [](Communicator& comm) {
    expect_ok(comm.finish(), "with none outstanding");
    std::vector<std::vector<int32_t>> data(4, std::vector<int32_t>(50000, comm.rank()));
    for (auto& each : data) (void)comm.all_reduce_async(each.data(), each.data(), 50000, kInt);
    expect_ok(comm.finish(), "finish");
    for (const auto& each : data) expect(each.front() == 3 && each.back() == 3, "sum");
    int32_t in = 0;
    const Work never = comm.recv_async(&in, 1, kInt, (comm.rank() + 1) % 3);
    std::jthread other([&] {
      if (comm.rank() != 1) return;
      std::this_thread::sleep_for(100ms);  // the ranks should wait by then
      comm.abort("enough");
    });
    expect_error(comm.finish(), Code::kAborted);
    expect(never.test(), "its operation has ended");
  });
}

TEST_CASE("several communicators of one process, from several threads at once, blocking and not") {
  const TempDirectory directory;
  require_all_ok(run_ranks(How::kForks, 2, [&](int rank) {
    const auto threads = run_ranks(How::kThreads, 3, [&](int t) {
      const Config config = with(&Config::name, "communicator-" + std::to_string(t));
      Communicator comm = created(world_config(directory.path(), rank, 2, config));
      Buffer data(4 * 5000, t == 1);
      for (int i = 0; i < 40; ++i) {
        const auto first = static_cast<size_t>(t);
        fill(data, 0, 5000, kFloat, ReduceOp::kSum, rank, first);
        expect_ok(i % 2 == 0 ? comm.all_reduce(data.data(), data.data(), 5000, kFloat)
                             : comm.all_reduce_async(data.data(), data.data(), 5000, kFloat).wait(),
                  "all_reduce");
        expect_sum(data, 5000, kFloat, 2, first);
      }
    });
    for (const RankResult& thread : threads) expect(thread.ok, thread.message);
  }));
}

TEST_CASE("operations of two communicators do not wait for each other") {
  run_ok(How::kForks, 2, [](Communicator& first) {
    Communicator second = expect_value(first.duplicate(), "duplicate");
    Buffer a(400, false), b(400, false);
    auto on = [&](Communicator& comm, Buffer& data) {
      return comm.all_reduce_async(data.data(), data.data(), 100, kFloat);
    };
    // Rank 0 issues on the first and then the second, rank 1 the other way round: either would
    // block behind the other.
    if (first.rank() == 0) {
      expect_ok(on(first, a).wait(), "first");
      expect_ok(on(second, b).wait(), "second");
    } else {
      Work later = on(second, b);
      expect_ok(on(first, a).wait(), "first");
      expect_ok(later.wait(), "second");
    }
  });
}

TEST_CASE("a communicator can be made again under the same name, and nothing leaks") {
  const TempDirectory directory;
  require_all_ok(run_ranks(How::kForks, 2, [&](int rank) {
    const auto descriptors = [] {
      int open = 0;
      for (int fd = 0; fd < 1024; ++fd) open += fcntl(fd, F_GETFD) >= 0;
      return open;
    };
    int after_first = 0;
    for (int i = 0; i < 10; ++i) {
      {
        Communicator comm = created(world_config(directory.path(), rank, 2));
        expect_ok(comm.barrier(), "barrier");
      }
      if (i == 0) after_first = descriptors();
    }
    expect_eq(descriptors(), after_first, "open descriptors");
  }));
}

TEST_CASE("a communicator is gone only when its work has ended") {
  require_all_ok(run_ranks(How::kThreads, 2, [](int rank) {
    static const TempDirectory directory;
    // Another communicator keeps the progress thread alive.
    const Config other = with(&Config::name, "other");
    Communicator kept = created(world_config(directory.path(), rank, 2, other));
    expect_ok(kept.barrier_async().wait(), "kept");
    for (int turn = 0; turn < 40; ++turn) {
      const Config config = with(&Config::name, "turn" + std::to_string(turn));
      Communicator comm = created(world_config(directory.path(), rank, 2, config));
      std::vector<Work> works;
      Buffer data(4096, false), dropped(400000, true);
      fill(dropped, 0, 100000, kFloat, ReduceOp::kSum, rank);
      (void)comm.all_reduce_async(dropped.data(), dropped.data(), 100000, kFloat);
      for (int k = 0; k < 5; ++k) {
        works.push_back(comm.all_reduce_async(data.data(), data.data(), 1024, kFloat));
      }
      if (turn % 2 == 1) comm.abort("half of them fail");
      { const Communicator gone = std::move(comm); }
      for (const Work& work : works) expect(work.test(), "not ended after the destruction");
      if (turn % 2 == 0) expect_sum(dropped, 100000, kFloat, 2);  // without a handle, too
    }
    expect_ok(kept.barrier(), "kept");
  }));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// The tests' own pthread_create: fails when told to. (Sanitizers have one of their own.)
std::atomic<bool> no_more_threads{false};

TEST_CASE("no thread to be had is an error, and the communicator goes on without", "[one_host]") {
  run_ok(How::kForks, 2, [](Communicator& comm) {
    Buffer data(4096, false);
    no_more_threads = true;
    const Work work = comm.all_reduce_async(data.data(), data.data(), 1024, kFloat);
    no_more_threads = false;
    expect(work.test(), "it has not ended");
    expect_error(work.status(), Code::kResourceExhausted);
    expect_ok(comm.barrier_async().wait(), "afterwards");
  });
  const TempDirectory directory;
  require_all_ok(run_ranks(How::kForks, 2, [&](int rank) {
    const Config config = with(&Config::channels, 3);
    no_more_threads = rank == 1;
    auto comm = Communicator::create(world_config(directory.path(), rank, 2, config));
    expect(!comm.ok(), "created without threads");
    if (rank == 1) expect_error(comm.status(), Code::kResourceExhausted);
  }));
}
#endif

// The waits of all of them are one thread's, which must not take its own for anybody's standing
// still.
TEST_CASE("a rank that never calls is named by asynchronous operations of one process too") {
  std::latch failed(2);
  run_ok(How::kThreads, 3, with(&Config::stall_timeout, 400ms), [&](Communicator& comm) {
    expect_ok(comm.barrier_async().wait(), "barrier");
    Buffer data(4096, false);
    if (comm.rank() != 2) {  // 2 -> 0 -> 1
      const Status status = comm.broadcast_async(data.data(), data.data(), 1024, kFloat, 2,
                                                 {.algorithm = Algorithm::kRing})
                                .wait();
      failed.count_down();
      expect_error(status, Code::kTimeout, "rank 2 (pid", "has not called it");
    }
    failed.wait();
  });
}

// The callback lets the other rank go on, so that a wait which does not call it fails by its timeout.
TEST_CASE("a wait callback is called by each kind of wait, from the waiting thread") {
  run_ok(How::kForks, 2, [](Communicator& comm) {
    Communicator duplicate = expect_value(comm.duplicate(), "duplicate");
    static Communicator* other = nullptr;
    static bool called = false;
    other = &duplicate;
    const int peer = 1 - comm.rank();
    const auto type = DataType::kUint8;
    unsigned char byte = 1;
    const auto tell = [](void* context) {
      if (std::exchange(called, true)) return;
      const unsigned char go = 1;
      expect_ok(other->send(&go, 1, DataType::kUint8, *static_cast<const int*>(context)), "go");
    };
    int awaited = peer;
    for (const auto& way : {"recv", "Work::wait", "finish"}) {
      if (comm.rank() == 1) {
        expect_ok(other->recv(&byte, 1, type, peer, {.stall_timeout = 20s}), way);
        expect_ok(comm.send(&byte, 1, type, peer), way);
        continue;
      }
      called = false;
      byte = 0;
      set_wait_callback(tell, &awaited);
      if (way == std::string("recv")) {
        expect_ok(comm.recv(&byte, 1, type, peer), way);
      } else {
        Work work = comm.recv_async(&byte, 1, type, peer);
        expect_ok(way == std::string("finish") ? comm.finish() : work.wait(), way);
      }
      set_wait_callback(nullptr);
      expect(called && byte == 1, way);
    }
  });
}

}  // namespace rondo::testing

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
extern "C" __attribute__((visibility("default"))) int pthread_create(
    pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*), void* argument) {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  if (rondo::testing::no_more_threads) return EAGAIN;
  static const auto real = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  return real(thread, attributes, start, argument);
}
#endif
