// Config::links: rank 0's profile decides for all ranks, and a broken one fails all of them.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
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

Result<Communicator> create(const std::string& directory, int rank, int size,
                            const std::string& links) {
  Config config;
  config.links = links;
  return Communicator::create(world_config(directory, rank, size, config));
}

/// On every rank of a world in which only rank 0 has this profile.
void with_links(int size, const std::string& links,
                const std::function<void(Communicator&)>& body) {
  const TempDirectory directory;
  require_all_ok(run_ranks(How::kForks, size, [&](int rank) {
    auto made = create(directory.path(), rank, size, rank == 0 ? links : "/not/read");
    expect(made.ok(), "create: " + made.status().to_string());
    body(*made);
  }));
}

}  // namespace

TEST_CASE("rank 0's profile chooses for every rank") {
  const auto all_choose = [](Algorithm algorithm) {
    return [algorithm](Communicator& c) {
      const Plan plan = c.plan(Collective::kAllReduce, 1000, DataType::kFloat32);
      expect_eq(std::string(name(plan.algorithm)), std::string(name(algorithm)), "choice");
      std::vector<float> in(1000, static_cast<float>(c.rank() + 1)), out(1000);
      expect_ok(c.all_reduce(in.data(), out.data(), 1000, DataType::kFloat32), "all_reduce");
      expect(out[0] == 6 && out[999] == 6, "the sum");
    };
  };
  // In a ring nobody serves two peers. That holds on two cores too, where hops cost turns.
  with_links(3, File(profile("peer_us")).path, all_choose(Algorithm::kRing));
  // Where hops are dear, what has only one.
  with_links(3, File(profile("alpha_us")).path, all_choose(Algorithm::kOneShot));
}

namespace {
/// A value of the environment for one scope; null: unset.
class Variable {
 public:
  Variable(std::string name, const char* value) : name_(std::move(name)) {
    if (const char* old = std::getenv(name_.c_str())) old_ = old;
    set(value);
  }
  ~Variable() { set(old_ ? old_->c_str() : nullptr); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  void set(const char* value) const {
    if (value != nullptr) {
      setenv(name_.c_str(), value, 1);
    } else {
      unsetenv(name_.c_str());
    }
  }
  std::string name_;
  std::optional<std::string> old_;
};
}  // namespace

TEST_CASE("a calibrated profile in its default place is used where none is named") {
  const TempDirectory home;
  const Variable config("XDG_CONFIG_HOME", home.path().c_str());
  const std::string path = default_links_path();
  REQUIRE(path.rfind(home.path() + "/rondo/links-", 0) == 0);
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  const auto one_call = [](const std::string& links, bool free_of_charge) {
    with_links(2, links, [&](Communicator& c) {
      const Plan plan = c.plan(Collective::kAllReduce, 1000, DataType::kFloat32);
      expect((plan.predicted_us == 0) == free_of_charge, "predicted by the profile");
    });
  };
  std::ofstream(path) << profile("nothing");
  {
    const Variable unset("RONDO_LINKS", nullptr);
    one_call("", true);
    one_call("built-in", false);
  }
  {
    const Variable set("RONDO_LINKS", "built-in");
    one_call("", false);
  }
  const Variable unset("RONDO_LINKS", nullptr);
  std::ofstream(path) << "not a profile";
  const TempDirectory directory;
  const auto made = create(directory.path(), 0, 1, "");
  REQUIRE(!made.ok());
  CHECK(made.status().message().find(path) != std::string::npos);
  CHECK(made.status().message().find("RONDO_LINKS=built-in") != std::string::npos);
}

TEST_CASE("parts go by rank 0's profile, also those without it") {
  with_links(3, File(profile("peer_us")).path, [](Communicator& c) {
    auto part = c.split(c.rank() == 0 ? 0 : 1, 0);
    expect(part.ok() && *part, "split: " + part.status().to_string());
    expect((*part)->plan(Collective::kAllReduce, 1 << 20, DataType::kFloat32).predicted_us == 0,
           "between two ranks everything is free there");
  });
}

TEST_CASE("corrections travel too") {
  if (std::thread::hardware_concurrency() < 2) return;  // they hold for ranks with a core each
  const File file(profile("alpha_us", R"({"collective": "broadcast", "algorithm": "ring",
      "memory": "plain", "bytes": [64, 4096], "factor": [50, 50]})"));
  with_links(2, file.path, [](Communicator& c) {
    const Plan ring =
        c.plan(Collective::kBroadcast, 100, DataType::kFloat32, false, Algorithm::kRing);
    expect(std::abs(ring.predicted_us - 50'000) < 1e-6, "one hop of 1000 us, 50 times");
    const Plan chosen = c.plan(Collective::kBroadcast, 100, DataType::kFloat32);
    expect(chosen.algorithm == Algorithm::kOneShot, "one hop too, and no correction");
  });
}

TEST_CASE("RONDO_LINKS is read where Config::links is empty") {
  const File file(profile("peer_us"));
  const TempDirectory directory;
  require_all_ok(run_ranks(How::kForks, 2, [&](int rank) {
    setenv("RONDO_LINKS", rank == 0 ? file.path.c_str() : "/not/read", 1);
    auto made = create(directory.path(), rank, 2, "");
    expect(made.ok(), "create: " + made.status().to_string());
    // Everything is free between two ranks here.
    expect(made->plan(Collective::kAllReduce, 1 << 20, DataType::kFloat32).predicted_us == 0,
           "predicted by the file");
  }));
}

TEST_CASE("a broken profile on rank 0 fails every rank, by file and field") {
  std::string text = profile("alpha_us");
  text.replace(text.find("\"slots\": 4"), 10, "\"slots\": 0");
  const File file(text);
  const TempDirectory directory;
  require_all_ok(run_ranks(How::kForks, 3, [&](int rank) {
    auto made = create(directory.path(), rank, 3, file.path);
    expect(!made.ok(), "created with a broken profile");
    const std::string message = made.status().message();
    expect(message.find(file.path) != std::string::npos, "the file: " + message);
    expect(message.find("machine.slots is 0") != std::string::npos, "the field: " + message);
  }));
}

TEST_CASE("a profile that is not there fails every rank") {
  const TempDirectory directory;
  require_all_ok(run_ranks(How::kThreads, 2, [&](int rank) {
    auto made = create(directory.path(), rank, 2, "/no/such/links.json");
    expect(!made.ok(), "created without its profile");
    expect(made.status().message().find("/no/such/links.json") != std::string::npos,
           made.status().message());
  }));
}

}  // namespace rondo::testing
