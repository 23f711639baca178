// What ranks on several hosts promise beyond what ranks of one host do: hierarchical algorithms are
// exact however ranks lie on hosts, reproducible results do not depend on it, what connects hosts is
// named where it is missing, and hosts are called by their names. The hosts are pretended, with UCX
// over loopback between them (tests/comm/faults has real ones).
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <set>
#include <sstream>

#include "comm/bootstrap/host.hpp"
#include "tests/comm/communicator/await.hpp"
#include "tests/comm/communicator/world.hpp"

namespace rondo::testing {
namespace {

/// The host of each rank; read by the hook, in this process and those forked from it.
std::vector<int> layout;

void lie_on(int rank, comm::RankHost& here) {
  here.name = "h" + std::to_string(layout[static_cast<size_t>(rank)]);
  here.boot_id = here.name;
}

/// Runs body(communicator) on ranks that lie on these hosts.
void run_on(const std::vector<int>& hosts, const std::function<void(Communicator&)>& body,
            const Config& config = {}) {
  layout = hosts;
  const auto saved = comm::pretend_host;
  comm::pretend_host = lie_on;
  setenv("UCX_TLS", "tcp", 1);
  setenv("UCX_NET_DEVICES", "lo", 1);
  const TempDirectory directory;
  const int size = static_cast<int>(hosts.size());
  const auto results = run_ranks(How::kForks, size, [&](int rank) {
    Config own = world_config(directory.path(), rank, size, config);
    own.rendezvous = loopback_place(directory.path());
    auto made = Communicator::create(own);
    expect(made.ok(), "create: " + made.status().to_string());
    body(*made);
  });
  comm::pretend_host = saved;
  require_all_ok(results);
}

/// No rank of these hosts gets a communicator.
void expect_refused(const std::vector<int>& hosts, Code code, const std::string& says) {
  layout = hosts;
  comm::pretend_host = lie_on;
  const TempDirectory directory;
  const int size = static_cast<int>(hosts.size());
  const auto results = run_ranks(How::kForks, size, [&](int rank) {
    Config config = world_config(directory.path(), rank, size);
    config.rendezvous = loopback_place(directory.path());
    const auto made = Communicator::create(config);
    expect(made.status().code() == code, made.status().to_string());
    expect(made.status().message().find(says) != std::string::npos, made.status().to_string());
  });
  comm::pretend_host = nullptr;
  require_all_ok(results);
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}
std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string text_of(const std::vector<int>& hosts) {
  std::string text = "ranks on hosts";
  for (const int host : hosts) text += " " + std::to_string(host);
  return text;
}

/// The TCP ports at which this process listens.
std::set<int> listened_ports() {
  std::set<std::string> own;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    own.insert(std::filesystem::read_symlink(entry, gone));
  }
  std::set<int> ports;
  for (const char* table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream file(table);
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line)) {
      // number: address:port remote state queues timer retransmissions uid timeout inode
      std::istringstream words(line);
      std::vector<std::string> word{std::istream_iterator<std::string>(words), {}};
      if (word.size() < 10 || word[3] != "0A" || !own.contains("socket:[" + word[9] + "]"))
        continue;
      ports.insert(std::stoi(word[1].substr(word[1].find(':') + 1), nullptr, 16));
    }
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
  expect_ok(comm.reduce(in.data(), root.data(), count * n, type, 1), "reduce");
  std::string bits(reinterpret_cast<char*>(out.data()), bytes);
  bits.append(reinterpret_cast<char*>(part.data()), count * size_of(type));
  if (comm.rank() == 1) bits.append(reinterpret_cast<char*>(root.data()), bytes);
  return bits;
}

}  // namespace

