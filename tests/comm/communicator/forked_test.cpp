// A forked child and its parent's communicator: its calls there are refused, and harm nobody.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "tests/comm/communicator/worlds.hpp"

namespace rondo::testing {

TEST_CASE("a forked child's copy of a communicator can go without harm") {
  for (const int channels : {1, 2}) {
    run_ok(How::kForks, 2, with(&Config::channels, channels), [](Communicator& comm) {
      Buffer data(400000, false);
      expect_ok(comm.all_reduce_async(data.data(), data.data(), 100000, kFloat).wait(), "before");
      const pid_t child = fork();
      if (child == 0) {
        { const Communicator gone = std::move(comm); }
        _exit(7);
      }
      int status = 0;
      expect_eq(waitpid(child, &status, 0), child, "waitpid");
      expect(WIFEXITED(status) && WEXITSTATUS(status) == 7, "the child did not end by itself");
      expect_ok(comm.all_reduce_async(data.data(), data.data(), 100000, kFloat).wait(), "after");
      expect_ok(comm.barrier(), "barrier");
    });
  }
}

TEST_CASE("a forked child's calls on its parent's communicator are refused, and harm nobody") {
  run_ok(How::kForks, 2, [](Communicator& comm) {
    const int peer = 1 - comm.rank();
    int32_t in = 1, out = 0, received = 0, one = 1;
    Work ended = comm.all_reduce_async(&in, &out, 1, kInt);
    expect_ok(ended.wait(), "before");
    Work pending = comm.recv_async(&received, 1, kInt, peer);
    const pid_t parent = getpid(), child = fork();
    if (child == 0) {
      alarm(20);
      const auto refused = [&](const Status& status) {
        expect_error(status, Code::kInvalidArgument, "process " + std::to_string(parent),
                     "process " + std::to_string(getpid()));
      };
      refused(comm.all_reduce(&in, &out, 1, kInt));
      refused(comm.all_reduce_async(&in, &out, 1, kInt).wait());
      refused(comm.send(&in, 1, kInt, peer));
      refused(comm.recv_async(&in, 1, kInt, peer).wait());
      refused(comm.try_probe(peer, 0).status());
      refused(comm.barrier());
      refused(comm.group_start());
      refused(comm.group_end());
      refused(comm.split(0, 0).status());
      refused(comm.duplicate().status());
      refused(comm.shrink().status());
      refused(comm.status());
      refused(comm.finish());
      refused(pending.wait());
      refused(pending.status());
      expect(pending.test() && wait_any({&pending, 1}) == 0, "a wait for it would never end");
      expect_ok(ended.wait(), "what had ended");
      comm.abort("in vain");
#ifndef __SANITIZE_THREAD__  // it allows a child of threads no thread
      Communicator own = created(config_alone());
      expect_ok(own.all_reduce_async(&in, &out, 1, kInt).wait(), "its own communicator");
#endif
      { const Communicator gone = std::move(comm); }
      _exit(7);
    }
    int status = 0;
    expect_eq(waitpid(child, &status, 0), child, "waitpid");
    expect(WIFEXITED(status) && WEXITSTATUS(status) == 7, "the child's calls");
    expect_ok(comm.send(&one, 1, kInt, peer), "send");
    expect_ok(pending.wait(), "recv");
    expect_eq(received, 1, "received");
    expect_ok(comm.barrier(), "barrier");
  });
}

}  // namespace rondo::testing
