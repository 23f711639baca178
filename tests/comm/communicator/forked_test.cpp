// A forked child and its parent's communicator: its calls there are refused, and harm nobody.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "tests/comm/communicator/world.hpp"

namespace rondo::testing {

TEST_CASE("a forked child's copy of a communicator can go without harm") {
  for (const int channels : {1, 2}) {
    Config config;
    config.channels = channels;
    require_all_ok(run_world(
        How::kForks, 2,
        [](Communicator& comm) {
          Buffer data(400000, false);
          expect_ok(
              comm.all_reduce_async(data.data(), data.data(), 100000, DataType::kFloat32).wait(),
              "before");
          const pid_t child = fork();
          if (child == 0) {
            { const Communicator gone = std::move(comm); }
            _exit(7);
          }
          int status = 0;
          expect_eq(waitpid(child, &status, 0), child, "waitpid");
          expect(WIFEXITED(status) && WEXITSTATUS(status) == 7, "the child did not end by itself");
          expect_ok(
              comm.all_reduce_async(data.data(), data.data(), 100000, DataType::kFloat32).wait(),
              "after");
          expect_ok(comm.barrier(), "barrier");
        },
        config));
  }
}

TEST_CASE("a forked child's calls on its parent's communicator are refused, and harm nobody") {
  require_all_ok(run_world(How::kForks, 2, [](Communicator& comm) {
    const int peer = 1 - comm.rank();
    int32_t in = 1, out = 0, received = 0, one = 1;
    Work ended = comm.all_reduce_async(&in, &out, 1, DataType::kInt32);
    expect_ok(ended.wait(), "before");
    Work pending = comm.recv_async(&received, 1, DataType::kInt32, peer);
    const pid_t parent = getpid(), child = fork();
    if (child == 0) {
      alarm(20);
      bool good = true;
      const auto refused = [&](const Status& status) {
        const std::string& text = status.message();
        const bool is_refused = status.code() == Code::kInvalidArgument &&
                                text.find("process " + std::to_string(parent)) < text.size() &&
                                text.find("process " + std::to_string(getpid())) < text.size();
        if (!is_refused) std::fprintf(stderr, "not refused: %s\n", status.to_string().c_str());
        good = good && is_refused;
      };
      refused(comm.all_reduce(&in, &out, 1, DataType::kInt32));
      refused(comm.all_reduce_async(&in, &out, 1, DataType::kInt32).wait());
      refused(comm.send(&in, 1, DataType::kInt32, peer));
      refused(comm.recv_async(&in, 1, DataType::kInt32, peer).wait());
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
      good = good && pending.test() && wait_any({&pending, 1}) == 0 && ended.wait().ok();
      comm.abort("in vain");
#ifndef __SANITIZE_THREAD__  // it allows a child of threads no thread
      Config config;
      config.rank = 0;
      config.world_size = 1;
      auto own = Communicator::create(config);
      good = good && own.ok() && own->all_reduce_async(&in, &out, 1, DataType::kInt32).wait().ok();
#endif
      { const Communicator gone = std::move(comm); }
      _exit(good ? 7 : 1);
    }
    int status = 0;
    expect_eq(waitpid(child, &status, 0), child, "waitpid");
    expect(WIFEXITED(status) && WEXITSTATUS(status) == 7, "the child's calls");
    expect_ok(comm.send(&one, 1, DataType::kInt32, peer), "send");
    expect_ok(pending.wait(), "recv");
    expect_eq(received, 1, "received");
    expect_ok(comm.barrier(), "barrier");
  }));
}

}  // namespace rondo::testing
