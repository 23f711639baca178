// What ranks on several hosts promise beyond what ranks of one host do: hierarchical algorithms are
// exact however ranks lie on hosts, reproducible results do not depend on it, what connects hosts is
// named where it is missing, and hosts are called by their names. The hosts are pretended, with UCX
// over loopback between them (tests/comm/faults has real ones).
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <set>

#include "comm/bootstrap/identity/host.hpp"
#include "tests/comm/communicator/worlds.hpp"

namespace rondo::testing {
namespace {

/// The host of each rank; read by the hook, in this process and those forked from it.
std::vector<int> layout;

void lie_on(int rank, comm::RankHost& here) {
  here.name = "h" + std::to_string(layout[static_cast<size_t>(rank)]);
  here.boot_id = here.name;
}

/// Runs body(config) on ranks that lie on these hosts.
void run_on_hosts(const std::vector<int>& hosts, const Config& config,
                  const std::function<void(const Config&)>& body) {
  layout = hosts;
  const auto saved = std::exchange(comm::pretend_host, lie_on);
  setenv("UCX_TLS", "tcp", 1);
  setenv("UCX_NET_DEVICES", "lo", 1);
  const TempDirectory directory;
  const int size = static_cast<int>(hosts.size());
  const auto results = run_ranks(How::kForks, size, [&](int rank) {
    Config own = world_config(directory.path(), rank, size, config);
    own.rendezvous = loopback_place(directory.path());
    body(own);
  });
  comm::pretend_host = saved;
  require_all_ok(results);
}

void run_on(const std::vector<int>& hosts, const Config& config, const WorldBody& body) {
  run_on_hosts(hosts, config, [&](const Config& own) {
    Communicator comm = created(own);
    body(comm);
  });
}

/// No rank of these hosts gets a communicator.
void expect_none_on(const std::vector<int>& hosts, Code code, const std::string& says) {
  run_on_hosts(hosts, {}, [&](const Config& own) {
    expect_error(Communicator::create(own).status(), code, says);
  });
}

std::string text_of(const std::vector<int>& hosts) {
  std::string text = "ranks on hosts";
  for (const int host : hosts) text += " " + std::to_string(host);
  return text;
}

/// The TCP ports at which this process listens.
std::set<int> listened_ports() {
  std::set<int> ports;
  for (int fd = 3; fd < 1024; ++fd) {
    int listens = 0;
    sockaddr_in6 address{};  // its port is where that of IPv4 is
    socklen_t size = sizeof listens, address_size = sizeof address;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0) continue;
    getsockname(fd, reinterpret_cast<sockaddr*>(&address), &address_size);
    if (address.sin6_family == AF_INET || address.sin6_family == AF_INET6)
      ports.insert(ntohs(address.sin6_port));
  }
  return ports;
}

const std::vector<std::vector<int>> kLayouts{{0, 1},       {0, 1, 0},    {0, 0, 1, 1},
                                             {0, 1, 2, 3}, {0, 0, 0, 1}, {0, 1, 1, 2, 2, 2, 2}};

/// The bits of `rank`'s sums of values without a pattern, all collectives that reduce one after the other.
std::string reduced_bits(Communicator& comm, size_t count, DataType type) {
  const auto n = static_cast<size_t>(comm.size());
  const size_t bytes = count * n * size_of(type);
  Buffer in(bytes, false), out(bytes, false), root(bytes, false), part(bytes, false);
  for (size_t i = 0; i < count * n; ++i) {
    const double value =
        std::sin(static_cast<double>(i * 31 + static_cast<size_t>(comm.rank()) * 17)) *
        std::ldexp(1.0, static_cast<int>(i % 20) - 10);
    store(in.data() + i * size_of(type), type, value);
  }
  expect_ok(comm.all_reduce(in.data(), out.data(), count * n, type), "all_reduce");
  expect_ok(comm.reduce_scatter(in.data(), part.data(), count, type), "reduce_scatter");
  expect_ok(comm.reduce(in.data(), root.data(), count * n, type, ReduceOp::kSum, 1), "reduce");
  std::string bits(reinterpret_cast<char*>(out.data()), bytes);
  bits.append(reinterpret_cast<char*>(part.data()), count * size_of(type));
  if (comm.rank() == 1) bits.append(reinterpret_cast<char*>(root.data()), bytes);
  return bits;
}

}  // namespace

