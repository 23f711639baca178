// What becomes of communicators on GPUs of several hosts, and of streams, when something goes wrong.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <ctime>
#include <thread>
#include <vector>

#include "comm/status/find.hpp"
#include "tests/comm/device/alone.hpp"

namespace rondo::device::test {
namespace {

Setup with_timeout(std::chrono::milliseconds timeout) {
  return {.gpu = gpus(), .config = small_config(timeout)};
}

TEST_CASE("Over several hosts, an abort lets every stream go on, and is what all calls return") {
  HostsRig world({0, 1, 1});
  Ints data(300), other(300);
  world.gpu->hold(world.stream(2));
  for (int i = 0; i < 3; ++i) must(sum(world, 0, data));  // waits for the others
  must(sum(world, 2, other));                             // waits for its stream
  CHECK_FALSE(world.gpu->idle(world.stream(0)));
  world[1].abort("enough");
  world.gpu->drain(world.stream(0));
  world.gpu->let_go(world.stream(2));
  world.synchronize();
  check_all_failed(world, Code::kAborted, {"rank 1 aborted: enough"});
  for (int rank = 0; rank < 3; ++rank) check_failed(sum(world, rank, data), Code::kAborted);
}

TEST_CASE("Over several hosts, a rank that never comes is named, and streams go on") {
  const Setup setup = with_timeout(std::chrono::milliseconds(500));
  setup.gpu->ns_per_look = 100'000'000;
  HostsRig world({0, 1, 1}, setup);
  Ints data[3] = {Ints(300, 1), Ints(300, 1), Ints(300, 1)};
  for (int rank = 0; rank < 2; ++rank) must(sum(world, rank, data[rank]));
  world.synchronize();
  check_all_failed(world, Code::kTimeout, {"rank 2"});
  for (int rank = 0; rank < 3; ++rank) check_failed(sum(world, rank, data[rank]), Code::kTimeout);
}

// As under a debugger: the time in which a process stands still is no thread's in CUDA.
TEST_CASE("Over several hosts, ranks go on after their process was stopped", "[again]") {
  HostsRig world({0, 1}, with_timeout(std::chrono::seconds(2)));
  Ints data[2] = {Ints(300, 1), Ints(300, 1)};
  world.gpu->hold(world.stream(0));
  must(sum(world, 0, data[0]));  // its thread looks whether the stream has come so far
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    (void)kill(getppid(), SIGSTOP);
    const timespec longer_than_the_timeout{4, 0};
    (void)nanosleep(&longer_than_the_timeout, nullptr);
    (void)kill(getppid(), SIGCONT);
    _exit(0);
  }
  REQUIRE(waitpid(child, nullptr, 0) == child);
  world.gpu->let_go(world.stream(0));
  must(sum(world, 1, data[1]));
  finish(world);
  for (const Ints& each : data) CHECK(each == Ints(300, 2));
}

TEST_CASE("Over several hosts, calls that differ are named, both") {
  HostsRig world({0, 1});
  Ints data[2] = {Ints(100), Ints(50)};
  for (int rank = 0; rank < 2; ++rank) must(sum(world, rank, data[rank]));
  world.synchronize();
  check_all_failed(world, Code::kMismatch, {"count 100", "count 50"});
}

TEST_CASE("Over several hosts, destroying a communicator waits for a call that its peer makes") {
  HostsRig world({0, 1});
  // The longest wait of a destruction is the communicator's timeout; not that of this call.
  Ints data(300, 1), other(300, 1);
  must(sum(world, 0, data));
  std::thread leaves([&] { world.leave(0); });
  must(sum(world, 1, other));
  leaves.join();
  world.synchronize();
  CHECK(data == Ints(300, 2));
  CHECK(other == data);
  must(world[1].status());
}

TEST_CASE("Over several hosts, destroying a communicator ends a call that its peer does not make") {
  HostsRig world({0, 1}, with_timeout(std::chrono::milliseconds(1)));
  Ints data(300);
  world.gpu->hold(world.stream(0));
  must(sum(world, 0, data));
  std::thread lets_go([&] {
    testing::await("the error is known", [&] { return !world[1].status().ok(); });
    world.gpu->let_go(world.stream(0));
  });
  world.leave(0);
  lets_go.join();
  CHECK(world.gpu->idle(world.stream(0)));
  says(world[1].status(), "rank 0 was destroyed before its operations had ended");
}

TEST_CASE("Over several hosts, a rank that leaves when its stream is through is missed by nobody") {
  for (const int root : {0, 1}) {
    for (const bool late : {false, true}) {
      INFO("root " << root << (late ? ", a late reader" : ""));
      HostsRig world({0, 1});
      const int reader = 1 - root;
      Ints data[2];
      data[root].assign(300, 7);
      data[reader].assign(300, 0);
      if (late) world.gpu->hold(world.stream(reader));
      for (int rank = 0; rank < 2; ++rank) {
        must(world[rank].broadcast(data[rank].data(), data[rank].data(), 300, DataType::kInt32,
                                   root, world.on_stream(rank)));
      }
      world.gpu->drain(world.stream(root));
      std::thread leaves([&] { world.leave(root); });
      if (late) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1500));
        world.gpu->let_go(world.stream(reader));
      }
      world.gpu->drain(world.stream(reader));
      leaves.join();
      CHECK(data[reader] == Ints(300, 7));
      must(world[reader].status());
    }
  }
}

