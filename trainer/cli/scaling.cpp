// See scaling.hpp.
#include "trainer/cli/scaling.hpp"

#include <signal.h>
#include <spdlog/spdlog.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "comm/base/temporary_directory.hpp"
#include "kernels/host/cpu_mask.hpp"
#include "rondo/communicator.hpp"
#include "trainer/cli/launch.hpp"
#include "trainer/files/text_output.hpp"

namespace rondo::trainer {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// Flags that each run gets anew, or must not get, and how many words follow them.
constexpr struct {
  std::string_view flag;
  size_t values;
} kOwnFlags[] = {
    {"--scaling", 1}, {"--strong", 0}, {"--batch", 1}, {"--json", 1}, {"--log-every", 1}};

/// That this process may use.
uint64_t cores_here() {
  return static_cast<uint64_t>(std::max(1, kernels::count_cpus(kernels::allowed_cpus())));
}

/// This program with these arguments, its stdout dropped, until it has ended.
Status run_program(std::vector<std::string> words) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) {
    return Status(Code::kSystem, std::string("cannot start a run: ") + std::strerror(errno));
  }
  if (child == 0) {
    // A run ends with this program.
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent || freopen("/dev/null", "w", stdout) == nullptr) _exit(127);
    become_this_program(argv.data());
    _exit(127);
  }
  int state = 0;
  while (waitpid(child, &state, 0) < 0) {
    if (errno != EINTR) return Status(Code::kSystem, std::string("waitpid: ") + strerror(errno));
  }
  if (WIFEXITED(state) && WEXITSTATUS(state) == 0) return {};
  return Status(Code::kSystem,
                fmt::format("a run of --scaling failed ({} {}): its own message is above",
                            WIFEXITED(state) ? "exit code" : "signal",
                            WIFEXITED(state) ? WEXITSTATUS(state) : WTERMSIG(state)));
}

Result<nlohmann::json> read_summary(const std::string& path) {
  std::ifstream file(path);
  const nlohmann::json document = nlohmann::json::parse(file, nullptr, false);
  if (!document.is_object() || !document.contains("summary")) {
    return Status(Code::kSystem, "a run of --scaling left no summary in '" + path + "'");
  }
  return document["summary"];
}

void print_table(const Json& rows) {
  spdlog::info("ranks  batch/rank  samples/s  efficiency  exposed ms/step");
  for (const Json& row : rows) {
    spdlog::info("{:5}  {:10}  {:9.1f}  {:10.2f}  {:15.2f}{}", row["ranks"].get<uint64_t>(),
                 row["batch"].get<uint64_t>(), row["samples_per_s"].get<double>(),
                 row["efficiency"].get<double>(), row["exposed_comm_ms"].get<double>(),
                 row["oversubscribed"].get<bool>() ? "  more ranks than cores" : "");
  }
}

/// As it is in --json.
std::string file_text(const Json& document) {
  return document.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

/// `output`: of --json; may be none.
Status write(TextOutput& output, const Json& document) {
  const std::string text = document.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
  if (std::ferror(stdout) != 0) return Status(Code::kSystem, "cannot write results to stdout");
  if (!output.is_open()) return {};
  const std::string file = file_text(document);
  RONDO_TRY(output.write(file));
  return output.is_stream() ? Status() : output.cut(static_cast<off_t>(file.size()));
}

}  // namespace