TEST_CASE("hierarchical algorithms are exact however ranks lie on hosts") {
  for (const std::vector<int>& hosts : kLayouts) {
    INFO(text_of(hosts));
    run_on(hosts, with(&Config::slot_bytes, 4096), [](Communicator& comm) {
      for (const Algorithm algorithm : {Algorithm::kHierarchical, Algorithm::kHierarchicalTree}) {
        for (const size_t count : {size_t{1}, size_t{13}, size_t{5000}, size_t{100'003}}) {
          for (const bool in_place : {false, true}) {
            Buffer in(count * 4, false), other(count * 4, false);
            Buffer& out = in_place ? in : other;
            fill(in, 0, count, kInt, ReduceOp::kSum, comm.rank());
            expect_ok(comm.all_reduce(in.data(), out.data(), count, kInt, ReduceOp::kSum,
                                      {.algorithm = algorithm}),
                      std::string(name(algorithm)));
            expect_sum(out, count, kInt, comm.size());
          }
        }
      }
    });
  }
}

TEST_CASE("large messages go by hosts, and small ones through their first ranks") {
  run_on({0, 0, 1, 1}, {}, [](Communicator& comm) {
    const auto chosen = [&](size_t count) {
      return comm.plan(Collective::kAllReduce, count, kFloat, false, Algorithm::kAuto).algorithm;
    };
    expect(chosen(1 << 22) == Algorithm::kHierarchical, std::string(name(chosen(1 << 22))));
    expect(chosen(2) == Algorithm::kHierarchicalTree, std::string(name(chosen(2))));
  });
}

TEST_CASE("averages of integers are exact over several hosts") {
  run_on({0, 0, 1}, {}, [](Communicator& comm) {
    for (const size_t count : {size_t{1}, size_t{40'000}}) {
      const int32_t most = std::numeric_limits<int32_t>::max();
      const std::vector<int32_t> in(count, most - comm.rank()), all(3 * count, in[0]);
      const std::vector<int32_t> wanted(count, most - 1);
      std::vector<int32_t> out(count);
      const auto judge = [&](const Status& status, const std::string& what) {
        expect_ok(status, what);
        expect(out == wanted, what + ": average " + std::to_string(out[0]));
        std::ranges::fill(out, 0);
      };
      judge(comm.all_reduce(in.data(), out.data(), count, kInt, ReduceOp::kAvg), "all_reduce");
      judge(comm.reduce_scatter(all.data(), out.data(), count, kInt, ReduceOp::kAvg),
            "reduce_scatter");
      const Status reduced = comm.reduce(in.data(), out.data(), count, kInt, ReduceOp::kAvg, 2);
      if (comm.rank() == 2) judge(reduced, "reduce");
      expect_ok(reduced, "reduce");
      const Status refused = comm.all_reduce(in.data(), out.data(), count, kInt, ReduceOp::kAvg,
                                             {.algorithm = Algorithm::kHierarchical});
      expect_error(refused, Code::kUnavailable);
    }
  });
}

TEST_CASE("reproducible results do not depend on how ranks lie on hosts") {
  for (const DataType type : {kFloat, DataType::kBFloat16}) {
    std::vector<size_t> first;
    for (const std::vector<int>& hosts : {std::vector<int>{0, 0, 0, 0, 0},
                                          {0, 1, 0, 1, 0},
                                          {0, 0, 0, 1, 1},
                                          {0, 1, 2, 3, 4},
                                          {0, 1, 1, 1, 1}}) {
      INFO(name(type) << ", " << text_of(hosts));
      const Shared<std::array<size_t, 5>> hashes;
      run_on(hosts, with(&Config::reproducible, true), [&](Communicator& comm) {
        std::string bits;
        for (const size_t count : {size_t{3}, size_t{2000}, size_t{40'000}}) {
          bits += reduced_bits(comm, count, type);
        }
        (*hashes)[static_cast<size_t>(comm.rank())] = std::hash<std::string>{}(bits);
      });
      const std::vector<size_t> found(hashes->begin(), hashes->end());
      if (first.empty()) first = found;
      CHECK(found == first);
    }
  }
}

TEST_CASE(
    "without UCX ranks on several hosts learn what to install, and those of one do not need it") {
  setenv("RONDO_UCX", "/nowhere/libucp.so.0", 1);
  expect_none_on({0, 1, 0}, Code::kUnavailable, "libucx0");
  run_on({0, 0}, {}, [](Communicator& comm) { expect_ok(comm.barrier(), "barrier"); });
  unsetenv("RONDO_UCX");
}

TEST_CASE("a rank listens at ports of RONDO_PORTS only, and says when they do not suffice") {
  setenv("RONDO_PORTS", "23000-23039", 1);
  run_on({0, 1}, {}, [](Communicator& comm) {
    expect_ok(comm.barrier(), "barrier");
    const std::set<int> ports = listened_ports();
    expect(ports.size() >= 2, "no ports");
    expect(*ports.begin() >= 23'000 && *ports.rbegin() <= 23'039,
           std::to_string(*ports.begin()) + " to " + std::to_string(*ports.rbegin()));
  });
  setenv("RONDO_PORTS", "23040-23041", 1);
  expect_none_on({0, 1}, Code::kResourceExhausted, "give it more ports");
  unsetenv("RONDO_PORTS");
}

TEST_CASE("errors and the flight record know the hosts") {
  run_on({0, 1, 1}, {}, [](Communicator& comm) {
    const Status first = comm.barrier();  // rank 2 may have passed it, and ended it here
    if (comm.rank() == 2) comm.abort("enough");
    expect_error(error_of_barriers(comm, first), Code::kAborted, "rank 2 aborted: enough");
    // The rows of other hosts' ranks are there, too.
    const std::string record = comm.flight_record();
    expect_contains(record, "rank 2 (pid ");
    expect_contains(record, "#1 barrier");
  });
}

// The end of the first host's agent waits for the last rows of the others.
TEST_CASE("roots on different hosts that only send are told of when they leave") {
  SharedCount calls, left;
  run_on({0, 1}, {}, [&](Communicator& comm) {
    std::vector<std::string> errors;
    set_log_callback([&](LogLevel level, std::string_view line) {
      if (level == LogLevel::kError) errors.emplace_back(line);
    });
    expect_ok(comm.barrier(), "barrier");
    int64_t value = 1;
    expect_ok(comm.broadcast(&value, &value, 1, DataType::kInt64, comm.rank()), "broadcast");
    const int rank = comm.rank();
    ++*calls;
    await("both calls", [&] { return *calls == 2; });
    if (rank == 0) await("rank 1 leaves", [&] { return *left == 1; });
    { const Communicator gone = std::move(comm); }
    ++*left;
    if (rank == 1) return;
    expect_eq(errors.size(), size_t{1}, "errors");
    for (const char* part : {"operation 2: rank 0 called broadcast", "root 0", "root 1"}) {
      expect_contains(errors[0], part);
    }
  });
}

}  // namespace rondo::testing
