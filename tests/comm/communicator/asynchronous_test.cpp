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
#include "tests/comm/communicator/world.hpp"

namespace rondo::testing {

TEST_CASE("many operations in flight end in issue order with the right results") {
  for (const How how : {How::kThreads, How::kForks}) {
    for (const int size : {1, 2, 3, 5}) {
      require_all_ok(run_world(how, size, [](Communicator& comm) {
        constexpr size_t kOperations = 12;
        std::vector<std::unique_ptr<Buffer>> buffers;
        std::vector<Work> works;
        for (size_t k = 0; k < kOperations; ++k) {
          const size_t count = k * k * 500 + 1;
          buffers.push_back(std::make_unique<Buffer>(count * 4, k % 2 == 0));
          fill(*buffers[k], 0, count, DataType::kInt32, ReduceOp::kSum, comm.rank(), k);
          works.push_back(comm.all_reduce_async(buffers[k]->data(), buffers[k]->data(), count,
                                                DataType::kInt32));
        }
        // A blocking call behind them takes its turn.
        expect_ok(comm.barrier(), "barrier");
        int64_t last = 0;
        for (size_t k = 0; k < kOperations; ++k) {
          expect(works[k].test(), "the barrier overtook operation " + std::to_string(k));
          expect_ok(works[k].wait(), "wait");
          expect_ok(works[k].wait(), "wait again");
          const Work::Times times = works[k].times();
          expect(times.issued_ns <= times.started_ns && times.started_ns <= times.ended_ns,
                 "times");
          expect(times.started_ns >= last, "out of order");
          last = times.ended_ns;
          check(
              *buffers[k], 0, k * k * 500 + 1, DataType::kInt32,
              [&](size_t i) {
                return expected(comm.size(), i + k, ReduceOp::kSum, DataType::kInt32);
              },
              "async");
        }
      }));
    }
  }
}

TEST_CASE("an operation ends while its caller never calls rondo again") {
  require_all_ok(run_world(How::kForks, 2, [](Communicator& comm) {
    Buffer data(40000, false);
    fill(data, 0, 10000, DataType::kFloat32, ReduceOp::kSum, comm.rank());
    Work work = comm.all_reduce_async(data.data(), data.data(), 10000, DataType::kFloat32);
    while (!work.test()) std::this_thread::yield();
    expect_ok(work.status(), "status");
    check(
        data, 0, 10000, DataType::kFloat32,
        [](size_t i) { return expected(2, i, ReduceOp::kSum, DataType::kFloat32); }, "data");
  }));
}

TEST_CASE("a wait for what an open group holds is refused, and the group goes on") {
  require_all_ok(run_world(How::kThreads, 2, [](Communicator& comm) {
    int32_t sums[3] = {1, 2, 3};
    const auto begin = [&](int32_t& sum) {
      return comm.all_reduce_async(&sum, &sum, 1, DataType::kInt32);
    };
    const auto refused = [](const Status& status) {
      expect(status.code() == Code::kInvalidArgument, "refused");
      expect(status.message().find("call group_end() first") != std::string::npos,
             status.message());
    };
    std::vector<Work> works = {begin(sums[0])};
    expect_ok(works[0].wait(), "outside the group");
    expect_ok(comm.group_start(), "group_start");
    works.push_back(begin(sums[1]));
    works.push_back(begin(sums[2]));
    refused(works[1].wait());
    refused(wait_all(works));
    expect_eq(wait_any(works), size_t{0}, "the one that has ended");
    expect_eq(wait_any(std::span(works).subspan(1)), size_t{0}, "none has ended");
    expect(!works[1].test() && works[1].status().ok(), "it is not over");
    expect_ok(comm.group_end(), "group_end");
    expect_ok(wait_all(works), "after the group's end");
    for (int32_t i = 0; i < 3; ++i) expect_eq(sums[i], 2 * (i + 1), "sum");
  }));
}

TEST_CASE("finish waits for operations whose handles are gone, and abort ends it") {
  require_all_ok(run_world(How::kThreads, 3, [](Communicator& comm) {
    expect_ok(comm.finish(), "with none outstanding");
    std::vector<std::vector<int32_t>> data(4, std::vector<int32_t>(50000, comm.rank()));
    for (auto& each : data) {
      (void)comm.all_reduce_async(each.data(), each.data(), each.size(), DataType::kInt32);
    }
    expect_ok(comm.finish(), "finish");
    for (const auto& each : data) expect(each.front() == 3 && each.back() == 3, "sum");
    int32_t in = 0;
    const Work never = comm.recv_async(&in, 1, DataType::kInt32, (comm.rank() + 1) % 3);
    std::jthread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      if (comm.rank() == 1) comm.abort("enough");
    });
    const Status ended = comm.finish();
    expect(ended.code() == Code::kAborted, ended.message());
    expect(never.test(), "its operation has ended");
  }));
}

