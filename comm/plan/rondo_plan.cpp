// rondo-plan: prints how rondo would do one operation, why, and the proof that it is correct. Flags
// and files; plan.hpp does the rest.
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <vector>

#include "comm/base/counted.hpp"
#include "comm/base/flush_stdout.hpp"
#include "comm/base/limits.hpp"
#include "comm/base/size.hpp"
#include "comm/launch/unknown_variables.hpp"
#include "comm/plan/page.hpp"
#include "comm/plan/picture.hpp"
#include "comm/plan/plan.hpp"
#include "comm/topology/cpus.hpp"
#include "comm/tuner/default_profile.hpp"
#include "comm/tuner/profile_file.hpp"
#include "kernels/host/cpu_mask.hpp"
#include "rondo/rondo.h"
#include "transport/pace/pace.hpp"

namespace rondo::plan {
namespace {

using comm::counted;
using transport::cuda_ipc::Reach;

constexpr int kMistake = 2;
constexpr const char* kStdout = "-";

struct PlanFlags {
  std::string collective, algorithm = "auto", type = "float", op = "sum", memory = "plain";
  std::string ranks, gpus, links, pace, json, svg, size, page;
  std::vector<std::string> measured;
  int cores = 0, root = 0, rank = -1, svg_hop = 0;
};

/// The ranks of each host. "8": of one host; "4x8": as many hosts, times ranks on each; "3,2,3": of
/// each host. They are numbered host after host.
std::optional<std::vector<int>> parse_ranks(const std::string& text) {
  std::vector<int> numbers;
  char separator = 0;
  for (const char *at = text.data(), *end = at + text.size();;) {
    int number = 0;
    const auto [rest, error] = std::from_chars(at, end, number);
    if (error != std::errc{} || number < 1 || number > base::kMaxScheduleRanks) return std::nullopt;
    numbers.push_back(number);
    if (rest == end) break;
    if ((*rest != 'x' && *rest != ',') || (separator != 0 && *rest != separator)) {
      return std::nullopt;
    }
    separator = *rest;
    at = rest + 1;
  }
  if (separator != 'x') return numbers;
  if (numbers.size() != 2 || int64_t{numbers[0]} * numbers[1] > base::kMaxScheduleRanks) {
    return std::nullopt;
  }
  return std::vector<int>(static_cast<size_t>(numbers[0]), numbers[1]);
}

template <size_t N>
std::string join(const std::string_view (&names)[N]) {
  std::string joined;
  for (const std::string_view one : names)
    joined += (joined.empty() ? "" : ", ") + std::string(one);
  return joined;
}

template <class Enum, size_t N>
Enum parse_or_refuse(const std::string& flag, const std::string& text,
                     const std::string_view (&names)[N]) {
  const auto value = internal::parse<Enum>(text, names);
  if (!value) {
    const std::string_view why = internal::why_absent(text);
    throw CLI::ValidationError(flag, "'" + text + "' is not one of: " + join(names) +
                                         (why.empty() ? "" : "; " + std::string(why)));
  }
  return *value;
}

void add_page_flags(CLI::App& app, PlanFlags& flags) {
  auto* page = app.add_option("--page", flags.page,
                              "instead of a plan, write the interactive tutorial "
                              "(explain/README.md) with this machine's link profile to this file; "
                              "-: to stdout");
  app.add_option("--measured", flags.measured,
                 "for the page: files of rondo-perf --json, scripts/compare --json and rondo-train "
                 "--json")
      ->needs(page);
}

void add_flags(CLI::App& app, PlanFlags& flags) {
  app.add_option("COLLECTIVE", flags.collective, join(kCollectiveNames));
  app.add_option("--ranks,--hosts", flags.ranks,
                 "number of ranks on one host, as in 8; hosts x ranks on each, as in 4x8; or the "
                 "ranks of each host, as in 3,2,3");
  auto* gpus =
      app.add_option("--gpus", flags.gpus,
                     "ranks on GPUs of one host: all on one; or each on its own, which see each "
                     "other by NVLink, by peer access, or through host memory alone")
          ->check(CLI::IsMember({"one", "nvlink", "peer-access", "host-memory"}));
  app.add_option(
         "--cores", flags.cores,
         "cores that the ranks of a host share. By default those of this machine that rondo-plan "
         "may use; one for each rank if there are several hosts, or if --links or RONDO_LINKS "
         "names a profile")
      ->check(CLI::Range(1, base::kMaxScheduleRanks))
      ->excludes(gpus);
  app.add_option("--size", flags.size,
                 "bytes of a rank's larger buffer, as rondo-perf has it; K, M and G are binary; a "
                 "barrier has none");
  app.add_option("--algorithm", flags.algorithm,
                 "use this one instead of the cheapest: " + join(kAlgorithmNames));
  app.add_option("--links", flags.links,
                 "a link profile written by rondo-perf --calibrate, or built-in; else RONDO_LINKS, "
                 "else this "
                 "processor's calibrated profile, else built-in")
      ->envname("RONDO_LINKS");
  app.add_option("-d,--datatype", flags.type, join(kDataTypeNames))->capture_default_str();
  app.add_option("-o,--op", flags.op, join(kReduceOpNames))->capture_default_str();
  app.add_option("-r,--root", flags.root, "of a collective that has one")->capture_default_str();
  app.add_option("--rank", flags.rank, "only this rank's schedule; nothing is verified then")
      ->check(CLI::NonNegativeNumber);
  app.add_option(
         "--memory", flags.memory,
         "plain: malloc; library: rondo::alloc on every rank; with --gpus: registered, or of "
         "ranks that are threads")
      ->check(CLI::IsMember({"plain", "library"}))
      ->capture_default_str();
  app.add_option("--pace", flags.pace,
                 "a wire between the ranks: BANDWIDTH,LATENCY as in 1GB/s,20us")
      ->excludes(gpus);
  app.add_option("--json", flags.json,
                 "write everything there as JSON; -: to stdout, instead of the text");
  auto* svg = app.add_option("--svg", flags.svg,
                             "draw the steps there (up to 16 ranks); -: on stdout likewise");
  app.add_option("--svg-hop", flags.svg_hop,
                 "draw one hop only, counted from 1: two rows of boxes and what passes between")
      ->check(CLI::Range(1, 1 << 20))
      ->needs(svg);
  add_page_flags(app, flags);
}

void read_ranks(const PlanFlags& flags, PlanRequest& r) {
  if (flags.ranks.empty()) throw CLI::RequiredError("--ranks");
  const auto ranks_on = parse_ranks(flags.ranks);
  std::vector<int> labels;
  for (size_t host = 0; ranks_on && host < ranks_on->size(); ++host) {
    labels.insert(labels.end(), static_cast<size_t>((*ranks_on)[host]), static_cast<int>(host));
    if (labels.size() > base::kMaxScheduleRanks) break;
  }
  if (!ranks_on || labels.size() > base::kMaxScheduleRanks) {
    throw CLI::ValidationError(
        "--ranks", "'" + flags.ranks +
                       "' is neither a number of ranks, as in 8, nor hosts x ranks on each, as in "
                       "4x8, nor the ranks of each host, as in 3,2,3, of 1 to " +
                       std::to_string(base::kMaxScheduleRanks) + " ranks");
  }
  r.ranks = static_cast<int>(labels.size());
  if (ranks_on->size() > 1) r.hosts = std::make_shared<const base::HostMap>(labels);
}

Reach reach_of(const std::string& gpus) {
  return gpus == "one"           ? Reach::kSameGpu
         : gpus == "nvlink"      ? Reach::kNvlink
         : gpus == "peer-access" ? Reach::kPeer
                                 : Reach::kHost;
}

PlanRequest read_request(const PlanFlags& flags) {
  PlanRequest r;
  if (flags.collective.empty()) throw CLI::RequiredError("COLLECTIVE");
  r.collective = parse_or_refuse<Collective>("COLLECTIVE", flags.collective, kCollectiveNames);
  r.algorithm = parse_or_refuse<Algorithm>("--algorithm", flags.algorithm, kAlgorithmNames);
  r.type = parse_or_refuse<DataType>("-d", flags.type, kDataTypeNames);
  r.op = parse_or_refuse<ReduceOp>("-o", flags.op, kReduceOpNames);
  read_ranks(flags, r);
  r.root = flags.root;
  if (flags.size.empty() && r.collective != Collective::kBarrier) {
    throw CLI::RequiredError("--size");
  }
  const auto size = base::parse_size(flags.size.empty() ? "0" : flags.size);
  if (!size) {
    throw CLI::ValidationError(
        "--size",
        "'" + flags.size + "' is not a size: write bytes, or a whole number with K, M or G");
  }
  r.size_bytes = *size;
  if (flags.rank >= 0) r.rank = flags.rank;
  if (!flags.json.empty() && flags.json == flags.svg) {
    throw CLI::ValidationError(
        "--svg", (flags.json == kStdout ? "stdout" : "'" + flags.json + "'") +
                     std::string(" has the JSON: write one of them to a file of its own"));
  }
  const bool wire = !flags.pace.empty();
  if (r.hosts && (wire || flags.memory == "library")) {
    throw CLI::ValidationError("--ranks",
                               "hosts have a wire of their own (see --links) and share no "
                               "memory: leave out --pace and --memory library");
  }
  if (!flags.svg.empty() && (r.ranks > kMostRanksDrawn || flags.rank >= 0)) {
    throw CLI::ValidationError("--svg", "draws all ranks, " + std::to_string(kMostRanksDrawn) +
                                            " at most: choose fewer, and leave out --rank");
  }
  r.available = {.publish = !wire,
                 .references = flags.memory == "library",
                 .signals = true,
                 .process_copy = !wire,
                 .offers = true};
  if (!flags.gpus.empty()) {
    if (r.hosts) throw CLI::ValidationError("--gpus", "are of one host: give --ranks one number");
    r.reach = reach_of(flags.gpus);
    const bool within_reach = flags.memory == "library" && r.reach != Reach::kHost;
    // As comm/create.cpp has it of a communicator on GPUs.
    r.available = {
        .publish = true, .references = within_reach, .signals = true, .copies = within_reach};
  }
  if (internal::form_of(r.collective).reduces && r.op == ReduceOp::kMulSum)
    r.available.scaled = r.type;
  r.available.rank_order_only = tuner::averages_integers(r.type, r.op);
  return r;
}

/// Those that the ranks share, unless each is to have one.
std::optional<int> cores_of(const PlanFlags& flags, bool several_hosts) {
  if (!flags.gpus.empty()) return std::nullopt;
  if (flags.cores > 0) return flags.cores;
  if (!flags.links.empty() || several_hosts) return std::nullopt;  // of other machines
  const std::string allowed = kernels::allowed_cpus();
  return std::clamp(kernels::count_cpus(allowed), 1, topology::granted_cpus());
}

Result<tuner::LinkProfile> links_of(const PlanFlags& flags, const PlanRequest& r) {
  if (r.reach) {  // a processor's own profile says nothing of them
    const bool share = *r.reach == Reach::kSameGpu;
    // As many channels as a communicator takes by itself on GPUs of 132 multiprocessors.
    const int sharing = share ? r.ranks : 1;
    const int channels =
        std::clamp(132 / 4 / sharing, 1, tuner::most_channels(*r.reach != Reach::kHost));
    const tuner::LinkProfile own = tuner::device_profile(*r.reach, channels, r.ranks, sharing);
    return flags.links.empty() ? own : tuner::find_profile(flags.links, own);
  }
  const tuner::LinkProfile host =
      RONDO_TRY(tuner::find_profile(flags.links, tuner::shared_memory_profile()));
  size_t here = static_cast<size_t>(r.ranks);  // on the largest host
  if (r.hosts) here = r.hosts->ranks_on(0).size();
  for (int h = 1; r.hosts && h < r.hosts->hosts(); ++h) {
    here = std::max(here, r.hosts->ranks_on(h).size());
  }
  tuner::RanksOnHost where{.ranks = static_cast<int>(here),
                           .ranks_elsewhere = r.ranks - static_cast<int>(here),
                           .cores = r.cores.value_or(static_cast<int>(here))};
  if (!flags.pace.empty()) where.wire = RONDO_TRY(transport::parse_pace(flags.pace));
  return tuner::profile_of(where, host);
}

Status write_file(const std::string& path, const std::string& text) {
  if (path == kStdout) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    return {};  // main() checks that it was written
  }
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (file) return {};
  return {Code::kSystem, "cannot write '" + path + "': " + std::strerror(errno)};
}

Status write_files(const PlanFlags& flags, const ExplainedPlan& plan) {
  if (!flags.json.empty()) RONDO_TRY(write_file(flags.json, to_json_text(plan)));
  if (flags.svg.empty()) return {};
  if (!plan.verification || !plan.verification->verdict.ok()) {
    return {Code::kDataError, "nothing is drawn of a schedule that is not verified"};
  }
  const Picture picture = picture_of(plan.schedules);
  if (flags.svg_hop > picture.hops()) {
    return {Code::kInvalidArgument, "--svg-hop " + std::to_string(flags.svg_hop) +
                                        ": the picture has " + counted(picture.hops(), "hop")};
  }
  const Caption caption = caption_of(plan, picture, flags.svg_hop);
  return write_file(
      flags.svg, to_svg(flags.svg_hop == 0 ? picture : only_hop(picture, flags.svg_hop), caption));
}

/// What links_of() would begin with, as JSON; empty where that is the built-in profile.
Result<std::string> profile_text(const PlanFlags& flags) {
  const std::string own = tuner::default_profile_path();
  const bool none = flags.links.empty() && (own.empty() || access(own.c_str(), R_OK) != 0);
  if (none || flags.links == tuner::kBuiltIn) {
    spdlog::info(
        "no calibrated link profile: the page has the built-in one (rondo-perf --calibrate writes "
        "one)");
    return std::string();
  }
  return tuner::to_json_text(
      RONDO_TRY(tuner::find_profile(flags.links, tuner::shared_memory_profile())));
}

Status write_page(const PlanFlags& flags) {
  if (!flags.collective.empty()) {
    return {Code::kInvalidArgument,
            "--page is of a machine and not of one operation: rondo-plan --page page.html "
            "[--measured FILES]"};
  }
  const std::string path = RONDO_TRY(find_page());
  std::ifstream file(path, std::ios::binary);
  const std::string page(std::istreambuf_iterator<char>(file), {});
  if (!file) return {Code::kSystem, "cannot read '" + path + "': " + std::strerror(errno)};
  const PageData data{.profile = RONDO_TRY(profile_text(flags)), .measured = flags.measured};
  return write_file(flags.page, RONDO_TRY(with_data(page, data)));
}

/// A wrong value is the caller's mistake; everything else is a failure.
int failed(const Status& status) {
  spdlog::error("{}", status.to_string());
  return status.code() == Code::kInvalidArgument || status.code() == Code::kUnavailable ? kMistake
                                                                                        : 1;
}

int run(int argc, char** argv) {
  CLI::App app("Prints what rondo would do for one operation: schedule, proof, bytes, predictions.",
               "rondo-plan");
  app.set_version_flag("--version", "rondo-plan " RONDO_VERSION);
  PlanFlags flags;
  PlanRequest request;
  add_flags(app, flags);
  try {
    app.parse(argc, argv);
    if (flags.page.empty()) request = read_request(flags);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kMistake;
  }
  if (!flags.page.empty()) {
    const Status written = write_page(flags);
    return written.ok() ? 0 : failed(written);
  }
  request.cores = cores_of(flags, request.hosts != nullptr);
  auto links = links_of(flags, request);
  if (!links.ok()) return failed(links.status());
  request.links = std::move(*links);
  auto plan = make_plan(request);
  if (!plan.ok()) return failed(plan.status());
  if (flags.json != kStdout && flags.svg != kStdout) print(stdout, *plan);
  if (Status written = write_files(flags, *plan); !written.ok()) return failed(written);
  if (plan->right()) return 0;
  spdlog::error("this plan is wrong: please report it with the command that made it");
  return 1;
}

}  // namespace
}  // namespace rondo::plan

int main(int argc, char** argv) {
  rondo::comm::open_standard_streams();
  spdlog::set_default_logger(spdlog::stderr_color_mt("rondo-plan"));
  spdlog::set_pattern("rondo-plan: %v");
  for (const std::string& unknown : rondo::comm::unknown_variables(environ)) {
    spdlog::warn("{}", unknown);
  }
  const int code = rondo::plan::run(argc, argv);
  const rondo::Status printed = rondo::comm::flush_stdout();
  if (!printed.ok()) spdlog::error("{}", printed.message());
  return printed.ok() || code != 0 ? code : 1;
}
