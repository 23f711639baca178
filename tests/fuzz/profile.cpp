// Rank 0's link profile, as JSON. Input: the text.
#include "comm/tuner/profile_file.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace rondo::fuzz {

void run(std::string_view input) {
  const auto profile = tuner::parse_profile(input, "fuzz");
  if (!profile.ok()) {
    must(profile.status().code() == Code::kDataError, "a wrong profile is kDataError");
    return must(profile.status().message().size() < 2000, "a text is bounded");
  }
  const std::string text = tuner::to_json_text(*profile);
  const auto again = tuner::parse_profile(text, "again");
  must(again.ok(), "what was read can be written");
  must(tuner::to_json_text(*again) == text, "and is the same then");
}

std::vector<std::string> seeds() {
  const std::string built_in = tuner::to_json_text(tuner::shared_memory_profile());
  std::string half = built_in.substr(0, built_in.size() / 2);
  return {built_in,
          half,
          "{}",
          "[[[[1e308]]]]",
          "{\"format\": \"\\u0000\\ud800\"}",
          std::string(1000, '\n') + "z"};  // a token as long as the text
}

}  // namespace rondo::fuzz