TEST_CASE("a dropped handle lets the operation go on, and destruction waits for it") {
  for (int repeat = 0; repeat < 5; ++repeat) {
    const TempDirectory directory;
    require_all_ok(run_ranks(How::kForks, 3, [&](int rank) {
      Buffer data(400000, true);
      fill(data, 0, 100000, DataType::kFloat32, ReduceOp::kSum, rank);
      {
        auto comm = Communicator::create(world_config(directory.path(), rank, 3));
        expect(comm.ok(), comm.status().to_string());
        (void)comm->all_reduce_async(data.data(), data.data(), 100000, DataType::kFloat32);
      }
      check(
          data, 0, 100000, DataType::kFloat32,
          [](size_t i) { return expected(3, i, ReduceOp::kSum, DataType::kFloat32); }, "data");
    }));
  }
}

TEST_CASE("several communicators of one process, from several threads at once, blocking and not") {
  const TempDirectory directory;
  require_all_ok(run_ranks(How::kForks, 2, [&](int rank) {
    std::vector<std::thread> threads;
    std::atomic<int> failures{0};
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        try {
          Config config = world_config(directory.path(), rank, 2);
          config.name = "communicator-" + std::to_string(t);
          auto comm = Communicator::create(config);
          expect(comm.ok(), comm.status().to_string());
          Buffer data(4 * 5000, t == 1);
          for (int i = 0; i < 40; ++i) {
            fill(data, 0, 5000, DataType::kFloat32, ReduceOp::kSum, rank, static_cast<size_t>(t));
            if (i % 2 == 0) {
              expect_ok(comm->all_reduce(data.data(), data.data(), 5000, DataType::kFloat32),
                        "blocking");
            } else {
              expect_ok(
                  comm->all_reduce_async(data.data(), data.data(), 5000, DataType::kFloat32).wait(),
                  "async");
            }
            check(
                data, 0, 5000, DataType::kFloat32,
                [&](size_t k) {
                  return expected(2, k + static_cast<size_t>(t), ReduceOp::kSum,
                                  DataType::kFloat32);
                },
                "data");
          }
        } catch (const std::exception& e) {
          std::fprintf(stderr, "thread %d: %s\n", t, e.what());
          ++failures;
        }
      });
    }
    for (auto& thread : threads) thread.join();
    expect_eq(failures.load(), 0, "failures");
  }));
}

