// Config::links: rank 0's profile decides for all ranks, and a broken one fails all of them.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/comm/communicator/world.hpp"

namespace rondo::testing {
namespace {

/// A machine on which nothing costs anything but what is named.
std::string profile(const std::string& dear, const std::string& more = "") {
  std::string constants;
  for (const char* name : {"overhead_us", "alpha_us", "peer_us", "slot_us_per_byte",
                           "one_way_us_per_byte", "memory_cached_us_per_byte", "memory_us_per_byte",
                           "reduce_us_per_byte", "process_copy_us", "process_copy_us_per_byte"}) {
    constants += (constants.empty() ? "\"" : ", \"") + std::string(name) +
                 "\": " + (dear == name ? "1000" : "0");
  }
  return R"({"format": "rondo link profile", "version": 2, "name": "mine", "constants": {)" +
         constants +
         R"(}, "machine": {"parallel_ranks": 0, "llc_bytes": 1048576, "slot_bytes": 4096,
             "slots": 4}, "corrections": {"ranks": 2, "tables": [)" +
         more + "]}}";
}

struct File {
  TempDirectory directory;
  std::string path = directory.path() + "/links.json";
  explicit File(const std::string& text) { std::ofstream(path) << text; }
};

Config config_of(const std::string& directory, int rank, int size, const std::string& links) {
  return world_config(directory, rank, size, with(&Config::links, links));
}

/// On every rank of a world in which only rank 0 has this profile.
void with_links(int size, const std::string& links,
                const std::function<void(Communicator&)>& body) {
  const TempDirectory directory;
  require_all_ok(run_ranks(How::kForks, size, [&](int rank) {
    Communicator comm =
        created(config_of(directory.path(), rank, size, rank == 0 ? links : "/not/read"));
    body(comm);
  }));
}

/// No rank of a world that has this profile is made, and the errors have these parts.
void expect_all_fail(int size, const std::string& links, const std::string& part,
                     const std::string& other = "") {
  const TempDirectory directory;
  require_all_ok(run_ranks(How::kForks, size, [&](int rank) {
    const Status status =
        Communicator::create(config_of(directory.path(), rank, size, links)).status();
    expect(!status.ok(), "created");
    expect_contains(status.message(), part);
    expect_contains(status.message(), other);
  }));
}

}  // namespace

TEST_CASE("rank 0's profile chooses for every rank") {
  const auto all_choose = [](Algorithm algorithm) {
    return [algorithm](Communicator& c) {
      const Plan plan = c.plan(Collective::kAllReduce, 1000, kFloat);
      expect_eq(std::string(name(plan.algorithm)), std::string(name(algorithm)), "choice");
      std::vector<float> in(1000, static_cast<float>(c.rank() + 1)), out(1000);
      expect_ok(c.all_reduce(in.data(), out.data(), 1000, kFloat), "all_reduce");
      expect(out[0] == 6 && out[999] == 6, "the sum");
    };
  };
  // In a ring nobody serves two peers. That holds on two cores too, where hops cost turns.
  with_links(3, File(profile("peer_us")).path, all_choose(Algorithm::kRing));
  // Where hops are dear, what has only one.
  with_links(3, File(profile("alpha_us")).path, all_choose(Algorithm::kOneShot));
}

TEST_CASE("a calibrated profile in its default place is used where none is named") {
  const TempDirectory home;
  setenv("XDG_CONFIG_HOME", home.path().c_str(), 1);
  const std::string path = default_links_path();
  REQUIRE(path.rfind(home.path() + "/rondo/links-", 0) == 0);
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  const auto one_call = [](const std::string& links, bool free_of_charge) {
    with_links(2, links, [&](Communicator& c) {
      const Plan plan = c.plan(Collective::kAllReduce, 1000, kFloat);
      expect((plan.predicted_us == 0) == free_of_charge, "predicted by the profile");
    });
  };
  std::ofstream(path) << profile("nothing");
  setenv("RONDO_LINKS", "built-in", 1);
  one_call("", false);
  unsetenv("RONDO_LINKS");
  one_call("", true);
  one_call("built-in", false);
  std::ofstream(path) << "not a profile";
  expect_all_fail(1, "", path, "RONDO_LINKS=built-in");
  unsetenv("XDG_CONFIG_HOME");
  setenv("RONDO_LINKS", "built-in", 1);  // as in all tests
}

TEST_CASE("parts go by rank 0's profile, also those without it") {
  with_links(3, File(profile("peer_us")).path, [](Communicator& c) {
    const Communicator part = part_of(c, c.rank() == 0 ? 0 : 1);
    expect(part.plan(Collective::kAllReduce, 1 << 20, kFloat).predicted_us == 0,
           "between two ranks everything is free there");
  });
}

TEST_CASE("corrections travel too") {
  if (std::thread::hardware_concurrency() < 2) return;  // they hold for ranks with a core each
  const File file(profile("alpha_us", R"({"collective": "broadcast", "algorithm": "ring",
      "memory": "plain", "bytes": [64, 4096], "factor": [50, 50]})"));
  with_links(2, file.path, [](Communicator& c) {
    const Plan ring = c.plan(Collective::kBroadcast, 100, kFloat, false, Algorithm::kRing);
    expect(std::abs(ring.predicted_us - 50'000) < 1e-6, "one hop of 1000 us, 50 times");
    const Plan chosen = c.plan(Collective::kBroadcast, 100, kFloat);
    expect(chosen.algorithm == Algorithm::kOneShot, "one hop too, and no correction");
  });
}

TEST_CASE("RONDO_LINKS is read where Config::links is empty") {
  const File file(profile("peer_us"));
  const TempDirectory directory;
  require_all_ok(run_ranks(How::kForks, 2, [&](int rank) {
    setenv("RONDO_LINKS", rank == 0 ? file.path.c_str() : "/not/read", 1);
    Communicator comm = created(config_of(directory.path(), rank, 2, ""));
    // Everything is free between two ranks here.
    expect(comm.plan(Collective::kAllReduce, 1 << 20, kFloat).predicted_us == 0,
           "predicted by the file");
  }));
}

TEST_CASE("a broken profile on rank 0 fails every rank, by file and field") {
  std::string text = profile("alpha_us");
  text.replace(text.find("\"slots\": 4"), 10, "\"slots\": 0");
  const File file(text);
  expect_all_fail(3, file.path, file.path, "machine.slots is 0");
}

TEST_CASE("a profile that is not there fails every rank") {
  expect_all_fail(2, "/no/such/links.json", "/no/such/links.json");
}

}  // namespace rondo::testing
