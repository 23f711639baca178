// After a failure: no rank counts as done what another has given up, and nobody touches the buffers
// of a rank that has returned.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <thread>

#include "tests/comm/communicator/worlds.hpp"

namespace rondo::testing {

TEST_CASE("no rank counts an operation as done that another has given up, direct ones included") {
  for (const Algorithm algorithm : {Algorithm::kTwoShotDirect, Algorithm::kTwoShot}) {
    INFO(name(algorithm));
    const Shared<std::array<std::atomic<int>, 3>> done;
    WorldGang gang(3, with(&Config::stall_timeout, 300ms), [&](Communicator& comm, Link&) {
      const size_t count = 2 << 20;
      Buffer in(count * 4, true), out(count * 4, true);
      const auto reduce = [&] {
        return comm.all_reduce(in.data(), out.data(), count, kFloat, ReduceOp::kSum,
                               {.algorithm = algorithm});
      };
      while (reduce().ok()) ++(*done)[static_cast<size_t>(comm.rank())];
    });
    await("a few operations of every rank",
          [&] { return std::ranges::all_of(*done, [](const auto& n) { return n >= 3; }); });
    gang.kill(1, SIGSTOP);
    gang.await_ends({0, 2});
    gang.kill(1, SIGCONT);
    gang.require_ok();
    CHECK((*done)[1] <= (*done)[0]);
    CHECK((*done)[1] <= (*done)[2]);
  }
}

TEST_CASE("after a failure nobody touches the buffers of a rank that has returned") {
  // Asynchronous operations of both ranks are one thread's, which then cannot wait for itself.
  for (int turn = 0; turn < (kSanitized ? 4 : 12); ++turn) {
    std::atomic<int> returned{0};
    run_ok(How::kThreads, 2, [&](Communicator& comm) {
      const bool asynchronous = turn % 2 == 1;
      const size_t bytes = 96 << 20;
      const auto in = std::make_unique_for_overwrite<unsigned char[]>(bytes);
      const auto out = std::make_unique_for_overwrite<unsigned char[]>(bytes);
      expect_ok(comm.barrier(), "barrier");
      std::jthread killer([&] {
        if (comm.rank() != 1) return;
        // In the middle of an operation, each turn a bit further on: it moves in slices of 1 MiB.
        const auto board = board_of(getpid());
        const auto& moves = board.view().state(1).progress;
        const uint64_t end = moves.load() + static_cast<uint64_t>(8 * (turn + 1));
        while (comm.status().ok() && moves.load() < end) std::this_thread::yield();
        comm.abort("enough");
      });
      const CallOptions direct{.algorithm = Algorithm::kTwoShotDirect};
      const ReduceOp sum = ReduceOp::kSum;
      const size_t count = bytes / 4;
      const Status status = until_failure([&] {
        return asynchronous
                   ? comm.all_reduce_async(in.get(), out.get(), count, kFloat, sum, direct).wait()
                   : comm.all_reduce(in.get(), out.get(), count, kFloat, sum, direct);
      });
      expect_error(status, Code::kAborted);
      std::memset(out.get(), 0x5a, bytes);
      killer.join();
      // What the other could still do it has done once its call has returned too.
      returned.fetch_add(1);
      await("the other has returned too", [&] { return returned.load() == 2; });
      for (size_t i = 0; i < bytes; i += 64) {
        if (out[i] != 0x5a) expect(false, "overwritten at " + std::to_string(i));
      }
    });
  }
}

}  // namespace rondo::testing
