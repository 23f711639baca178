// Ranks that meet without a launcher: by a unique id, or by a caller's all-gather, which may also
// fail, forget a rank, or mix up what it was given.
#include <sys/stat.h>
#include <unistd.h>

#include <barrier>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <stdexcept>

#include "tests/comm/communicator/worlds.hpp"

namespace rondo::testing {
namespace {

using Blobs = std::vector<std::string>;

Config given(int rank, int size) {
  Config config;
  config.rank = rank;
  config.world_size = size;
  config.bootstrap_timeout = 30s;
  return config;
}

/// Creates, and sums the ranks' numbers, counted from 1.
void create_and_sum(const Config& config) {
  Communicator world = created(config);
  int value = config.rank + 1;
  expect_ok(world.all_reduce(&value, &value, 1, kInt), "all_reduce");
  expect_eq(value, config.world_size * (config.world_size + 1) / 2, "sum");
}

/// The all-gather of threads of one process; calls are counted, and `spoil` may change what a rank
/// gets.
class ThreadGather {
 public:
  explicit ThreadGather(int size) : blobs_(static_cast<size_t>(size)), meeting_(size) {}

  AllGather of(int rank, std::function<void(Blobs&)> spoil = {}) {
    return [this, rank, spoil = std::move(spoil)](std::string_view own) -> Result<Blobs> {
      blobs_[static_cast<size_t>(rank)] = own;
      meeting_.arrive_and_wait();
      Blobs all = blobs_;
      meeting_.arrive_and_wait();
      if (spoil) spoil(all);
      return all;
    };
  }
  const Blobs& blobs() const { return blobs_; }