TEST_CASE("hierarchical algorithms are exact however ranks lie on hosts") {
  Config tiny_slots;
  tiny_slots.slot_bytes = 4096;
  for (const std::vector<int>& hosts : kLayouts) {
    INFO(text_of(hosts));
    run_on(
        hosts,
        [](Communicator& comm) {
          for (const Algorithm algorithm :
               {Algorithm::kHierarchical, Algorithm::kHierarchicalTree}) {
            for (const size_t count : {size_t{1}, size_t{13}, size_t{5000}, size_t{100'003}}) {
              for (const bool in_place : {false, true}) {
                Buffer in(count * 4, false), out(count * 4, false);
                fill(in, 0, count, DataType::kInt32, ReduceOp::kSum, comm.rank());
                auto* const to = in_place ? in.data() : out.data();
                expect_ok(comm.all_reduce(in.data(), to, count, DataType::kInt32, ReduceOp::kSum,
                                          {.algorithm = algorithm}),
                          "all_reduce");
                check(
                    in_place ? in : out, 0, count, DataType::kInt32,
                    [&](size_t i) {
                      return expected(comm.size(), i, ReduceOp::kSum, DataType::kInt32);
                    },
                    std::string(name(algorithm)));
              }
            }
          }
        },
        tiny_slots);
  }
}

TEST_CASE("large messages go by hosts, and small ones through their first ranks") {
  run_on({0, 0, 1, 1}, [](Communicator& comm) {
    const auto chosen = [&](size_t count) {
      return comm.plan(Collective::kAllReduce, count, DataType::kFloat32, false, Algorithm::kAuto)
          .algorithm;
    };
    expect(chosen(1 << 22) == Algorithm::kHierarchical, std::string(name(chosen(1 << 22))));
    expect(chosen(2) == Algorithm::kHierarchicalTree, std::string(name(chosen(2))));
  });
}

TEST_CASE("averages of integers are exact over several hosts") {
  run_on({0, 0, 1}, [](Communicator& comm) {
    for (const size_t count : {size_t{1}, size_t{40'000}}) {
      std::vector<int32_t> in(count, std::numeric_limits<int32_t>::max() - comm.rank()), out(count);
      expect_ok(comm.all_reduce(in.data(), out.data(), count, DataType::kInt32, ReduceOp::kAvg),
                "all_reduce");
      expect(out == std::vector<int32_t>(count, std::numeric_limits<int32_t>::max() - 1),
             "average " + std::to_string(out[0]));
      std::vector<int32_t> all(3 * count, in[0]);
      std::ranges::fill(out, 0);
      expect_ok(
          comm.reduce_scatter(all.data(), out.data(), count, DataType::kInt32, ReduceOp::kAvg),
          "reduce_scatter");
      expect(out == std::vector<int32_t>(count, std::numeric_limits<int32_t>::max() - 1),
             "reduce_scatter's average " + std::to_string(out[0]));
      std::ranges::fill(out, 0);
      expect_ok(comm.reduce(in.data(), out.data(), count, DataType::kInt32, 2, ReduceOp::kAvg),
                "reduce");
      expect(comm.rank() != 2 ||
                 out == std::vector<int32_t>(count, std::numeric_limits<int32_t>::max() - 1),
             "reduce's average " + std::to_string(out[0]));
      const Status refused =
          comm.all_reduce(in.data(), out.data(), count, DataType::kInt32, ReduceOp::kAvg,
                          {.algorithm = Algorithm::kHierarchical});
      expect(refused.code() == Code::kUnavailable, refused.to_string());
    }
  });
}

TEST_CASE("reproducible results do not depend on how ranks lie on hosts") {
  Config reproducible;
  reproducible.reproducible = true;
  for (const DataType type : {DataType::kFloat32, DataType::kBFloat16}) {
    std::string first;
    for (const std::vector<int>& hosts : {std::vector<int>{0, 0, 0, 0, 0},
                                          {0, 1, 0, 1, 0},
                                          {0, 0, 0, 1, 1},
                                          {0, 1, 2, 3, 4},
                                          {0, 1, 1, 1, 1}}) {
      INFO(name(type) << ", " << text_of(hosts));
      const TempDirectory results;
      run_on(
          hosts,
          [&](Communicator& comm) {
            std::string all;
            for (const size_t count : {size_t{3}, size_t{2000}, size_t{40'000}}) {
              all += reduced_bits(comm, count, type);
            }
            write_file(results.path() + "/" + std::to_string(comm.rank()), all);
          },
          reproducible);
      std::string bits;
      for (int rank = 0; rank < 5; ++rank) {
        bits += read_file(results.path() + "/" + std::to_string(rank));
      }
      if (first.empty()) first = bits;
      REQUIRE(bits.size() == first.size());
      CHECK(bits == first);
    }
  }
}

TEST_CASE(
    "without UCX ranks on several hosts learn what to install, and those of one do not need it") {
  setenv("RONDO_UCX", "/nowhere/libucp.so.0", 1);
  expect_refused({0, 1, 0}, Code::kUnavailable, "libucx0");
  run_on({0, 0}, [](Communicator& comm) { expect_ok(comm.barrier(), "barrier"); });
  unsetenv("RONDO_UCX");
}

TEST_CASE("a rank listens at ports of RONDO_PORTS only, and says when they do not suffice") {
  setenv("RONDO_PORTS", "23000-23039", 1);
  run_on({0, 1}, [](Communicator& comm) {
    expect_ok(comm.barrier(), "barrier");
    const std::set<int> ports = listened_ports();
    expect(ports.size() >= 2, "no ports");
    expect(*ports.begin() >= 23'000 && *ports.rbegin() <= 23'039,
           std::to_string(*ports.begin()) + " to " + std::to_string(*ports.rbegin()));
  });
  setenv("RONDO_PORTS", "23040-23041", 1);
  expect_refused({0, 1}, Code::kResourceExhausted, "give it more ports");
  unsetenv("RONDO_PORTS");
}

TEST_CASE("errors and the flight record know the hosts") {
  run_on({0, 1, 1}, [](Communicator& comm) {
    Status status = comm.barrier();  // rank 2 may have passed it, and ended it here
    if (comm.rank() == 2) comm.abort("enough");
    while (status.ok()) status = comm.barrier();
    expect(status.code() == Code::kAborted, status.to_string());
    expect(status.message().find("rank 2 aborted: enough") != std::string::npos,
           status.to_string());
    // The rows of other hosts' ranks are there, too.
    const std::string record = comm.flight_record();
    expect(record.find("rank 2 (pid ") != std::string::npos, record);
    expect(record.find("#1 barrier") != std::string::npos, record);
  });
}

// The end of the first host's agent waits for the last rows of the others.
TEST_CASE("roots on different hosts that only send are told of when they leave") {
  SharedCount calls, left;
  run_on({0, 1}, [&](Communicator& comm) {
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
      expect(errors[0].find(part) != std::string::npos, errors[0]);
    }
  });
}

}  // namespace rondo::testing
