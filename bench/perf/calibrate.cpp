// See calibrate.hpp.
#include "bench/perf/calibrate.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>

#include "bench/harness/json_file.hpp"
#include "bench/harness/run.hpp"
#include "bench/perf/interleaved.hpp"
#include "rondo/communicator.hpp"

namespace rondo::bench {
namespace {

constexpr size_t kRoundsOfCalibrate = 21;
constexpr double kBatchUsOfCalibrate = 250;
constexpr double kTotalUsOfCalibrate = 4 * 60e6;
// Predictions are promised from this size on.
constexpr size_t kHeldOutFrom = size_t{64} << 10;

/// A size of a calibration; a held-out size is predicted instead of fitted.
struct Size {
  size_t bytes;
  bool held_out;
};

/// The given sizes, and where predictions are promised a held-out size halfway to every other next
/// one; neighbours, so that both are timed in the same phase of the machine.
std::vector<Size> with_held_out(const std::vector<size_t>& sizes) {
  std::vector<Size> all;
  for (size_t i = 0; i < sizes.size(); ++i) {
    all.push_back({.bytes = sizes[i], .held_out = false});
    if (sizes[i] >= kHeldOutFrom && i + 1 < sizes.size() && i % 2 == 1) {
      all.push_back({.bytes = (sizes[i] + sizes[i + 1]) / 2, .held_out = true});
    }
  }
  return all;
}

struct Contenders {
  std::vector<Contender> all;
  std::vector<bool> held_out;  // likewise
};

bool spans_hosts(const std::vector<int>& hosts) {
  return std::any_of(hosts.begin(), hosts.end(), [](int host) { return host > 0; });
}

Contenders contenders_at(RondoBackend& backend, const PerfOptions& options) {
  const std::vector<Size> sizes = with_held_out(sizes_of(options.sweep));
  const bool between_hosts = spans_hosts(backend.hosts());
  Contenders contenders;
  int block = 0;  // a size and its held-out neighbour
  for (int c = 0; c < kCollectives; ++c) {
    const auto collective = static_cast<Collective>(c);
    if (!options.every_collective && options.collective != collective) continue;
    const bool barrier = collective == Collective::kBarrier;
    for (const Size& size : sizes) {
      if (!size.held_out) ++block;
      const CallShape shape =
          shape_of(collective, DataType::kFloat32, ReduceOp::kSum, 0, size.bytes, backend.size());
      if (shape.count == 0 && !barrier) continue;
      for (const bool library : {false, true}) {
        if (library && between_hosts) continue;  // no difference: everything goes through slots
        for (const Algorithm algorithm : algorithms_for(backend, shape, library)) {
          contenders.all.push_back({.shape = shape,
                                    .algorithm = algorithm,
                                    .library = library,
                                    .block = block,
                                    .times = {}});
          contenders.held_out.push_back(size.held_out);
        }
      }
      if (barrier) break;
    }
  }
  return contenders;
}

size_t argument_bytes(const CallShape& shape) { return shape.count * size_of(shape.type); }

/// "2 ranks", "4 ranks on 2 hosts".
std::string described(const std::vector<int>& hosts) {
  std::string text = std::to_string(hosts.size()) + " ranks";
  if (spans_hosts(hosts)) {
    text += " on " + std::to_string(*std::max_element(hosts.begin(), hosts.end()) + 1) + " hosts";
  }
  return text;
}

/// The profile that is to be extended; empty: there is none.
std::string profile_before(const PerfOptions& options) {
  std::ifstream file(options.calibrate_file, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// A file that is something else is not overwritten.
Status check_profile_before(const PerfOptions& options, const std::vector<int>& hosts) {
  const std::string before = profile_before(options);
  if (before.empty()) return {};
  const Status read = fit_link_profile({}, hosts, "", before).status();
  if (read.code() != Code::kDataError) return {};  // else it only lacks timings
  return {Code::kDataError,
          "--calibrate '" + options.calibrate_file +
              "' is there and no link profile that can be extended: remove it, or "
              "name another file (" +
              read.message() + ")"};
}

Status write_profile(const std::vector<Contender>& measured, const PerfOptions& options,
                     const std::vector<int>& hosts) {
  std::vector<LinkTiming> timings;
  for (const Contender& c : measured) {
    timings.push_back({.collective = c.shape.collective,
                       .algorithm = c.algorithm,
                       .bytes = argument_bytes(c.shape),
                       .library_memory = c.library,
                       .us = c.time_us});
  }
  const std::string name = "calibrated with " + described(hosts);
  const auto text = fit_link_profile(timings, hosts, name, profile_before(options));
  if (text.status().code() == Code::kInvalidArgument) {
    return {Code::kInvalidArgument, text.status().message() +
                                        ": leave out the collective's name to time all of them, or "
                                        "raise the largest size with -e"};
  }
  RONDO_TRY(text.status());
  std::ofstream file(options.calibrate_file, std::ios::trunc);
  file << *text;
  file.close();
  if (file) return {};
  return {Code::kSystem,
          "cannot write --calibrate '" + options.calibrate_file + "': " + std::strerror(errno)};
}

/// Predicted over measured - 1, with the written profile.
double error_of(RondoBackend& calibrated, const Contender& c) {
  calibrated.select(c.algorithm, c.library);
  const auto plan = calibrated.planned(c.shape);
  return plan ? plan->predicted_us / c.time_us - 1 : INFINITY;
}

void print_errors(RondoBackend& calibrated, const std::vector<Contender>& held_out) {
  std::printf(
      "# predictions at sizes that were not fitted, from 64K up, measured in the same rounds\n");
  std::printf("# %14s %8s %7s %12s %10s   %s\n", "collective", "memory", "cases", "within 15 %",
              "median", "worst");
  size_t within_all = 0, cases_all = 0;
  for (int c = 0; c < kCollectives; ++c) {
    for (const bool library : {false, true}) {
      std::vector<double> errors;
      double worst = 0;
      const Contender* culprit = nullptr;
      for (const Contender& contender : held_out) {
        if (static_cast<int>(contender.shape.collective) != c || contender.library != library) {
          continue;
        }
        const double error = error_of(calibrated, contender);
        errors.push_back(std::abs(error));
        if (culprit == nullptr || std::abs(error) > std::abs(worst)) {
          worst = error;
          culprit = &contender;
        }
      }
      if (culprit == nullptr) continue;
      const auto within = static_cast<size_t>(
          std::count_if(errors.begin(), errors.end(), [](double e) { return e <= 0.15; }));
      within_all += within;
      cases_all += errors.size();
      std::printf("  %14s %8s %7zu %12zu %8.1f %%   %+.1f %% (%s, %zu bytes)\n",
                  std::string(name(static_cast<Collective>(c))).c_str(),
                  library ? "library" : "plain", errors.size(), within, 100 * median(errors),
                  100 * worst, std::string(name(culprit->algorithm)).c_str(),
                  size_bytes(culprit->shape, calibrated.size()));
    }
  }
  std::printf("# within 15 %%: %zu of %zu\n", within_all, cases_all);
}

/// Every timing beside its prediction by the written profile; `held_out`: it was not fitted.
Status write_json(const PerfOptions& options, RondoBackend& calibrated,
                  const std::vector<Contender>& fitted, const std::vector<Contender>& held_out) {
  nlohmann::json rows = nlohmann::json::array();
  for (const std::vector<Contender>* some : {&fitted, &held_out}) {
    for (const Contender& c : *some) {
      calibrated.select(c.algorithm, c.library);
      const auto plan = calibrated.planned(c.shape);
      rows.push_back({{"collective", name(c.shape.collective)},
                      {"algorithm", name(c.algorithm)},
                      {"memory", c.library ? "library" : "plain"},
                      {"size", size_bytes(c.shape, calibrated.size())},
                      {"held_out", some == &held_out},
                      {"time", c.time_us},
                      {"predicted_us", plan ? plan->predicted_us : 0}});
    }
  }
  std::ofstream file(options.json_file, std::ios::trunc);
  file << nlohmann::json{{"program", "rondo-perf"},
                         {"calibrated", options.calibrate_file},
                         {"hosts", calibrated.hosts()},
                         {"results", rows}}
              .dump(1)
       << "\n";
  file.close();
  if (file) return {};
  return {Code::kSystem,
          "cannot write --json '" + options.json_file + "': " + std::strerror(errno)};
}

/// How long it takes, by the time of a round that has passed.
void announce(size_t cases, size_t rounds, double seconds) {
  const bool in_minutes = seconds > 90;
  std::printf("# calibrating: %zu cases, %zu times each: about %.0f %s\n", cases, rounds,
              std::ceil(in_minutes ? seconds / 60 : seconds), in_minutes ? "minutes" : "s");
  std::fflush(stdout);
}

Status calibrate_rank(const PerfOptions& options, Config config, RondoBackend& backend) {
  const bool first = backend.rank() == 0;
  if (first) {
    // An existing file stays until the new one is complete; an interrupted run leaves nothing.
    std::error_code ignored;
    RONDO_TRY(check_profile_before(options, backend.hosts()));
    if (options.calibrate_file == default_links_path()) {
      const auto folder = std::filesystem::path(options.calibrate_file).parent_path();
      std::filesystem::create_directories(folder, ignored);  // a failure shows below
    }
    const bool is_new = !std::filesystem::exists(options.calibrate_file, ignored);
    if (!std::ofstream(options.calibrate_file, std::ios::app)) {
      return {Code::kSystem,
              "cannot write --calibrate '" + options.calibrate_file + "': " + std::strerror(errno)};
    }
    if (is_new) std::filesystem::remove(options.calibrate_file, ignored);
    RONDO_TRY(JsonFile(options.json_file).open());
  }
  Contenders contenders = contenders_at(backend, options);
  const BothMemories memory(std::max<size_t>(options.sweep.max, 64), backend.size());
  if (!memory.ok()) {
    return no_memory_for("four", options.sweep.max, true);
  }
  const Rounds how{.rounds = options.iterations > 0 ? options.iterations : kRoundsOfCalibrate,
                   .batch_us = kBatchUsOfCalibrate,
                   .total_us = kTotalUsOfCalibrate,
                   .progress = first ? "calibrating" : "",
                   .planned = [&](size_t times, double seconds) {
                     if (first) announce(contenders.all.size(), times, seconds);
                   }};
  const size_t rounds = RONDO_TRY(time_interleaved(backend, memory, how, contenders.all));
  settle(contenders.all);
  std::vector<Contender> fitted, held_out;
  for (size_t i = 0; i < contenders.all.size(); ++i) {
    (contenders.held_out[i] ? held_out : fitted).push_back(std::move(contenders.all[i]));
  }
  if (first) RONDO_TRY(write_profile(fitted, options, backend.hosts()));

  config.links = options.calibrate_file;  // only rank 0 reads it
  config.name = "calibrated";
  auto calibrated = RONDO_TRY(make_rondo_backend({.config = config}));
  if (!first) return {};
  std::printf("# %zu timings of %s in %zu rounds fitted, written to %s\n", fitted.size(),
              described(backend.hosts()).c_str(), rounds, options.calibrate_file.c_str());
  if (!held_out.empty()) print_errors(*calibrated, held_out);
  return options.json_file.empty() ? Status{} : write_json(options, *calibrated, fitted, held_out);
}

}  // namespace

int calibrate(const PerfOptions& options, const Config& config, RondoBackend& backend) {
  const Status status = calibrate_rank(options, config, backend);
  return status.ok() ? 0 : fail(backend, status);
}

}  // namespace rondo::bench
