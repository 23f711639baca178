// Communicators made from communicators: by color, duplicates, several levels, and
// without waiting.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "rondo/log.hpp"
#include "tests/comm/communicator/worlds.hpp"
#include "transport/memory/unique_fd.hpp"

namespace rondo::testing {
namespace {

using transport::UniqueFd;

/// The sum of the members' numbers, by an all-reduce over `comm`.
int32_t total(Communicator& comm, int32_t own) {
  int32_t sum = 0;
  expect_ok(comm.all_reduce(&own, &sum, 1, kInt), "all_reduce");
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
  run_each({1, 2, 3, 4, 5, 7}, [](Communicator& comm) {
    const int n = comm.size(), r = comm.rank();
    // Odd and even ranks, the last first; one rank stands aside.
    const int color = r == 3 ? Communicator::kNoColor : r % 2;
    auto part = expect_value(comm.split(color, -r), "split");
    expect_eq(part.has_value(), r != 3, "whether there is a communicator");
    if (part) {
      int members = 0, before = 0, sum = 0;
      for (int p = color; p < n; p += 2) {
        if (p == 3) continue;
        ++members;
        before += p > r;
        sum += p;
      }
      expect_eq(part->size(), members, "size");
      expect_eq(part->rank(), before, "rank");
      for (int turn = 0; turn < 50; ++turn) expect_eq(total(*part, r), sum, "sum");
    }
    expect_eq(total(comm, 1), n, "the parent works on");
  });
}

TEST_CASE("neither a split nor a duplicate is possible inside a group, and each is named") {
  run_ok(How::kThreads, 1, [](Communicator& comm) {
    expect_ok(comm.group_start(), "group_start");
    expect_refused(comm.split(0, 0).status(), "split inside a group: call group_end first");
    expect_refused(comm.duplicate().status(), "duplicate inside a group: call group_end first");
    expect_ok(comm.group_end(), "group_end");
  });
}

TEST_CASE("splits of splits, many at once, and a duplicate beside its original") {
  run_ok(How::kForks, 4, [](Communicator& comm) {
    Communicator half = part_of(comm, comm.rank() / 2);
    expect_eq(part_of(half, half.rank()).size(), 1, "size of a quarter");
    Communicator same = expect_value(comm.duplicate(), "duplicate");
    expect_eq(same.rank(), comm.rank(), "rank");
    std::vector<int32_t> a(300000, 1), b(300000, 2);
    std::vector<Work> works;
    works.push_back(comm.all_reduce_async(a, a));
    works.push_back(same.all_reduce_async(b, b));
    expect_ok(wait_all(works), "both");
    expect_eq(a[0], 4, "sum");
    expect_eq(b[0], 8, "sum");
    expect_eq(total(half, comm.rank()), comm.rank() < 2 ? 1 : 5, "half");
    for (int turn = 0; turn < 20; ++turn) {
      Communicator again = expect_value(comm.duplicate(), "duplicate");
      expect_eq(total(again, 1), 4, "duplicate");
    }
  });
}

TEST_CASE("a part goes by what rank 0 of the whole has settled, and any whole can be split") {
  const TempDirectory directory;
  require_all_ok(run_ranks(How::kForks, 3, [&](int rank) {
    Config config = world_config(directory.path(), rank, 3);
    if (rank == 0) {
      config.reproducible = true;
      config.algorithm = Algorithm::kTwoShotDirect;  // not for split's own exchange
    }
    Communicator comm = created(config);
    Communicator part = part_of(comm, rank == 0 ? 0 : 1);
    if (rank == 0) return;
    std::vector<float> data(1000, 1.0f);
    const Status status = part.all_reduce(data, data, {.algorithm = Algorithm::kRing});
    expect_error(status, Code::kUnavailable, "rank order");
  }));
}

TEST_CASE("over TCP, too, many parts come about at once, at one port") {
  for (const How how : kHows) {
    const UniqueFd keeper = bound_port();
    const std::string place = "tcp://127.0.0.1:" + std::to_string(port_of(keeper));
    require_all_ok(run_ranks(how, 16, [&](int rank) {
      Communicator comm = created(world_config(place, rank, 16));
      for (const int colors : {8, 5}) {
        Communicator part = part_of(comm, rank % colors);
        int members = 0;
        for (int r = rank % colors; r < 16; r += colors) ++members;
        expect_eq(part.size(), members, "size");
        expect_eq(total(part, 1), members, "sum");
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
  run_ok(How::kForks, 3, [](Communicator& comm) {
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
      auto part =
          expect_value(comm.split(comm.rank() == 1 ? Communicator::kNoColor : 4, 0, name), "split");
      if (!part) continue;
      Communicator& own = *part;
      expect(has_logged(shown + ": rank "), "no line of " + shown);
      (void)part_of(own, 0);
      expect(has_logged(shown + "/color 0: rank "), "no line of a part of " + shown);
      float in = 1, out = 0;
      const Status status = own.rank() == 0 ? own.all_reduce(&in, &out, 1, kFloat) : own.barrier();
      expect_error(status, Code::kMismatch);
      expect(status.message().starts_with(shown + ": ") == !name.empty(), status.to_string());
    }
  });
}

TEST_CASE("a negative color is refused where it was given, and holds nobody up") {
  run_ok(How::kForks, 3, [](Communicator& comm) {
    if (comm.rank() == 1) {
      expect_refused(comm.split(-5, 0).status(), "-5");
    } else {
      expect_eq(part_of(comm, 0).size(), 2, "size");
    }
    expect_eq(total(comm, 1), 3, "the parent works on");
  });
}

TEST_CASE("a rank that waits in a split, or calls something else meanwhile, is told by that name") {
  run_ok(How::kForks, 2, with(&Config::stall_timeout, 300ms), [](Communicator& comm) {
    if (comm.rank() == 1) return await("the error", [&] { return !comm.status().ok(); });
    const Status status = comm.split(0, 0).status();
    expect_error(status, Code::kTimeout);
    expect(status.message().starts_with("split (operation 1) has not moved"), status.to_string());
  });
  run_ok(How::kForks, 2, [](Communicator& comm) {
    const Status status = comm.rank() == 0 ? comm.duplicate().status() : comm.split(0, 0).status();
    expect_error(status, Code::kMismatch, "called duplicate", "called split");
  });
  run_ok(How::kForks, 2, [](Communicator& comm) {
    std::vector<int32_t> all(6);
    // As split's own exchange is.
    const Status status = comm.rank() == 0 ? comm.split(0, 0).status()
                                           : comm.all_gather(all.data() + 3, all.data(), 3, kInt,
                                                             {.algorithm = Algorithm::kRing});
    expect_error(status, Code::kMismatch);
    expect(status.message().find("called split, ") != std::string::npos ||
               status.message().find("called split;") != std::string::npos,
           status.to_string());
  });
}

TEST_CASE("creation need not wait") {
  for (const How how : kHows) {
    const TempDirectory directory;
    require_all_ok(run_ranks(how, 3, [&](int rank) {
      std::vector<std::future<Result<Communicator>>> coming;
      for (int k = 0; k < 3; ++k) {
        // Each rank asks for them in an order of its own: in turn they could not come about.
        const Config config = with(&Config::name, "world-" + std::to_string((k + rank) % 3));
        coming.push_back(
            Communicator::create_async(world_config(directory.path(), rank, 3, config)));
      }
      std::vector<Communicator> worlds;
      for (auto& each : coming) worlds.push_back(expect_value(each.get(), "create_async"));
      for (size_t k = 0; k < 3; ++k) {  // in one order
        expect_eq(total(worlds[(k + 3 - static_cast<size_t>(rank)) % 3], rank), 3, "sum");
      }
    }));
  }
  // Nobody else comes: the caller is not held up, and hears in the end.
  const TempDirectory directory;
  Config config = world_config(directory.path(), 0, 2);
  config.bootstrap_timeout = 300ms;
  auto lonely = Communicator::create_async(config);
  CHECK(lonely.wait_for(0ms) == std::future_status::timeout);
  expect_error(lonely.get().status(), Code::kBootstrap, "rank 1");
}

}  // namespace rondo::testing
