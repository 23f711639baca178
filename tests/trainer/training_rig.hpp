// What the tests of whole runs share: small models as flags, pictures, links that cost what a test
// wants, comparisons.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/harness/catch.hpp"
#include "tests/trainer/workplace.hpp"

namespace rondo::trainer::testing {

using nlohmann::json;
using Words = std::vector<std::string>;

inline Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline const Words kNano = {"--model", "gpt", "--layers",  "2",  "--width", "32",
                            "--heads", "2",   "--context", "16", "--batch", "2"};
inline const Words kCnn = {"--model", "cnn", "--width",       "4",
                           "--batch", "3",   "--data-format", "images"};

/// `count` pictures of 12 x 12 in ten classes, from number `first` on.
inline void write_images(const std::string& folder, uint32_t count, uint64_t first = 0) {
  write_pictures(folder, "train", count, 12, 10, 1, first);
}

/// The same flags with another value of one.
inline Words with(Words words, const std::string& flag, const std::string& value) {
  const auto found = std::find(words.begin(), words.end(), flag);
  REQUIRE(found != words.end());
  *(found + 1) = value;
  return words;
}

inline void check_same_losses(const json& a, const json& b, double tolerance) {
  const auto first = losses_of(a), second = losses_of(b);
  REQUIRE(first.size() == second.size());
  for (size_t s = 0; s < first.size(); ++s) {
    INFO("step " << s + 1 << ": " << first[s] << " and " << second[s]);
    REQUIRE(std::abs(first[s] - second[s]) <= tolerance * std::abs(first[s]));
  }
}

/// A file of links on which nothing costs anything but `dear`: "peer_us" makes buckets go round a
/// ring, "alpha_us" through nobody. For RONDO_LINKS.
inline std::string links(const Workplace& place, const std::string& dear) {
  json constants;
  for (const char* name : {"overhead_us", "alpha_us", "peer_us", "slot_us_per_byte",
                           "one_way_us_per_byte", "memory_cached_us_per_byte", "memory_us_per_byte",
                           "reduce_us_per_byte", "process_copy_us", "process_copy_us_per_byte"}) {
    constants[name] = dear == name ? 1000 : 0;
  }
  const json machine = {
      {"parallel_ranks", 0}, {"llc_bytes", 1048576}, {"slot_bytes", 4096}, {"slots", 4}};
  const json corrections = {{"ranks", 3}, {"tables", json::array()}};
  std::ofstream(place.file(dear)) << json{
      {"format", "rondo link profile"}, {"version", 2},       {"name", dear},
      {"constants", constants},         {"machine", machine}, {"corrections", corrections}};
  return place.file(dear);
}

/// Waits until the document has that step; false: not within a minute.
inline bool await_step(const std::string& file, uint64_t step) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds{60};
  const std::string wanted = "{\"step\":" + std::to_string(step) + ",";
  while (std::chrono::steady_clock::now() < until) {
    if (read_text(file).find(wanted) != std::string::npos) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds{5});
  }
  return false;
}

}  // namespace rondo::trainer::testing
