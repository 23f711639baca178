// A folder with data to train on, and rondo-train as a program in it.
#pragma once

#include <chrono>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/harness/catch.hpp"
#include "tests/harness/rank_group.hpp"
#include "tests/trainer/synthetic_data.hpp"

namespace rondo::trainer::testing {

inline const std::vector<std::string> kNoLauncher = {
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"};

inline rondo::testing::ProgramResult run(std::vector<std::string> words) {
  words.insert(words.begin(), RONDO_TRAIN);
  return rondo::testing::run_program(words, kNoLauncher, std::chrono::seconds{120});
}

inline std::string read_text(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::vector<double> losses_of(const nlohmann::json& document) {
  std::vector<double> losses;
  for (const nlohmann::json& step : document["steps"]) losses.push_back(step["loss"]);
  return losses;
}

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
  nlohmann::json train(std::vector<std::string> words) const {
    words.insert(words.end(), {"--data", data()});
    return train_on(std::move(words));
  }
  /// The same on the data that `words` say.
  nlohmann::json train_on(std::vector<std::string> words) const {
    words.insert(words.end(), {"--json", file("out.json")});
    const rondo::testing::ProgramResult result = run(words);
    INFO(result.err);
    REQUIRE(!result.timed_out);
    REQUIRE(result.exit_code == 0);
    return nlohmann::json::parse(read_text(file("out.json")));
  }

 private:
  rondo::testing::TempDirectory folder_;
};

}  // namespace rondo::trainer::testing
