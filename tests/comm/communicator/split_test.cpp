// Communicators made from communicators: by color, over subsets, duplicates, several levels, and
// without waiting.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rondo/log.hpp"
#include "tests/comm/communicator/await.hpp"
#include "tests/comm/communicator/world.hpp"
#include "transport/memory/unique_fd.hpp"

namespace rondo::testing {
namespace {

using transport::UniqueFd;

/// The sum of the members' numbers, by an all-reduce over `comm`.
int32_t total(Communicator& comm, int32_t own) {
  int32_t sum = 0;
  expect_ok(comm.all_reduce(&own, &sum, 1, DataType::kInt32), "all_reduce");
  return sum;
}

/// A port of 127.0.0.1 that nobody listens at. It is bound, so that the kernel gives it to nobody
/// else; whoever sets SO_REUSEADDR may listen there.
UniqueFd bound_port() {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
  REQUIRE(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  return fd;
}

int port_of(const UniqueFd& fd) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  REQUIRE(getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
  return ntohs(address.sin_port);
}

}  // namespace

TEST_CASE("a split by color makes independent communicators, ordered by key") {
  for (const How how : kHows) {
    for (const int size : {1, 2, 3, 4, 5, 7}) {
      require_all_ok(run_world(how, size, [](Communicator& comm) {
        const int n = comm.size(), r = comm.rank();
        // Odd and even ranks, the last first; one rank stands aside.
        const int color = r == 3 ? Communicator::kNoColor : r % 2;
        auto part = comm.split(color, -r);
        expect(part.ok(), part.status().to_string());
        expect_eq((*part).has_value(), r != 3, "whether there is a communicator");
        if (r != 3) {
          int members = 0, before = 0, sum = 0;
          for (int p = 0; p < n; ++p) {
            if (p == 3 || p % 2 != color) continue;
            ++members;
            before += p > r;
            sum += p;
          }
          Communicator& own = **part;
          expect_eq(own.size(), members, "size");
          expect_eq(own.rank(), before, "rank");
          for (int turn = 0; turn < 50; ++turn) expect_eq(total(own, r), sum, "sum");
        }
        expect_eq(total(comm, 1), n, "the parent works on");
      }));
    }
  }
}

TEST_CASE("neither a split nor a duplicate is possible inside a group, and each is named") {
  const TempDirectory directory;
  auto comm = Communicator::create(world_config(directory.path(), 0, 1));
  REQUIRE(comm.ok());
  REQUIRE(comm->group_start().ok());
  CHECK(comm->split(0, 0).status().message() == "split inside a group: call group_end first");
  CHECK(comm->duplicate().status().message() == "duplicate inside a group: call group_end first");
  CHECK(comm->group_end().ok());
}

TEST_CASE("splits of splits, many at once, and a duplicate beside its original") {
  require_all_ok(run_world(How::kForks, 4, [](Communicator& comm) {
    auto half = comm.split(comm.rank() / 2, 0);
    expect(half.ok() && *half, "half");
    auto single = (*half)->split((*half)->rank(), 0);
    expect(single.ok() && *single, "single");
    expect_eq((*single)->size(), 1, "size of a quarter");
    auto same = comm.duplicate();
    expect(same.ok(), same.status().to_string());
    expect_eq(same->rank(), comm.rank(), "rank");
    std::vector<int32_t> a(300000, 1), b(300000, 2);
    Work first = comm.all_reduce_async(a.data(), a.data(), a.size(), DataType::kInt32);
    Work second = same->all_reduce_async(b.data(), b.data(), b.size(), DataType::kInt32);
    // In another order on every second rank: the two are independent.
    expect_ok((comm.rank() % 2 == 0 ? first : second).wait(), "work");
    expect_ok((comm.rank() % 2 == 0 ? second : first).wait(), "work");
    expect_eq(a[0], 4, "sum");
    expect_eq(b[0], 8, "sum");
    expect_eq(total(**half, comm.rank()), comm.rank() < 2 ? 1 : 5, "half");
    for (int turn = 0; turn < 20; ++turn) {
      auto again = comm.duplicate();
      expect(again.ok(), again.status().to_string());
      expect_eq(total(*again, 1), 4, "duplicate");
    }
  }));
}

TEST_CASE("a part goes by what rank 0 of the whole has settled, and any whole can be split") {
  const TempDirectory directory;
  require_all_ok(run_ranks(How::kForks, 3, [&](int rank) {
    Config config = world_config(directory.path(), rank, 3);
    if (rank == 0) {
      config.reproducible = true;
      config.algorithm = Algorithm::kTwoShotDirect;  // not for split's own exchange
    }
    auto comm = Communicator::create(config);
    expect(comm.ok(), comm.status().to_string());
    auto part = comm->split(rank == 0 ? 0 : 1, 0);
    expect(part.ok() && *part, part.status().to_string());
    if (rank == 0) return;
    std::vector<float> data(1000, 1.0f);
    const Status status = (*part)->all_reduce(data.data(), data.data(), 1000, DataType::kFloat32,
                                              ReduceOp::kSum, {.algorithm = Algorithm::kRing});
    expect(status.code() == Code::kUnavailable, status.to_string());
    expect(status.message().find("rank order") != std::string::npos, status.to_string());
  }));
}

TEST_CASE("over TCP, too, many parts come about at once, at one port") {
  for (const How how : kHows) {
    const UniqueFd keeper = bound_port();
    const std::string place = "tcp://127.0.0.1:" + std::to_string(port_of(keeper));
    require_all_ok(run_ranks(how, 16, [&](int rank) {
      auto comm = Communicator::create(world_config(place, rank, 16));
      expect(comm.ok(), comm.status().to_string());
      for (const int colors : {8, 5}) {
        auto part = comm->split(rank % colors, 0);
        expect(part.ok() && *part, part.status().to_string());
        int members = 0;
        for (int r = rank % colors; r < 16; r += colors) ++members;
        expect_eq((*part)->size(), members, "size");
        expect_eq(total(**part, 1), members, "sum");
      }
    }));
  }
}

namespace {

std::mutex logged_mutex;
std::vector<std::string> logged;

/// Whether this process has logged a line that begins so.
bool has_logged(const std::string& beginning) {
  const std::scoped_lock lock(logged_mutex);
  return std::any_of(logged.begin(), logged.end(),
                     [&](const std::string& line) { return line.starts_with(beginning); });
}

}  // namespace

TEST_CASE("a part's name is what its errors and logs begin with; without one they are as before") {
  require_all_ok(run_world(How::kForks, 3, [](Communicator& comm) {
    set_log_level(LogLevel::kInfo);
    set_log_callback([](LogLevel, std::string_view line) {
      const std::scoped_lock lock(logged_mutex);
      logged.emplace_back(line);
    });
    std::string long_name = "x", whole = "x";
    for (int i = 0; i < 59; ++i) long_name += "\u00e4";
    for (int i = 0; i < 29; ++i) whole += "\u00e4";  // of 60 bytes
    const std::vector<std::pair<std::string, std::string>> names = {
        {"rows", "rows"}, {"", "world/color 4, split 2"}, {"a\tb", "a?b"}, {long_name, whole}};
    for (const auto& [name, shown] : names) {
      auto part = comm.split(comm.rank() == 1 ? Communicator::kNoColor : 4, 0, name);
      expect(part.ok(), part.status().to_string());
      if (comm.rank() == 1) continue;
      Communicator& own = **part;
      expect(has_logged(shown + ": rank "), "no line of " + shown);
      expect(own.split(0, 0).ok(), "a part of a part");
      expect(has_logged(shown + "/color 0: rank "), "no line of a part of " + shown);
      float in = 1, out = 0;
      const Status status =
          own.rank() == 0 ? own.all_reduce(&in, &out, 1, DataType::kFloat32) : own.barrier();
      expect(status.code() == Code::kMismatch, status.to_string());
      expect(status.message().starts_with(shown + ": ") == !name.empty(), status.to_string());
    }
  }));
}

TEST_CASE("a negative color is refused where it was given, and holds nobody up") {
  require_all_ok(run_world(How::kForks, 3, [](Communicator& comm) {
    auto part = comm.split(comm.rank() == 1 ? -5 : 0, 0);
    if (comm.rank() == 1) {
      expect(part.status().code() == Code::kInvalidArgument, part.status().to_string());
      expect(part.status().message().find("-5") != std::string::npos, part.status().to_string());
    } else {
      expect(part.ok(), part.status().to_string());
      expect_eq((*part)->size(), 2, "size");
    }
    expect_eq(total(comm, 1), 3, "the parent works on");
  }));
}

TEST_CASE("a rank that waits in a split, or calls something else meanwhile, is told by that name") {
  Config config;
  config.timeout = std::chrono::milliseconds(300);
  require_all_ok(run_world(
      How::kForks, 2,
      [](Communicator& comm) {
        if (comm.rank() == 1) {
          await("the error", [&] { return !comm.status().ok(); });
        } else {
          const Status status = comm.split(0, 0).status();
          expect(status.code() == Code::kTimeout, status.to_string());
          expect(status.message().find("split (operation 1) has not moved") == 0,
                 status.to_string());
        }
      },
      config));
  require_all_ok(run_world(How::kForks, 2, [](Communicator& comm) {
    const Status status = comm.rank() == 0 ? comm.duplicate().status() : comm.split(0, 0).status();
    expect(status.code() == Code::kMismatch, status.to_string());
    expect(status.message().find("called duplicate") != std::string::npos, status.to_string());
    expect(status.message().find("called split") != std::string::npos, status.to_string());
  }));
  require_all_ok(run_world(How::kForks, 2, [](Communicator& comm) {
    std::vector<int32_t> all(6);
    // As split's own exchange is.
    const Status status = comm.rank() == 0
                              ? comm.split(0, 0).status()
                              : comm.all_gather(all.data() + 3, all.data(), 3, DataType::kInt32,
                                                {.algorithm = Algorithm::kRing});
    expect(status.code() == Code::kMismatch, status.to_string());
    expect(status.message().find("called split, ") != std::string::npos ||
               status.message().find("called split;") != std::string::npos,
           status.to_string());
  }));
}

TEST_CASE("a communicator over a subset of the job's processes needs only those") {
  const TempDirectory directory;
  require_all_ok(run_ranks(How::kForks, 5, [&](int rank) {
    if (rank % 2 == 1) return;
    Config config = world_config(directory.path(), rank / 2, 3);
    config.name = "even";
    auto comm = Communicator::create(config);
    expect(comm.ok(), comm.status().to_string());
    expect_eq(total(*comm, rank), 6, "sum");
  }));
}

TEST_CASE("creation need not wait") {
  for (const How how : kHows) {
    const TempDirectory directory;
    require_all_ok(run_ranks(how, 3, [&](int rank) {
      std::vector<std::future<Result<Communicator>>> coming;
      for (int k = 0; k < 3; ++k) {
        // Each rank asks for them in an order of its own: in turn they could not come about.
        Config config = world_config(directory.path(), rank, 3);
        config.name = "world-" + std::to_string((k + rank) % 3);
        coming.push_back(Communicator::create_async(config));
      }
      std::vector<std::unique_ptr<Communicator>> worlds(3);
      for (size_t k = 0; k < 3; ++k) {
        auto comm = coming[k].get();
        expect(comm.ok(), comm.status().to_string());
        worlds[(k + static_cast<size_t>(rank)) % 3] =
            std::make_unique<Communicator>(std::move(*comm));
      }
      for (auto& world : worlds) expect_eq(total(*world, rank), 3, "sum");
    }));
  }
  // Nobody else comes: the caller is not held up, and hears in the end.
  const TempDirectory directory;
  Config config = world_config(directory.path(), 0, 2);
  config.bootstrap_timeout = std::chrono::milliseconds(300);
  auto lonely = Communicator::create_async(config);
  CHECK(lonely.wait_for(std::chrono::milliseconds(0)) == std::future_status::timeout);
  const auto comm = lonely.get();
  CHECK(!comm.ok());
  CHECK(comm.status().message().find("rank 1") != std::string::npos);
}

}  // namespace rondo::testing