TEST_CASE("operations of two communicators do not wait for each other") {
  const TempDirectory directory;
  require_all_ok(run_ranks(How::kForks, 2, [&](int rank) {
    Config config = world_config(directory.path(), rank, 2);
    auto first = Communicator::create(config);
    config.name = "second";
    auto second = Communicator::create(config);
    expect(first.ok() && second.ok(), "create");
    // Rank 0 issues on the first and then the second, rank 1 the other way round: either would
    // block behind the other.
    Buffer a(400, false), b(400, false);
    auto on = [&](Communicator& comm, Buffer& data) {
      return comm.all_reduce_async(data.data(), data.data(), 100, DataType::kFloat32);
    };
    if (rank == 0) {
      expect_ok(on(*first, a).wait(), "first");
      expect_ok(on(*second, b).wait(), "second");
    } else {
      Work later = on(*second, b);
      Work earlier = on(*first, a);
      expect_ok(earlier.wait(), "first");
      expect_ok(later.wait(), "second");
    }
  }));
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
        auto comm = Communicator::create(world_config(directory.path(), rank, 2));
        expect(comm.ok(), comm.status().to_string());
        expect_ok(comm->barrier(), "barrier");
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
    Config other;
    other.name = "other";
    auto kept = Communicator::create(world_config(directory.path(), rank, 2, other));
    expect(kept.ok(), kept.status().to_string());
    expect_ok(kept->barrier_async().wait(), "kept");
    for (int turn = 0; turn < 40; ++turn) {
      Config config;
      config.name = "turn" + std::to_string(turn);
      auto comm = Communicator::create(world_config(directory.path(), rank, 2, config));
      expect(comm.ok(), comm.status().to_string());
      std::vector<Work> works;
      Buffer data(4096, false);
      for (int k = 0; k < 5; ++k) {
        works.push_back(comm->all_reduce_async(data.data(), data.data(), 1024, DataType::kFloat32));
      }
      if (turn % 2 == 1) comm->abort("half of them fail");
      { const Communicator gone = std::move(*comm); }
      for (const Work& work : works) expect(work.test(), "not ended after the destruction");
    }
    expect_ok(kept->barrier(), "kept");
  }));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// The tests' own pthread_create: fails when told to. (Sanitizers have one of their own.)
std::atomic<bool> no_more_threads{false};

TEST_CASE("no thread to be had is an error, and the communicator goes on without", "[one_host]") {
  require_all_ok(run_world(How::kForks, 2, [](Communicator& comm) {
    Buffer data(4096, false);
    no_more_threads = true;
    const Work work = comm.all_reduce_async(data.data(), data.data(), 1024, DataType::kFloat32);
    no_more_threads = false;
    expect(work.test() && work.status().code() == Code::kResourceExhausted,
           work.status().to_string());
    expect_ok(comm.barrier_async().wait(), "afterwards");
  }));
  const TempDirectory directory;
  const auto results = run_ranks(How::kForks, 2, [&](int rank) {
    Config config;
    config.channels = 3;
    no_more_threads = rank == 1;
    auto comm = Communicator::create(world_config(directory.path(), rank, 2, config));
    expect(!comm.ok(), "created without threads");
    if (rank == 1) {
      expect(comm.status().code() == Code::kResourceExhausted, comm.status().to_string());
    }
  });
  require_all_ok(results);
}
#endif

// The waits of all of them are one thread's, which must not take its own for anybody's standing
// still.
TEST_CASE("a rank that never calls is named by asynchronous operations of one process too") {
  const TempDirectory directory;
  std::latch failed(2);
  require_all_ok(run_ranks(How::kThreads, 3, [&](int rank) {
    Config config;
    config.timeout = std::chrono::milliseconds{400};
    auto comm = Communicator::create(world_config(directory.path(), rank, 3, config));
    expect(comm.ok(), comm.status().to_string());
    expect_ok(comm->barrier_async().wait(), "barrier");
    Buffer data(4096, false);
    if (rank != 2) {  // 2 -> 0 -> 1
      const Status status =
          comm->broadcast_async(data.data(), data.data(), 1024, DataType::kFloat32, 2,
                                {.algorithm = Algorithm::kRing})
              .wait();
      failed.count_down();
      expect(status.code() == Code::kTimeout, status.to_string());
      expect(status.message().find("rank 2 (pid") != std::string::npos, status.message());
      expect(status.message().find("has not called it") != std::string::npos, status.message());
    }
    failed.wait();
  }));
}

// The callback lets the other rank go on, so that a wait which does not call it fails by its timeout.
TEST_CASE("a wait callback is called by each kind of wait, from the waiting thread") {
  require_all_ok(run_world(How::kForks, 2, [](Communicator& comm) {
    auto made = comm.duplicate();
    expect_ok(made.status(), "duplicate");
    static Communicator* other = nullptr;
    static bool called = false;
    other = &*made;
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
        expect_ok(other->recv(&byte, 1, type, peer, {.timeout = std::chrono::seconds(20)}), way);
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
  }));
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