std::vector<uint64_t> scaling_ranks(const std::vector<uint64_t>& asked) {
  std::vector<uint64_t> ranks = asked;
  ranks.push_back(1);
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

Status check_scaling(const TrainOptions& options, const std::vector<uint64_t>& ranks) {
  for (const uint64_t n : ranks) {
    if (!options.strong || options.batch % n == 0) continue;
    return Status(
        Code::kInvalidArgument,
        fmt::format("--strong: {} ranks cannot share --batch {} equally", n, options.batch));
  }
  return {};
}

std::vector<std::string> scaling_words(const std::vector<std::string>& words,
                                       const ScalingPoint& point, const std::string& json) {
  std::vector<std::string> result;
  for (size_t i = 0; i < words.size(); ++i) {
    bool own = false;
    for (const auto& [flag, values] : kOwnFlags) {
      if (words[i] == flag) {
        own = true;
        i += values;
        break;
      }
      own = own || (words[i].starts_with(flag) && words[i].substr(flag.size(), 1) == "=");
    }
    if (!own) result.push_back(words[i]);
  }
  for (const std::string& word :
       {std::string("--ranks"), std::to_string(point.ranks), std::string("--batch"),
        std::to_string(point.batch), std::string("--json"), json, std::string("--log-every"),
        std::string("0")}) {
    result.push_back(word);
  }
  return result;
}

Json scaling_rows(const std::vector<ScalingPoint>& points, uint64_t cores, uint64_t threads) {
  Json rows = Json::array();
  for (const ScalingPoint& p : points) {
    const double alone = points.front().samples_per_s;
    const auto of = [&](uint64_t ranks) {
      return alone > 0 ? p.samples_per_s / (static_cast<double>(ranks) * alone) : 0.0;
    };
    Json row = {{"ranks", p.ranks},
                {"batch", p.batch},
                {"samples_per_s", p.samples_per_s},
                {"efficiency", of(p.ranks)},
                {"oversubscribed", p.oversubscribed}};
    if (p.oversubscribed) {
      row["efficiency_of_cores"] =
          of(std::clamp<uint64_t>(cores / std::max<uint64_t>(1, threads), 1, p.ranks));
      row["note"] = fmt::format(
          "more ranks than cores: {} x {} threads share {} cores, so this is "
          "not how training scales",
          p.ranks, threads, cores);
    }
    for (const char* key :
         {"step_ms", "compute_ms", "exposed_comm_ms", "hidden_fraction", "accounting",
          "bytes_sent_per_step", "global_batch", "diagnosis", "suggested_bucket_cap_mb"}) {
      if (p.summary.contains(key)) row[key] = p.summary[key];
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

namespace {

/// All runs, and what they come to.
Result<Json> run_all(const TrainOptions& options, const std::vector<uint64_t>& ranks, char** argv) {
  const auto scratch = RONDO_TRY(base::TemporaryDirectory::create("rondo-scaling-"));
  std::vector<std::string> words;
  for (char** word = argv; *word != nullptr; ++word) words.emplace_back(*word);

  const uint64_t cores = cores_here();
  std::vector<ScalingPoint> points;
  for (const uint64_t n : ranks) {
    ScalingPoint point{.ranks = n,
                       .batch = options.strong ? options.batch / n : options.batch,
                       .samples_per_s = 0,
                       .oversubscribed = n * static_cast<uint64_t>(options.compute_threads) > cores,
                       .summary = {}};
    spdlog::info("{} rank{}, batch {} each{}", n, n == 1 ? "" : "s", point.batch,
                 point.oversubscribed ? ": more ranks than cores" : "");
    const std::string json = scratch.path() + "/" + std::to_string(n) + ".json";
    RONDO_TRY(run_program(scaling_words(words, point, json)));
    point.summary = RONDO_TRY(read_summary(json));
    point.samples_per_s = point.summary.value("samples_per_s", 0.0);
    points.push_back(std::move(point));
  }
  Json config = to_json(options);
  config["strong"] = options.strong;
  config["cores"] = cores;
  const Json rows = scaling_rows(points, cores, static_cast<uint64_t>(options.compute_threads));
  print_table(rows);
  return Json{{"program", "rondo-train"}, {"config", std::move(config)}, {"scaling", rows}};
}

}  // namespace

Status run_scaling(const TrainOptions& options, char** argv) {
  const std::optional<Place> place = RONDO_TRY(place_from_launcher());
  if (place && place->world_size > 1) {
    return Status(Code::kInvalidArgument,
                  "--scaling starts the ranks itself: leave out the launcher");
  }
  const std::vector<uint64_t> ranks = scaling_ranks(options.scaling);
  RONDO_TRY(check_scaling(options, ranks));
  if (std::find(options.scaling.begin(), options.scaling.end(), 1) == options.scaling.end()) {
    spdlog::info("--scaling: 1 rank is added, which the others are compared with");
  }
  TextOutput output;  // now, so that a bad path is known before the work
  if (!options.json.empty()) output = RONDO_TRY(TextOutput::open("--json", options.json));
  const Result<Json> document = run_all(options, ranks, argv);
  if (document.ok()) return write(output, document.value());
  std::error_code ignored;
  if (output.is_stream() || (output.is_open() && fs::is_empty(options.json, ignored))) {
    (void)output.write(file_text({{"program", "rondo-train"},
                                  {"config", to_json(options)},
                                  {"error", document.status().to_string()}}));
  }
  return document.status();
}

}  // namespace rondo::trainer
