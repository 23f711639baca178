// Communicator::shrink() where ranks are on two hosts with a network each: after the host of rank 0 has
// died, the first rank of another host, or a host's last rank.
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "comm/base/clock.hpp"
#include "tests/comm/communicator/every_collective.hpp"
#include "tests/comm/communicator/world.hpp"
#include "tests/harness/bad_network.hpp"
#include "tests/harness/hosts.hpp"

namespace rondo::testing {
namespace {

using std::chrono::milliseconds;

constexpr int kPort = 29501;  // where the ranks meet, and the agents

/// One that forked ranks share. False at first.
class SharedFlag {
 public:
  SharedFlag()
      : page_(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    REQUIRE(page_ != MAP_FAILED);
    flag_ = new (page_) std::atomic<bool>(false);
  }
  ~SharedFlag() { munmap(page_, kBytes); }
  SharedFlag(const SharedFlag&) = delete;
  SharedFlag& operator=(const SharedFlag&) = delete;
  std::atomic<bool>& operator*() const { return *flag_; }

 private:
  static constexpr size_t kBytes = 4096;
  void* const page_;
  std::atomic<bool>* flag_ = nullptr;
};

Config config_on(const Hosts& hosts, int host, int rank, int size) {
  hosts.enter_network(host);
  setenv("RONDO_SECRET", "a secret of these tests", 1);
  setenv("UCX_TLS", "tcp", 1);
  Config config;
  config.rank = rank;
  config.world_size = size;
  config.rendezvous = "tcp://" + Hosts::address(0) + ":" + std::to_string(kPort);
  config.timeout = config.bootstrap_timeout = std::chrono::seconds(30);
  return config;
}

struct Loss {
  std::vector<int> killed, left;
  bool during_shrink;
};

/// Two ranks on each of two hosts.
void lose(const Hosts& hosts, const Loss& loss) {
  std::string what;
  for (const int rank : loss.killed) what += " " + std::to_string(rank);
  INFO("killed:" << what << (loss.during_shrink ? ", when the others shrink" : ""));
  ForkGang gang(4, [&](int rank, Link& link) {
    auto comm = Communicator::create(config_on(hosts, rank / 2, rank, 4));
    expect(comm.ok(), comm.status().to_string());
    calls::everything(*comm, {.count = 11});
    link.announce("ready");
    link.await("go");
    const bool is_left = std::find(loss.left.begin(), loss.left.end(), rank) != loss.left.end();
    if (is_left && loss.during_shrink) link.announce("shrinks");
    Status failed = loss.during_shrink ? Status(Code::kAborted, "nothing") : Status();
    while (failed.ok()) failed = comm->barrier();
    const int64_t began = base::now_ns();
    auto made = comm->shrink(milliseconds(15'000));
    expect(made.ok(), "after " + failed.to_string() + ": " + made.status().to_string());
    const auto took_us = (base::now_ns() - began) / 1000;
    expect(made->former_ranks() == loss.left, "former ranks");
    if (getenv("RONDO_TEST_TIMES") != nullptr) {
      std::printf("rank %d goes on after %lld us\n", rank, static_cast<long long>(took_us));
    }
    expect(took_us < 8'000'000, "took " + std::to_string(took_us) + " us");
    calls::everything(*made, {.count = 37});
    calls::everything(*made, {.count = 20'000, .in_place = true});
    expect_ok(made->barrier(), "barrier");
  });
  for (int rank = 0; rank < 4; ++rank) gang.await(rank, "ready");
  if (!loss.during_shrink) {
    for (const int rank : loss.killed) gang.kill(rank, SIGKILL);
  }
  for (const int rank : loss.left) gang.tell(rank, "go");
  if (loss.during_shrink) {
    for (const int rank : loss.left) gang.await(rank, "shrinks");
    for (const int rank : loss.killed) gang.kill(rank, SIGKILL);
  }
  std::vector<RankResult> theirs;
  const auto results = gang.join();
  for (const int rank : loss.left) theirs.push_back(results[static_cast<size_t>(rank)]);
  require_all_ok(theirs);
}

struct Partition {
  std::vector<int> placement, on;  // the hosts of all ranks; which of them go on
  int cut;                         // a host
  bool hears = false;              // it is not heard, but hears the others
  // It may hold the host of rank 0 for lost, and knows nothing of a third one.
  milliseconds patience{25'000};
};

void part(const Hosts& hosts, const Partition& partition) {
  INFO("host " << partition.cut << " of " << partition.placement.back() + 1 << " "
               << (partition.hears ? "not heard" : "cut off"));
  const int ranks = static_cast<int>(partition.placement.size());
  const auto goes_on = [&](int rank) {
    return std::find(partition.on.begin(), partition.on.end(), rank) != partition.on.end();
  };
  BadNetwork network(hosts, 1);
  ForkGang gang(ranks, [&](int rank, Link& link) {
    setenv("RONDO_HOST_TIMEOUT", "1", 1);
    const int host = partition.placement[static_cast<size_t>(rank)];
    auto comm = Communicator::create(config_on(hosts, host, rank, ranks));
    expect(comm.ok(), comm.status().to_string());
    Status failed = comm->barrier();
    link.announce("ready");
    while (failed.ok()) failed = comm->barrier();
    const int64_t began = base::now_ns();
    auto made = comm->shrink(partition.patience);
    const auto took_us = (base::now_ns() - began) / 1000;
    expect(took_us < 6'000'000, "took " + std::to_string(took_us) + " us");
    expect(made.ok() == goes_on(rank), "after " + failed.to_string() + ": " +
                                           (made.ok() ? "goes on" : made.status().to_string()));
    if (made.ok()) {
      expect(made->former_ranks() == partition.on, "former ranks");
      calls::everything(*made, {.count = 37});
    } else {
      expect(made.status().code() == Code::kTimeout, made.status().to_string());
      // The time that has passed, and not the patience.
      expect(made.status().message().find("25 s") == std::string::npos, made.status().to_string());
    }
    link.announce("done");
    link.await("end");
  });
  for (int rank = 0; rank < ranks; ++rank) gang.await(rank, "ready");
  for (int other = 0; other < hosts.count(); ++other) {
    network.set(partition.cut, other, Wire::none());
    if (!partition.hears) network.set(other, partition.cut, Wire::none());
  }
  for (int rank = 0; rank < ranks; ++rank) gang.await(rank, "done");
  for (int rank = 0; rank < ranks; ++rank) gang.tell(rank, "end");
  require_all_ok(gang.join());
}

/// Of two hosts that lose each other the first one goes on. Its rank 0 ends when the network is back:
/// that leaves two ranks of the second host, and one of the first, which may have gone on with it.
void part_and_lose(const Hosts& hosts) {
  ForkGang gang(4, [&](int rank, Link& link) {
    setenv("RONDO_HOST_TIMEOUT", "1", 1);
    auto comm = Communicator::create(config_on(hosts, rank / 2, rank, 4));
    expect(comm.ok(), comm.status().to_string());
    Status failed = comm->barrier();
    link.announce("ready");
    while (failed.ok()) failed = comm->barrier();
    auto made = comm->shrink();
    expect(made.ok() == (rank < 2), "after " + failed.to_string() + ": " +
                                        (made.ok() ? "goes on" : made.status().to_string()));
    link.announce("done");
    link.await("go");
    if (made.ok()) {
      auto alone = made->shrink();
      expect(alone.ok(), alone.status().to_string());
    } else {
      // The proof that rank 0 has ended is there after one of these calls.
      for (int turn = 0; turn < 10; ++turn) {
        made = comm->shrink(milliseconds(2'000));
        expect(made.status().code() == Code::kTimeout,
               made.ok() ? "goes on beside rank 1" : made.status().to_string());
      }
      expect(
          made.status().message().find(
              "rank 0 ended, and might have continued with them before that") != std::string::npos,
          made.status().to_string());
    }
    link.announce("shrunk");
    link.await("end");
  });
  for (int rank = 0; rank < 4; ++rank) gang.await(rank, "ready");
  hosts.cut(1);
  for (int rank = 0; rank < 4; ++rank) gang.await(rank, "done");
  hosts.mend(1);
  gang.kill(0, SIGKILL);
  gang.await_end(0);
  for (int rank = 1; rank < 4; ++rank) gang.tell(rank, "go");
  for (int rank = 1; rank < 4; ++rank) gang.await(rank, "shrunk");
  for (int rank = 1; rank < 4; ++rank) gang.tell(rank, "end");
  auto results = gang.join();
  results.erase(results.begin());
  require_all_ok(results);
}

/// What both hosts' ranks do while their connections are reset: reduce, split, and shrink.
Status reduce_and_split(Communicator& comm, const std::atomic<bool>& over, bool& ends) {
  int32_t flag = over ? 1 : 0;
  RONDO_TRY(comm.all_reduce(&flag, &flag, 1, DataType::kInt32, ReduceOp::kMax));
  ends = flag == 1;
  std::vector<float> values(30'000, 1.0F);
  RONDO_TRY(comm.all_reduce(values.data(), values.data(), values.size(), DataType::kFloat32));
  expect(values.back() == static_cast<float>(comm.size()), "the sum");
  auto part = RONDO_TRY(comm.split(0, -comm.rank()));
  return part->barrier();
}

/// Every rank lives: after each reset all of them make the next communicator.
void reset_at_random(const Hosts& hosts, const std::vector<int>& placement) {
  constexpr int kResets = 8;
  const int ranks = static_cast<int>(placement.size());
  SharedFlag over;
  ForkGang gang(
      ranks,
      [&](int rank, Link& link) {
        auto comm = Communicator::create(
            config_on(hosts, placement[static_cast<size_t>(rank)], rank, ranks));
        expect(comm.ok(), comm.status().to_string());
        link.announce("ready");
        int losses = 0;
        for (bool ends = false; !ends;) {
          const Status failed = reduce_and_split(*comm, *over, ends);
          if (failed.ok()) continue;
          ++losses;
          ends = false;
          auto made = comm->shrink();
          expect(made.ok(), "after " + failed.to_string() + ": " + made.status().to_string());
          expect(made->size() == ranks, "goes on with " + std::to_string(made->size()) +
                                            " ranks after " + failed.to_string());
          comm = std::move(made);
        }
        if (getenv("RONDO_TEST_TIMES") != nullptr) std::printf("%d losses\n", losses);
      },
      std::chrono::seconds(100));
  for (int rank = 0; rank < ranks; ++rank) gang.await(rank, "ready");
  std::mt19937 random(static_cast<unsigned>(ranks));
  int reset = 0;
  for (int i = 0; i < kResets; ++i) {
    // The moment that is tried.
    std::this_thread::sleep_for(milliseconds(random() % 400));
    reset += hosts.reset(i % 2, 1 - i % 2);
  }
  CHECK(reset > kResets);
  *over = true;
  require_all_ok(gang.join());
}

/// How many connections the network of that process has accepted.
long accepted_connections(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/net/snmp");
  std::vector<std::string> names;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("Tcp:")) continue;
    std::istringstream stream(line);
    std::vector<std::string> words(std::istream_iterator<std::string>(stream), {});
    for (size_t i = 0; i < words.size() && !names.empty(); ++i) {
      if (names[i] == "PassiveOpens") return std::stol(words[i]);
    }
    names = std::move(words);
  }
  throw std::runtime_error("the kernel does not count connections");
}

}  // namespace

TEST_CASE("a rank of another host that does not come is asked ever less often", "[hosts]") {
  const Hosts hosts(2);
  ForkGang gang(3, [&](int rank, Link& link) {
    auto comm = Communicator::create(config_on(hosts, rank / 2, rank, 3));
    expect(comm.ok(), comm.status().to_string());
    expect_ok(comm->barrier(), "barrier");
    link.announce("ready");
    link.await("go");
    comm->abort("rank 2 is stopped");
    auto made = comm->shrink(milliseconds(4'000));
    expect(made.ok(), made.status().to_string());
    expect(made->former_ranks() == std::vector<int>{0, 1}, "former ranks");
  });
  for (int rank = 0; rank < 3; ++rank) gang.await(rank, "ready");
  gang.kill(2, SIGSTOP);
  const long before = accepted_connections(gang.pid(2));
  for (const int rank : {0, 1}) gang.tell(rank, "go");
  for (const int rank : {0, 1}) gang.await_end(rank);
  const long asked = accepted_connections(gang.pid(2)) - before;
  INFO(asked << " connections");
  CHECK(asked > 0);
  CHECK(asked < 40);  // 20 a second in four seconds would be 80
  gang.kill(2, SIGKILL);
  auto results = gang.join();
  results.pop_back();
  require_all_ok(results);
}

TEST_CASE("of hosts that lose each other only one part goes on", "[hosts]") {
  const Hosts hosts(3);
  part(hosts, {{0, 0, 1, 1}, {0, 1}, 1});
  part(hosts, {{0, 0, 1, 1}, {0, 1}, 0});
  part(hosts, {{0, 1, 1}, {1, 2}, 0});
  part(hosts, {{0, 1}, {}, 0});  // of two ranks neither: the other one may live
  part(hosts, {{0, 1, 2}, {1, 2}, 0});
  part(hosts, {{0, 0, 1, 2}, {0, 1, 2}, 2, false, milliseconds(2'000)});
  part(hosts, {{0, 1, 2}, {1, 2}, 0, true});
  part(hosts, {{0, 1, 1}, {1, 2}, 0, true});
}

TEST_CASE("ranks that ended on a lost host may have gone on before", "[hosts]") {
  part_and_lose(Hosts(2));
}

TEST_CASE("agents whose connection is reset have a new one before the host is silent", "[hosts]") {
  if (!Hosts::can_reset()) return;
  const Hosts hosts(2);
  SharedFlag over;
  ForkGang gang(2, [&](int rank, Link& link) {
    setenv("RONDO_HOST_TIMEOUT", "2", 1);
    auto comm = Communicator::create(config_on(hosts, rank, rank, 2));
    expect(comm.ok(), comm.status().to_string());
    link.announce("ready");
    for (int32_t flag = 0; flag == 0;) {
      flag = *over ? 1 : 0;
      expect_ok(comm->all_reduce(&flag, &flag, 1, DataType::kInt32, ReduceOp::kMax), "all_reduce");
    }
    if (rank == 1) comm->abort("through the new connection");
    Status failed;
    while (failed.ok()) failed = comm->barrier();
    expect(failed.message().find("through the new connection") != std::string::npos,
           failed.to_string());
    link.announce("failed");
    link.await("end");
  });
  for (int rank = 0; rank < 2; ++rank) gang.await(rank, "ready");
  CHECK(hosts.reset(0, 1, kPort) == 1);
  // Longer than a host may be silent.
  std::this_thread::sleep_for(milliseconds(3'000));
  *over = true;
  for (int rank = 0; rank < 2; ++rank) gang.await(rank, "failed");
  for (int rank = 0; rank < 2; ++rank) gang.tell(rank, "end");
  require_all_ok(gang.join());
}

TEST_CASE("hosts whose connections are reset meet again, whatever they do", "[hosts]") {
  if (!Hosts::can_reset()) return;
  const Hosts hosts(2);
  for (const std::vector<int>& placement : {std::vector<int>{0, 1}, std::vector<int>{0, 0, 1, 1}}) {
    INFO(placement.size() << " ranks");
    reset_at_random(hosts, placement);
  }
}

TEST_CASE("ranks of two hosts go on without those that are killed", "[hosts]") {
  const Hosts hosts(2);
  for (const bool during_shrink : {false, true}) {
    lose(hosts, {{0, 1}, {2, 3}, during_shrink});
    lose(hosts, {{0}, {1, 2, 3}, during_shrink});
    lose(hosts, {{2}, {0, 1, 3}, during_shrink});
    lose(hosts, {{3}, {0, 1, 2}, during_shrink});
    lose(hosts, {{2, 3}, {0, 1}, during_shrink});
    lose(hosts, {{0, 2}, {1, 3}, during_shrink});
  }
}

}  // namespace rondo::testing
