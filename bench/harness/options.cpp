// CLI11 parses, this file decides. Exceptions of CLI11 end here.
#include "bench/harness/options.hpp"

#include <CLI/CLI.hpp>
#include <iostream>
#include <sstream>

#include "bench/harness/nccl_flags.hpp"
#include "bench/harness/pattern.hpp"
#include "bench/harness/shape.hpp"
#include "comm/base/flush_stdout.hpp"
#include "rondo/rondo.h"

namespace rondo::bench {
namespace {

constexpr struct {
  std::string_view program;
  Collective collective;
} kNcclPrograms[] = {
    {"all_reduce_perf", Collective::kAllReduce},
    {"all_gather_perf", Collective::kAllGather},
    {"reduce_perf", Collective::kReduce},
    {"reduce_scatter_perf", Collective::kReduceScatter},
    {"broadcast_perf", Collective::kBroadcast},
    {"alltoall_perf", Collective::kAllToAll},
    {"gather_perf", Collective::kGather},
    {"scatter_perf", Collective::kScatter},
    {"sendrecv_perf", kSendRecv},
};

struct Texts {
  std::string collective, min = "32M", max = "32M", step = "1M", type = "float", op = "sum",
                          root = "0";
  std::string algorithm = "auto", memory = "plain", device = "cpu";
  size_t factor = 1;
};

template <size_t N>
std::string join(const std::string_view (&names)[N]) {
  std::string joined;
  for (std::string_view one : names) joined += (joined.empty() ? "" : ", ") + std::string(one);
  return joined;
}

std::string all_collectives() {
  return join(kCollectiveNames) + ", " + std::string(name_of(kSendRecv));
}

template <class Enum, size_t N>
std::optional<std::vector<Enum>> parse_several(const std::string& text,
                                               const std::string_view (&names)[N]) {
  std::vector<Enum> values;
  if (text == "all") {
    for (size_t i = 0; i < N; ++i) values.push_back(static_cast<Enum>(i));
    return values;
  }
  const auto value = internal::parse<Enum>(text, names);
  if (!value) return std::nullopt;
  values.push_back(*value);
  return values;
}

[[noreturn]] void refuse(const std::string& flag, const std::string& value,
                         const std::string& what) {
  throw CLI::ValidationError(flag, "'" + value + "' " + what);
}

size_t size_or_refuse(const std::string& flag, const std::string& text) {
  const auto size = parse_size(text);
  if (!size) refuse(flag, text, "is not a size: write bytes, or a whole number with K, M or G");
  return *size;
}

void read_sweep(const Texts& texts, Sweep& sweep) {
  sweep = {.min = size_or_refuse("-b", texts.min),
           .max = size_or_refuse("-e", texts.max),
           .factor = texts.factor,
           .step = size_or_refuse("-i", texts.step)};
  if (sweep.max < sweep.min)
    refuse("-e", texts.max, "is below the minimum " + texts.min + " given with -b");
  if (sweep.factor > 1 && sweep.min == 0 && sweep.max > 0)
    refuse("-b", texts.min, "never grows by a factor");
  if (sweep.factor > 1) return;
  if (sweep.step == 0) refuse("-i", texts.step, "never reaches the maximum");
  constexpr size_t kMostSizes = 100'000;
  if ((sweep.max - sweep.min) / sweep.step >= kMostSizes)
    refuse("-i", texts.step, "makes more than " + std::to_string(kMostSizes) + " sizes");
}

/// The message for a type or operator that others have, or call by another name.
std::string because(const std::string& text) {
  std::string_view why = internal::why_absent(text);
  for (const std::string_view fp8 : {"fp8", "float8", "e4m3", "e5m2"}) {
    if (text.find(fp8) != text.npos) why = "the two fp8 are called f8e4m3 and f8e5m2";
  }
  for (const std::string_view scaled : {"premul", "PreMul"}) {
    if (text.find(scaled) != text.npos) why = "NCCL's PreMulSum is called mulsum";
  }
  return why.empty() ? "" : "; " + std::string(why);
}

void read_options(const Texts& texts, PerfOptions& options) {
  if (options.calibrate && options.sweep_algorithms) {
    throw CLI::ValidationError("--calibrate", "writes a profile; --sweep comes after it");
  }
  if (!texts.collective.empty()) {
    const bool messages = texts.collective == name_of(kSendRecv);
    const auto collective = messages
                                ? std::optional(kSendRecv)
                                : internal::parse<Collective>(texts.collective, kCollectiveNames);
    if (!collective) refuse("COLLECTIVE", texts.collective, "is not one of: " + all_collectives());
    options.collective = *collective;
  }
  read_sweep(texts, options.sweep);
  const auto types = parse_several<DataType>(texts.type, kDataTypeNames);
  if (!types)
    refuse("-d", texts.type,
           "is not one of: " + join(kDataTypeNames) + ", all" + because(texts.type));
  options.types = *types;
  const auto ops = parse_several<ReduceOp>(texts.op, kReduceOpNames);
  if (!ops)
    refuse("-o", texts.op, "is not one of: " + join(kReduceOpNames) + ", all" + because(texts.op));
  options.ops = *ops;
  options.all_roots = texts.root == "all";
  if (!options.all_roots && !CLI::detail::lexical_cast(texts.root, options.root)) {
    refuse("-r", texts.root, "is neither a rank nor all");
  }
  const auto algorithm = internal::parse<Algorithm>(texts.algorithm, kAlgorithmNames);
  if (!algorithm) refuse("--algorithm", texts.algorithm, "is not one of: " + join(kAlgorithmNames));
  options.algorithm = *algorithm;
  if (options.sweep_algorithms && options.collective == kSendRecv) {
    refuse("--sweep", texts.collective, "has no algorithms to choose from");
  }
  options.library_memory = texts.memory == "library";
  if (options.json_file == "-") {
    refuse("--json", options.json_file,
           "is not a file: use /dev/stdout to print it after the table");
  }
  if (options.calibrate_file == "-") {
    refuse("--calibrate", options.calibrate_file, "is not a file: name one, or leave it out");
  }
  options.cuda = texts.device == "cuda";
  if (!options.cuda && options.graph > 0) {
    refuse("--graph", std::to_string(options.graph), "is for --device cuda");
  }
  if (!options.cuda) return;
  if (!options.pace.empty() || options.calibrate || options.sweep_algorithms) {
    refuse("--device", "cuda", "excludes --pace, --calibrate and --sweep");
  }
}

void add_rondo_flags(CLI::App& app, Texts& texts, PerfOptions& options) {
  app.add_flag("--threads", options.threads, "with --ranks: ranks are threads of one process");
  app.add_option("--algorithm", texts.algorithm, "force one algorithm: " + join(kAlgorithmNames));
  app.add_option("--memory", texts.memory,
                 "plain: malloc; library: rondo::alloc. With --device cuda library "
                 "memory is registered on all ranks")
      ->check(CLI::IsMember({"plain", "library"}))
      ->capture_default_str();
  app.add_option("--pace", options.pace, "delay every message: BANDWIDTH,LATENCY as in 1GB/s,20us");
  app.add_flag("--topology", options.topology,
               "instead of measuring, print the machine's topology and the link profile for "
               "--ranks; under a "
               "launcher each host's, for its ranks");
  app.add_option(
         "--calibrate", options.calibrate_file,
         "time every collective, or COLLECTIVE, with every algorithm on both kinds of memory, "
         "and write a link profile to FILE, or to the place where all programs of rondo find it")
      ->type_name("[FILE]")
      ->expected(0, 1);
  app.add_option("--links", options.links,
                 "choose and predict by this link profile; built-in: rondo's own");
  app.add_flag("--sweep", options.sweep_algorithms,
               "time every algorithm at every size; print the loss of the choice against the best");
  app.add_option("--device", texts.device,
                 "location of the buffers; cuda: ranks use this machine's GPUs in turn")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--graph", options.graph,
                 "with --device cuda: time replays of a graph of N operations; 0: time launches")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  app.add_option("--channels", options.channels,
                 "pipelines per operation (on a GPU: thread blocks per rank); 0: rondo's choice")
      ->check(CLI::Range(0, 64))
      ->capture_default_str();
}

/// A calibration covers every collective if none is named, by default from the smallest size to well above the
/// caches.
void calibrate_by_default(const CLI::App& app, Texts& texts, PerfOptions& options) {
  options.every_collective = texts.collective.empty();
  if (options.every_collective) texts.collective = name(Collective::kAllReduce);  // unused
  if (app.count("-b") == 0) texts.min = "8";
  if (app.count("-e") == 0) texts.max = "64M";
  if (app.count("-f") == 0 && app.count("-i") == 0) texts.factor = 2;
}

void check_csv(const PerfOptions& options) {
  const bool other = options.calibrate || options.sweep_algorithms || options.topology;
  if (options.csv && (other || options.stats)) {
    refuse("--csv", other ? "--calibrate, --sweep or --topology" : "--stats",
           other ? "prints something else" : "is not a column: the statistics are in --json");
  }
  if (options.wide && other) {
    refuse("--wide", "--calibrate, --sweep or --topology", "prints something else");
  }
}

void add_flags(CLI::App& app, const PerfProgram& program, Texts& texts, PerfOptions& options) {
  // CLI11 would wrap -1 to a huge number.
  const CLI::Range counts(size_t{0}, size_t{1'000'000'000});
  if (!program.collective) {
    app.add_option("COLLECTIVE", texts.collective, all_collectives());
  }
  app.add_option("-b,--minbytes", texts.min, "smallest size, K/M/G are binary")
      ->capture_default_str();
  app.add_option("-e,--maxbytes", texts.max, "largest size")->capture_default_str();
  auto* step = app.add_option("-i,--stepbytes", texts.step, "from size to size: add this");
  app.add_option("-f,--stepfactor", texts.factor, "from size to size: multiply by this")
      ->check(CLI::Range(size_t{2}, size_t{1} << 20))
      ->excludes(step);
  app.add_option(
         "-n,--iters", options.iterations,
         "timed operations per row; 0: as many as take about 100 ms, so that small sizes are "
         "measured as precisely as large ones (nccl-tests' default: 20)")
      ->check(counts)
      ->capture_default_str();
  app.add_option("-w,--warmup_iters", options.warmup,
                 "operations before timing (nccl-tests' default: 1)")
      ->check(counts)
      ->capture_default_str();
  app.add_option("-d,--datatype", texts.type,
                 join(kDataTypeNames) + " or all; f8e4m3 and f8e5m2 are the two fp8")
      ->capture_default_str();
  app.add_option("-o,--op", texts.op,
                 join(kReduceOpNames) + " or all; mulsum is NCCL's PreMulSum, each rank times " +
                     std::to_string(static_cast<int>(kFactor)))
      ->capture_default_str();
  app.add_option("-r,--root", texts.root, "a rank or all, for collectives with a root")
      ->capture_default_str();
  app.add_option("-c,--check", options.checks,
                 "operations per row and half whose results are compared")
      ->check(counts)
      ->capture_default_str();
  app.add_option("--ranks", options.ranks,
                 "start this many ranks; without it: the launcher's, or one")
      ->check(CLI::Range(1, 1024));
  app.add_option("-J,--json,--output_file", options.json_file,
                 "write the results to this file as JSON");
  auto* wide = app.add_flag("--wide", options.wide,
                            "also print algorithm, prediction, the memory's limit, and efficiency");
  app.add_flag("--csv", options.csv, "print all columns as CSV instead of the table")
      ->excludes(wide);
}

}  // namespace

std::optional<Collective> collective_named(std::string_view program) {
  for (const auto& known : kNcclPrograms) {
    if (known.program == program) return known.collective;
  }
  return std::nullopt;
}

ParsedOptions parse_options(const PerfProgram& program, int argc, const char* const* argv) {
  CLI::App app(
      program.description + "\nDefaults are those of nccl-tests, except for -n, -w and -a.",
      program.name);
  app.set_version_flag("--version", program.name + " " RONDO_VERSION);
  Texts texts;
  PerfOptions options;
  NcclFlags nccl;
  add_flags(app, program, texts, options);
  add_nccl_flags(app, program.is_rondo, nccl, options);
  if (program.is_rondo) add_rondo_flags(app, texts, options);
  try {
    app.parse(argc, argv);
    if (program.collective) options.collective = *program.collective;
    options.calibrate = program.is_rondo && app.count("--calibrate") > 0;
    if (options.calibrate) {
      calibrate_by_default(app, texts, options);
    } else if (!program.collective && texts.collective.empty() && !options.topology) {
      throw CLI::RequiredError("COLLECTIVE");
    }
    read_options(texts, options);
    read_nccl_flags(nccl, options);
    check_csv(options);
  } catch (const CLI::ParseError& error) {
    if (app.exit(error, std::cout, std::cerr) != 0) {
      return {.options = std::nullopt, .exit_code = 2};
    }
    const Status printed = comm::flush_stdout();
    if (!printed.ok()) std::cerr << program.name << ": " << printed.message() << "\n";
    return {.options = std::nullopt, .exit_code = printed.ok() ? 0 : 1};
  }
  return {.options = options, .exit_code = 0};
}

}  // namespace rondo::bench
