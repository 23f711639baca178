// A folder with data to train on, and rondo-train as a program in it.
#pragma once

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/harness/catch.hpp"
#include "tests/harness/contains.hpp"
#include "tests/harness/rank_group.hpp"
#include "tests/trainer/synthetic_data.hpp"
#include "tests/trainer/words.hpp"

namespace rondo::trainer::testing {

using nlohmann::json;
using rondo::testing::contains;
using rondo::testing::ProgramResult;

inline const Words kNoLauncher = {"RANK",        "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
                                  "MASTER_ADDR", "MASTER_PORT"};

/// rondo-train with these flags.
inline ProgramResult run(const Words& flags, const Words& environment = kNoLauncher) {
  return rondo::testing::run_program(Words{RONDO_TRAIN} + flags, environment,
                                     std::chrono::seconds{120});
}

/// The same; it must succeed.
inline ProgramResult run_ok(const Words& flags, const Words& environment = kNoLauncher) {
  const ProgramResult result = run(flags, environment);
  INFO(result.err);
  REQUIRE(!result.timed_out);
  REQUIRE(result.exit_code == 0);
  return result;
}

/// That a run has failed, with each of `parts` in its complaint, and without results.
inline void check_failed(const ProgramResult& result, const Words& parts) {
  INFO("out: " << result.out << " err: " << result.err);
  CHECK(!result.timed_out);
  CHECK(result.exit_code != 0);
  CHECK_THAT(result.out, !contains("summary"));
  for (const std::string& part : parts) CHECK_THAT(result.err, contains(part));
}
inline void check_refused(const Words& flags, const Words& parts) {
  check_failed(run(flags), parts);
}

inline json read_json(const std::string& path) { return json::parse(read_text(path)); }

inline std::vector<double> losses_of(const json& document) {
  std::vector<double> losses;
  for (const json& step : document["steps"]) losses.push_back(step["loss"]);
  return losses;
}
inline json hash_of(const json& document) { return document["summary"]["parameter_hash"]; }

class Workplace {
 public:
  Workplace() {
    const char* words[] = {"ring ", "gradient ", "all-reduce ", "slot\n", "of ", "the "};
    std::ofstream file(data());
    for (uint64_t i = 0; i < 5000; ++i) file << words[mix(i) % 6];
    write_file(short_data(), synthetic_text(700, 1));
    write_file(tiny_data(), synthetic_text(70, 1));
  }
  /// Text with something to learn in it: a few words in an order that only looks random.
  std::string data() const { return folder_.path() + "/data.txt"; }
  /// So little that a few steps are an epoch.
  std::string short_data() const { return folder_.path() + "/short.txt"; }
  /// A few windows of 16.
  std::string tiny_data() const { return folder_.path() + "/tiny.txt"; }
  std::string file(const std::string& name) const { return folder_.path() + "/" + name; }

  /// A run on data() that must succeed; its JSON document.
  json train(const Words& flags) const { return train_on(flags + "--data" + data()); }
  /// The same on the data that the flags say.
  json train_on(const Words& flags, const Words& environment = kNoLauncher) const {
    run_ok(flags + "--json" + file("out.json"), environment);
    return read_json(file("out.json"));
  }

 private:
  rondo::testing::TempDirectory folder_;
};

}  // namespace rondo::trainer::testing
