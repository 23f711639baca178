// After a failure: no rank counts as done what another has given up, and nobody touches the buffers
// of a rank that has returned.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <thread>

#include "tests/comm/communicator/await.hpp"
#include "tests/comm/communicator/world.hpp"

namespace rondo::testing {

TEST_CASE("no rank counts an operation as done that another has given up, direct ones included") {
  for (const Algorithm algorithm : {Algorithm::kTwoShotDirect, Algorithm::kTwoShot}) {
    INFO(name(algorithm));
    const TempDirectory directory;
    auto* done = static_cast<std::atomic<int>*>(
        mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    REQUIRE(done != MAP_FAILED);
    ForkGang gang(3, [&](int rank, Link& link) {
      Config config;
      config.timeout = std::chrono::milliseconds{300};
      auto comm = Communicator::create(world_config(directory.path(), rank, 3, config));
      expect(comm.ok(), comm.status().to_string());
      const size_t count = 2 << 20;
      Buffer in(count * 4, true), out(count * 4, true);
      link.announce("going");
      while (comm->all_reduce(in.data(), out.data(), count, DataType::kFloat32, ReduceOp::kSum,
                              {.algorithm = algorithm})
                 .ok()) {
        done[rank].fetch_add(1);
      }
    });
    for (int rank = 0; rank < 3; ++rank) gang.await(rank, "going");
    await("a few operations of every rank",
          [&] { return std::all_of(done, done + 3, [](const auto& n) { return n >= 3; }); });
    gang.kill(1, SIGSTOP);
    for (const int rank : {0, 2}) gang.await_end(rank);
    gang.kill(1, SIGCONT);
    require_all_ok(gang.join());
    CHECK(done[1].load() <= done[0].load());
    CHECK(done[1].load() <= done[2].load());
    munmap(done, 4096);
  }
}

TEST_CASE("after a failure nobody touches the buffers of a rank that has returned") {
  // Asynchronous operations of both ranks are one thread's, which then cannot wait for itself.
  for (int turn = 0; turn < (kSanitized ? 4 : 12); ++turn) {
    std::atomic<int> returned{0};
    require_all_ok(run_world(How::kThreads, 2, [&](Communicator& comm) {
      const bool asynchronous = turn % 2 == 1;
      const size_t bytes = 96 << 20;
      std::unique_ptr<unsigned char, decltype(&std::free)> in(
          static_cast<unsigned char*>(std::calloc(bytes, 1)), &std::free);
      std::unique_ptr<unsigned char, decltype(&std::free)> out(
          static_cast<unsigned char*>(std::calloc(bytes, 1)), &std::free);
      expect_ok(comm.barrier(), "barrier");
      std::thread killer;
      if (comm.rank() == 1) {
        killer = std::thread([&, board = board_of(getpid())] {
          // In the middle of an operation, each turn a bit further on: it moves in slices of 1 MiB.
          const auto& moves = board.view().state(1).progress;
          const uint64_t start = moves.load();
          while (comm.status().ok() &&
                 moves.load() < start + static_cast<uint64_t>(8 * (turn + 1))) {
            std::this_thread::yield();
          }
          comm.abort("enough");
        });
      }
      Status status;
      while (status.ok()) {
        const CallOptions direct{.algorithm = Algorithm::kTwoShotDirect};
        status = asynchronous ? comm.all_reduce_async(in.get(), out.get(), bytes / 4,
                                                      DataType::kFloat32, ReduceOp::kSum, direct)
                                    .wait()
                              : comm.all_reduce(in.get(), out.get(), bytes / 4, DataType::kFloat32,
                                                ReduceOp::kSum, direct);
      }
      expect(status.code() == Code::kAborted, status.to_string());
      std::memset(out.get(), 0x5a, bytes);
      if (killer.joinable()) killer.join();
      // What the other could still do it has done once its call has returned too.
      returned.fetch_add(1);
      await("the other has returned too", [&] { return returned.load() == 2; });
      for (size_t i = 0; i < bytes; i += 64) {
        if (out.get()[i] != 0x5a) expect(false, "overwritten at " + std::to_string(i));
      }
    }));
  }
}

}  // namespace rondo::testing