TEST_CASE(
    "Over several hosts, every failing call of CUDA becomes an error on a rank, and none hangs") {
  const Pretended pretended({0, 1});
  bool reached = true;
  // Polls are calls too, and many: from some point on not every one fails in its turn.
  for (int fail_at = -1; reached; fail_at += fail_at < 60 ? 1 : fail_at / 4) {
    INFO("call " << fail_at);
    const OnGpu on(gpus());
    Failing failing{.call = fail_at};
    failing.begin(*on.gpu);
    {
      World world(on.gpu, 2);
      for (int rank = 0; rank < 2; ++rank) failing.hear(world.created(rank));
      if (world.all_created()) {
        Ints data[2] = {Ints(300, 1), Ints(300, 2)};
        for (int i = 0; i < 2; ++i) {
          for (int rank = 0; rank < 2; ++rank) failing.hear(sum(world, rank, data[rank]));
        }
        world.synchronize();
        for (int rank = 0; rank < 2; ++rank) {
          failing.hear(world[rank].status());
          failing.right = failing.right && data[rank] == Ints(300, 6);
        }
      }
    }
    CHECK((failing.told || failing.right));
    if (fail_at < 0) CHECK_FALSE(failing.told);
    reached = fail_at < on.gpu->calls;
  }
}

#if !defined(__SANITIZE_THREAD__)
TEST_CASE("Over several hosts, a rank that dies is named with its host, and streams go on") {
  const Pretended pretended({0, 1});
  const TempDirectory directory;
  testing::ForkGang gang(2, [&](int rank, testing::Link& link) {
    const auto gpu = gpus(1);
    {
      Alone self(gpu, directory, rank, 2);
      Ints data(300, 1);
      if (rank == 0) testing::expect_ok(sum(*self.ranks, data, self.options()), "all_reduce");
      link.announce("ready");
      if (rank == 1) link.await("nothing");
      gpu->drain(self.stream);
      expect_failed(self.ranks->status(), Code::kPeerDied, " on host h1) ended ");
    }
    testing::expect_eq(gpu->alive(), size_t{0}, "what is left");
  });
  for (int rank = 0; rank < 2; ++rank) gang.await(rank, "ready");
  gang.kill(1, SIGKILL);
  check_survivors(gang);
}

// Rank 0's process has the agent of its host. While it is stopped, nobody learns what has become of rank
// 1, whose connection closes.
TEST_CASE("Over several hosts, kernels that lose a link end before the cause is known") {
  const Pretended pretended({0, 1, 0});
  const TempDirectory directory;
  testing::ForkGang gang(3, [&](int rank, testing::Link& link) {
    const auto gpu = gpus(3);
    gpu->peers.clear();
    Alone self(gpu, directory, rank, 3);
    Ints data(300, 1);
    const auto pass = [&] {
      Communicator& c = *self.ranks;
      testing::expect_ok(rank == 1 ? c.send(data.data(), 300, DataType::kInt32, 2, self.options())
                                   : c.recv(data.data(), 300, DataType::kInt32, 1, self.options()),
                         "a message");
    };
    if (rank != 0) pass();
    gpu->drain(self.stream);  // ranks 1 and 2 are connected
    if (rank == 2) pass();
    const auto boards = status::boards_of_process(getpid());
    link.announce("ready");
    if (rank != 2) return link.await("rank 2 is through");
    testing::await("the kernel ends", [&] { return gpu->idle(self.stream); });
    testing::expect(!boards.value().front().view().has_error(), "the error was known before");
    testing::expect(!self.ranks->status().ok(), "no error");
    testing::expect(self.ranks->status().message().find("aborted") == std::string::npos,
                    "the error is the kernels' end: " + self.ranks->status().message());
    link.announce("through");
  });
  for (int rank = 0; rank < 3; ++rank) gang.await(rank, "ready");
  gang.kill(0, SIGSTOP);
  gang.kill(1, SIGKILL);
  gang.await(2, "through");
  gang.kill(0, SIGCONT);
  gang.tell(0, "rank 2 is through");
  check_survivors(gang);
}

TEST_CASE("Over several hosts, a rank that ends when all is done fails those who need it again") {
  const Pretended pretended({0, 1});
  const TempDirectory directory;
  testing::ForkGang gang(2, [&](int rank, testing::Link& link) {
    Alone self(gpus(1), directory, rank, 2);
    Ints data(300, 1);
    const auto add = [&] { return sum(*self.ranks, data, self.options()); };
    testing::expect_ok(add(), "all_reduce");
    self.gpu->drain(self.stream);
    link.announce("done");
    link.await("the other has ended");
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    testing::expect(data == Ints(300, 2), "another sum");
    testing::expect_ok(self.ranks->status(), "status");
    expect_failed(add(), Code::kPeerDied, "rank 1");
  });
  for (int rank = 0; rank < 2; ++rank) gang.await(rank, "done");
  gang.kill(1, SIGKILL);
  gang.tell(0, "the other has ended");
  check_survivors(gang);
}
#endif

}  // namespace
}  // namespace rondo::device::test