 private:
  Blobs blobs_;
  std::barrier<> meeting_;
};

/// What create() says on each of three ranks when rank `spoiled`'s config is `change`d.
std::vector<Status> create_with(int spoiled, const std::function<void(Config&)>& change,
                                const std::function<void(Blobs&)>& spoil = {}) {
  constexpr int kRanks = 3;
  ThreadGather gather(kRanks);
  std::vector<Status> statuses(kRanks);
  require_all_ok(run_ranks(How::kThreads, kRanks, [&](int rank) {
    Config config = given(rank, kRanks);
    config.bootstrap_timeout = 2s;
    config.all_gather = gather.of(rank, rank == spoiled ? spoil : std::function<void(Blobs&)>{});
    if (rank == spoiled) change(config);
    statuses[static_cast<size_t>(rank)] = Communicator::create(config).status();
  }));
  return statuses;
}

TEST_CASE("ids are printable, short, and never the same") {
  std::set<std::string> seen;
  for (int i = 0; i < 100; ++i) {
    auto id = make_unique_id();
    REQUIRE(id.ok());
    REQUIRE(id->size() <= kUniqueIdChars);
    for (const char c : *id) REQUIRE(std::isgraph(static_cast<unsigned char>(c)));
    REQUIRE(seen.insert(*id).second);
  }
}

TEST_CASE("processes and threads meet by a unique id, whatever their environment") {
  for (const How how : {How::kForks, How::kThreads}) {
    auto id = make_unique_id();
    REQUIRE(id.ok());
    require_all_ok(run_ranks(how, 3, [&](int rank) {
      if (how == How::kForks) {
        setenv("XDG_RUNTIME_DIR", ("/nowhere/" + std::to_string(rank)).c_str(), 1);
        setenv("RONDO_RENDEZVOUS", "/nowhere", 1);
      }
      Config config = given(rank, 3);
      config.unique_id = *id;
      create_and_sum(config);
      config.name = "second";  // one id serves several communicators
      create_and_sum(config);
    }));
  }
}

TEST_CASE("nothing is left behind, and the id does not show") {
  const std::filesystem::path parent = "/tmp/rondo-" + std::to_string(geteuid());
  const auto ids = [&] {
    std::set<std::string> names;
    std::error_code none;
    for (const auto& entry : std::filesystem::directory_iterator(parent, none))
      if (entry.path().filename().string().rfind("id-", 0) == 0) names.insert(entry.path());
    return names;
  };
  const auto before = ids();
  std::set<std::string> during;
  struct stat info {};
  ThreadGather gather(2);
  require_all_ok(run_ranks(How::kThreads, 2, [&](int rank) {
    Config config = given(rank, 2);
    config.all_gather = gather.of(rank, [&, rank](Blobs&) {
      if (rank == 0) return;
      // Rank 0 waits for this rank, so its directory is there, or will be.
      while (during.size() <= before.size()) during = ids();
      for (const auto& name : during)
        if (before.count(name) == 0) expect(stat(name.c_str(), &info) == 0, "stat " + name);
    });
    create_and_sum(config);
  }));
  REQUIRE((info.st_mode & 07777) == 0700);
  REQUIRE(info.st_uid == geteuid());
  const std::string digits = gather.blobs()[0].substr(7, 64);  // the rest of "rondo2-"
  for (const auto& name : during) REQUIRE(name.find(digits.substr(0, 16)) == std::string::npos);
  REQUIRE(ids() == before);
}

TEST_CASE("ranks with different ids do not meet") {
  require_all_ok(run_ranks(How::kForks, 2, [&](int rank) {
    Config config = given(rank, 2);
    config.unique_id = *make_unique_id();  // each its own: the mistake
    config.bootstrap_timeout = 500ms;
    expect_error(Communicator::create(config).status(), Code::kBootstrap, "did not come");
  }));
}

TEST_CASE("an id with another secret is refused: both are needed") {
  // RONDO_SECRET is part of what ranks prove.
  const auto id = make_unique_id();
  require_all_ok(run_ranks(How::kForks, 2, [&](int rank) {
    setenv("RONDO_SECRET", rank == 0 ? "a" : "b", 1);
    Config config = given(rank, 2);
    config.unique_id = *id;
    config.bootstrap_timeout = 1s;
    expect_error(Communicator::create(config).status(), Code::kBootstrap,
                 rank == 0 ? "rank 1 of 2 did not come" : "another secret than this rank");
  }));
}

TEST_CASE("a unique id that cannot be used") {
  Config config = given(0, 2);
  const std::string id = *make_unique_id();
  const std::string digits = id.substr(id.size() - 64);
  for (const std::string& spoiled :
       {id.substr(0, id.size() - 1), id.substr(1), "rondo2-10.0.0.1-" + digits,
        "rondo2-host:1-" + digits, "rondo2-10.0.0.1:0-" + digits}) {
    config.unique_id = spoiled;
    const Status status = Communicator::create(config).status();
    expect_refused(
        status, std::to_string(spoiled.size()) + " characters) is not what make_unique_id() gave");
    REQUIRE(status.message().find(digits.substr(0, 20)) == std::string::npos);
  }
  config.unique_id = "rondo2-192.0.2.1:20000-" + digits;
  expect_refused(Communicator::create(config).status(),
                 "192.0.2.1:20000, where rank 0 cannot listen");
  config.unique_id = id;
  config.rendezvous = "/tmp/elsewhere";
  expect_refused(Communicator::create(config).status(), "Config::rendezvous are both set");
  config.rendezvous.clear();
  config.rank = config.world_size = -1;
  expect_refused(Communicator::create(config).status(), "Config::rank is -1");
}

TEST_CASE("a caller's all-gather is called once, and the ranks meet") {
  for (const int size : {1, 2, 5}) {
    ThreadGather gather(size);
    std::vector<int> calls(static_cast<size_t>(size));
    require_all_ok(run_ranks(How::kThreads, size, [&](int rank) {
      Config config = given(rank, size);
      config.all_gather = [&, inner = gather.of(rank)](std::string_view own) {
        ++calls[static_cast<size_t>(rank)];
        return inner(own);
      };
      create_and_sum(config);
    }));
    for (const int count : calls) REQUIRE(count == 1);
    for (const std::string& blob : gather.blobs()) {
      REQUIRE(blob.size() == gather.blobs()[0].size());
      REQUIRE(blob.size() <= 256);
    }
  }
}

TEST_CASE("an all-gather that fails, throws, forgets or mixes up") {
  const auto nothing = [](Config&) {};
  Config config = given(0, 1);
  config.all_gather = [](std::string_view) -> Result<Blobs> {
    return Status(Code::kSystem, "the store is gone");
  };
  expect_error(Communicator::create(config).status(), Code::kSystem,
               "Config::all_gather failed on rank 0: the store is gone");
  config.all_gather = [](std::string_view) -> Result<Blobs> { throw std::runtime_error("oh"); };
  expect_error(Communicator::create(config).status(), Code::kBootstrap, "it threw: oh");

  auto says = create_with(1, nothing, [](Blobs& all) { all.pop_back(); });
  expect_error(says[1], Code::kBootstrap, "on rank 1 gave 2 blobs for 3 ranks");
  says = create_with(2, nothing, [](Blobs& all) { std::swap(all[0], all[2]); });
  expect_error(says[2], Code::kBootstrap, "for rank 0 that rank did not give");
  says = create_with(1, nothing, [](Blobs& all) { all[0].resize(30); });
  expect_error(says[1], Code::kBootstrap, "gave 30 bytes for rank 0");
  // Who has got the right answer waits, with a limit, for the rank that has not.
  expect_error(says[0], Code::kBootstrap, "rank 1 of 3 did not come");
}

TEST_CASE("a rank that cannot take part says so to all, and nobody waits for it") {
  auto says = create_with(2, [](Config& config) { config.channels = -1; });
  expect_error(says[2], Code::kInvalidArgument, "Config::channels is -1");
  for (const int rank : {0, 1}) {
    expect_error(says[static_cast<size_t>(rank)], Code::kBootstrap,
                 "rank 2 cannot take part: invalid argument: Config::channels is -1");
  }
  says = create_with(0, [](Config& config) { config.unique_id = "mine"; });
  expect_error(says[0], Code::kInvalidArgument, "are both set");
  expect_error(says[1], Code::kBootstrap, "rank 0 cannot take part");
}

}  // namespace
}  // namespace rondo::testing
