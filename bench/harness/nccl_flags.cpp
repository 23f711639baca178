// The flags of nccl-tests 2.19. Those that every program here has are in options.cpp.
#include "bench/harness/nccl_flags.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace rondo::bench {
namespace {

constexpr int kMostRanks = 1024;

/// A flag whose only accepted value is the fixed behaviour.
struct Settled {
  const char* names;
  std::vector<std::string> accepted;
  const char* fact;
};

const std::vector<Settled>& settled_flags() {
  static const std::vector<Settled> all = {
      {"-m,--agg_iters", {"1"}, "every operation is launched by itself"},
      {"-p,--parallel_init", {"0", "1"}, "ranks always start in parallel"},
      {"-z,--blocking", {"2"}, "a call returns when its result is there; no barrier follows"},
      {"-G,--cudagraph", {"0"}, "CUDA graphs are timed with --device cuda --graph N"},
      {"-C,--report_cputime",
       {"0"},
       "times are wall-clock times, or CUDA events' with --device cuda"},
      {"-D,--device_implementation",
       {"0"},
       "this measures the library's calls; --algorithm selects how"},
      {"-V,--device_cta_count", {}, "it belongs to -D; --channels sets the blocks per rank"},
      {"-x,--cta_policy", {}, "it is NCCL's; --channels sets the blocks per rank"},
      {"-S,--report_timestamps", {"0"}, "the JSON has start and end of the run, rows have no time"},
      {"-K,--per_iter_skip", {"0"}, "single timings follow the warm-up (-w), none is skipped"},
      {"-M,--memory_report", {"0", "1"}, "the header always shows memory use"},
      {"-y,--stream_null", {"0"}, "a rank has a stream of its own, or needs none"},
  };
  return all;
}

}  // namespace

void add_nccl_flags(CLI::App& app, bool is_rondo, NcclFlags& flags, PerfOptions& options) {
  for (const Settled& flag : settled_flags()) {
    std::string help = flag.fact;
    for (const std::string& value : flag.accepted) {
      help += (&value == &flag.accepted.front() ? "; accepted: " : ", ") + value;
    }
    app.add_option_function<std::string>(
           flag.names,
           [&flag](const std::string& value) {
             const auto& accepted = flag.accepted;
             if (std::find(accepted.begin(), accepted.end(), value) != accepted.end()) return;
             throw CLI::ValidationError(flag.names,
                                        "'" + value + "' is not supported: " + flag.fact);
           },
           help)
        ->group("nccl-tests' flags that change nothing");
  }
  app.add_option("-N,--run_cycles", options.cycles, "measure all rows so often")
      ->check(CLI::Range(size_t{1}, size_t{1'000'000}))
      ->capture_default_str();
  app.add_flag("--stats", options.stats,
               "a line of statistics over single operations under every row (the JSON always has "
               "them)");
  app.add_option(
         "-a,--average", flags.average,
         "report the time of: 0: rank 0; 1: the mean over the ranks; 2: the fastest; 3: the "
         "slowest, because a collective takes as long as its slowest rank (nccl-tests' default: 1)")
      ->check(CLI::Range(0, 3))
      ->capture_default_str();
  app.add_option("-I,--per_iter_timing", flags.per_iteration, "1: as --stats")
      ->check(CLI::Range(0, 1));
  app.add_option("-u,--unalign", options.unalign, "shift both buffers by this many elements")
      ->check(CLI::Range(size_t{0}, size_t{1} << 20))
      ->capture_default_str();
  if (!is_rondo) return;
  app.add_option("-t,--nthreads", flags.threads, "as --ranks T x G --threads, with -g G")
      ->check(CLI::Range(1, kMostRanks));
  app.add_option("-g,--ngpus", flags.gpus, "ranks per thread; see -t")
      ->check(CLI::Range(1, kMostRanks));
  app.add_option("-R,--local_register", flags.local_register, "1, 2: as --memory library")
      ->check(CLI::Range(0, 2));
  app.add_option("-T,--stall-timeout", options.timeout_s,
                 "seconds without any movement after which the run fails")
      ->check(CLI::Range(1e-3, 1e9));
}

void read_nccl_flags(const NcclFlags& flags, PerfOptions& options) {
  if (std::isnan(options.timeout_s)) throw CLI::ValidationError("-T", "nan is not a number");
  if (flags.local_register != 0) options.library_memory = true;
  if (flags.per_iteration != 0) options.stats = true;
  options.across = static_cast<AcrossRanks>(flags.average);
  const int ranks = std::max(flags.threads, 1) * std::max(flags.gpus, 1);
  if (ranks > kMostRanks) {
    throw CLI::ValidationError("-t, -g", "these mean " + std::to_string(ranks) +
                                             " ranks; at most " + std::to_string(kMostRanks));
  }
  if (ranks == 1) return;
  if (options.ranks > 0 && options.ranks != ranks) {
    throw CLI::ValidationError("-t, -g", "these mean " + std::to_string(ranks) +
                                             " ranks, --ranks is " + std::to_string(options.ranks));
  }
  options.ranks = ranks;
  options.threads = true;
}

}  // namespace rondo::bench
