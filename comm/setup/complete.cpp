// See complete.hpp.
#include "comm/setup/complete.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <vector>

#include "comm/algorithms/algorithm.hpp"
#include "comm/base/limits.hpp"
#include "comm/base/refuse.hpp"
#include "comm/base/variables.hpp"
#include "comm/setup/facts.hpp"
#include "comm/setup/link_profile.hpp"
#include "transport/pace/pace.hpp"

namespace rondo::comm {
namespace {

using base::kLongestTimeout;
using std::chrono::milliseconds;

constexpr milliseconds kDefaultTimeout{600'000}, kDefaultBootstrapTimeout{60'000};

/// The variable `name`, else `otherwise`.
Result<milliseconds> seconds_of(const char* name, milliseconds otherwise) {
  const auto text = variable(name);
  if (!text) return otherwise;
  double seconds = 0;
  const char* const end = text->data() + text->size();
  const auto parsed = std::from_chars(text->data(), end, seconds);
  constexpr double kMost = 1e9;
  if (parsed.ec != std::errc{} || parsed.ptr != end || !(seconds >= 1e-3) || seconds > kMost) {
    return refuse(
        fmt::format("{} is '{}': it must be a number of seconds from 0.001 to 1e9", name, *text));
  }
  return milliseconds(static_cast<int64_t>(seconds * 1e3));
}

/// RONDO_ALGORITHM: one of kAlgorithmNames, but for those that need all buffers in memory of a kind,
/// which a program cannot be given from outside.
Result<Algorithm> algorithm_of_variable() {
  const std::string text = variable("RONDO_ALGORITHM").value_or("auto");
  std::vector<std::string_view> names;
  for (int i = 0; i < kAlgorithms; ++i) {
    const auto algorithm = static_cast<Algorithm>(i);
    const algorithms::Needs& needs = algorithms::traits_of(algorithm).needs;
    if (needs.references || needs.copies) continue;
    if (name(algorithm) == text) return algorithm;
    names.push_back(name(algorithm));
  }
  return refuse(
      fmt::format("RONDO_ALGORITHM is '{}': it must be one of {}", text, fmt::join(names, ", ")));
}

/// RONDO_REPRODUCIBLE.
Result<bool> reproducible_by_variable() {
  const std::string text = variable("RONDO_REPRODUCIBLE").value_or("0");
  if (text == "1") return true;
  if (text == "0") return false;
  return refuse(fmt::format("RONDO_REPRODUCIBLE is '{}': it must be 0 or 1", text));
}

/// Of which rank 0's hold for all.
Status fill_in_what_all_share(Config& config) {
  config.pace = pace_of(config);
  if (config.algorithm == Algorithm::kAuto) config.algorithm = RONDO_TRY(algorithm_of_variable());
  if (!config.reproducible) config.reproducible = RONDO_TRY(reproducible_by_variable());
  return {};
}

Status check_sizes(const Config& config) {
  if (config.world_size > base::kMaxRanks) {
    return refuse(fmt::format("Config::world_size is {}; at most {} ranks", config.world_size,
                              base::kMaxRanks));
  }
  for (const auto& [what, channels] :
       {std::pair{"channels", config.channels}, {"max_channels", config.max_channels}}) {
    if (channels < 0 || channels > base::kMaxChannels) {
      return refuse(fmt::format("Config::{} is {}; 0 to {} are possible", what, channels,
                                base::kMaxChannels));
    }
  }
  if (config.slots < 0 || config.slots == 1 || config.slots > static_cast<int>(base::kMaxSlots)) {
    return refuse(fmt::format("Config::slots is {}; 0 (the default) or 2 to {} are possible",
                              config.slots, base::kMaxSlots));
  }
  if (config.slot_bytes > base::kMaxSlotBytes ||
      (config.slot_bytes != 0 && config.slot_bytes < 8)) {
    return refuse(fmt::format("Config::slot_bytes is {}; 0 (the default) or 8 to {} are possible",
                              config.slot_bytes, base::kMaxSlotBytes));
  }
  return {};
}

Status check_choices(const Config& config) {
  if (config.stall_timeout.count() < 0) {
    return refuse(fmt::format("Config::stall_timeout is {} ms; it must not be negative",
                              config.stall_timeout.count()));
  }
  if (config.bootstrap_timeout.count() < 0) {
    return refuse(fmt::format("Config::bootstrap_timeout is {} ms; it must not be negative",
                              config.bootstrap_timeout.count()));
  }
  if (static_cast<int>(config.algorithm) >= kAlgorithms) {
    return refuse(
        fmt::format("Config::algorithm is {}, which is none", static_cast<int>(config.algorithm)));
  }
  if (config.device < -1) {
    return refuse(fmt::format("Config::device is {}; -1 (none) or a device's number are possible",
                              config.device));
  }
  return {};
}

Status check_pace(const Config& config) {
  if (config.pace.empty()) return {};
  if (config.device >= 0) {
    return {Code::kUnavailable,
            "a pace is for the host's memory: there is none with Config::device"};
  }
  if (config.pace.size() >= kPaceChars) {
    return refuse(fmt::format("the pace '{}' is too long", config.pace));
  }
  return transport::parse_pace(config.pace).status();
}

}  // namespace

Result<milliseconds> longest_silence() {
  const milliseconds silence = RONDO_TRY(seconds_of("RONDO_HOST_TIMEOUT", milliseconds(10'000)));
  // Less is below what a busy machine may take to let an agent run.
  if (silence >= milliseconds(1000)) return silence;
  return refuse(fmt::format("RONDO_HOST_TIMEOUT is '{}': it must be 1 second at least",
                            *variable("RONDO_HOST_TIMEOUT")));
}

Status complete(Config& config, bool agreed) {
  RONDO_TRY(longest_silence());
  const bool pace_is_variable = config.pace.empty();
  if (!agreed) RONDO_TRY(fill_in_what_all_share(config));
  config.links = links_of(config);
  if (config.stall_timeout.count() == 0) {
    config.stall_timeout = RONDO_TRY(seconds_of("RONDO_TIMEOUT", kDefaultTimeout));
  }
  if (config.bootstrap_timeout.count() == 0) {
    config.bootstrap_timeout =
        RONDO_TRY(seconds_of("RONDO_BOOTSTRAP_TIMEOUT", kDefaultBootstrapTimeout));
  }
  config.stall_timeout = std::min(config.stall_timeout, kLongestTimeout);
  config.bootstrap_timeout = std::min(config.bootstrap_timeout, kLongestTimeout);
  RONDO_TRY(check_sizes(config));
  RONDO_TRY(check_choices(config));
  const Status paced = check_pace(config);
  if (paced.ok() || !pace_is_variable) return paced;
  return {paced.code(), "RONDO_PACE: " + paced.message()};
}

}  // namespace rondo::comm
