// rondo-perf: times rondo's collectives. Decides how its ranks are started; the harness does the
// rest.
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "bench/backends/rondo.hpp"
#include "bench/harness/launch.hpp"
#include "bench/harness/machine.hpp"
#include "bench/harness/report.hpp"
#include "bench/harness/run.hpp"
#include "bench/perf/calibrate.hpp"
#include "bench/perf/rank_errors.hpp"
#include "bench/perf/stop.hpp"
#include "bench/perf/sweep.hpp"
#include "bench/perf/topology.hpp"
#include "comm/base/flush_stdout.hpp"
#include "comm/base/temporary_directory.hpp"
#include "rondo/log.hpp"

namespace rondo::bench {
namespace {

constexpr const char* kDescription =
    "Times rondo's collectives, checks their results, prints nccl-tests' table.";

/// The data that all ranks of this process share.
struct Context {
  PerfProgram program;
  PerfOptions options;
  std::vector<std::string> args;
  StopOnSignal& stop;
  size_t private_bytes_before;
  mutable std::atomic<bool> have_met = false;  // ranks that are threads
  mutable std::once_flag has_failed = {};      // of ranks that have no backend
};

int failed(const Status& status) {
  spdlog::error("{}", status.to_string());
  return 1;
}

/// Returns `work`'s result, or 1 after a message if threads or memory run out.
int guarded(const std::function<int()>& work) {
  try {
    return work();
  } catch (const std::system_error& error) {
    return failed({Code::kResourceExhausted, std::string("cannot start a thread: ") + error.what() +
                                                 "; raise `ulimit -u` or `ulimit -v`"});
  } catch (const std::bad_alloc&) {
    std::fputs("rondo-perf: out of memory; raise `ulimit -v`\n", stderr);  // takes none
    return 1;
  }
}

Config config_for(const PerfOptions& options) {
  Config config;
  config.pace = options.pace;
  config.links = options.calibrate ? "built-in" : options.links;
  config.channels = options.channels;
  if (options.timeout_s > 0) {
    config.stall_timeout = std::chrono::milliseconds(static_cast<int64_t>(options.timeout_s * 1e3));
  }
  return config;
}

/// As a communicator reads it.
bool is_paced() {
  const char* pace = std::getenv("RONDO_PACE");
  const std::string_view text = pace != nullptr ? pace : "";
  return !text.empty() && text != "off";
}

/// "RONDO_ALGORITHM=ring, RONDO_REPRODUCIBLE=1": of the variables that decide how operations go,
/// those that are set.
std::string deciding_variables() {
  std::string set;
  for (const auto& [name, off] :
       {std::pair("RONDO_ALGORITHM", "auto"), std::pair("RONDO_REPRODUCIBLE", "0")}) {
    const char* value = std::getenv(name);
    const std::string_view text = value != nullptr ? value : "";
    if (text.empty() || text == off) continue;
    set += (set.empty() ? "" : ", ") + std::string(name) + "=" + std::string(text);
  }
  return set;
}

bool has_rows(const PerfOptions& options) {
  return !options.calibrate && !options.sweep_algorithms;
}

/// Before they have met, the first of ranks that are threads writes --json, and the others wait for it:
/// any of them ends the process. Else rank 0 does.
int has_no_backend(const Context& context, const Place& place, const Status& status) {
  const bool ends_all = context.options.threads && !context.have_met;
  if (has_rows(context.options) && (place.rank == 0 || ends_all)) {
    std::call_once(context.has_failed, [&] {
      write_without_backend(context.program, context.options, place.world_size, context.args,
                            status.to_string());
    });
  }
  return failed(status);
}

int run_one(const Context& context, const Config& config, const Place& place) {
  const PerfOptions& options = context.options;
  const int cpus = allowed_cpus();
  const std::string pinning = pin(place.local_rank, place.local_world_size);
  if (options.calibrate &&
      (place.world_size < 2 || place.local_world_size > cpus || options.threads ||
       !options.pace.empty() || is_paced() || !options.links.empty())) {
    return failed({Code::kInvalidArgument,
                   "--calibrate needs at least two processes and a CPU for each, and goes without "
                   "--threads, --pace (RONDO_PACE) and --links: here are " +
                       std::to_string(place.world_size) + " ranks and " + std::to_string(cpus) +
                       " CPUs"});
  }
  const std::string variables = deciding_variables();
  if (!has_rows(options) && !variables.empty()) {
    return failed({Code::kInvalidArgument,
                   "--calibrate and --sweep compare algorithms: go without " + variables});
  }
  auto backend = make_rondo_backend({.config = config,
                                     .algorithm = options.algorithm,
                                     .library_memory = options.library_memory,
                                     .direct = options.library_memory || options.threads,
                                     .cuda = options.cuda,
                                     .local_rank = place.local_rank,
                                     .variables = variables,
                                     .graph = options.graph,
                                     .ranks_in_process = options.threads ? place.world_size : 1,
                                     .private_bytes_before = context.private_bytes_before});
  if (backend.ok()) context.have_met = true;
  // The ranks have met, so the directory can go; an interrupted run leaves nothing behind.
  std::error_code ignored;
  if (backend.ok() && options.threads && place.rank == 0) {
    const std::filesystem::path meeting = config.rendezvous;
    std::filesystem::remove_all(meeting.parent_path().parent_path(), ignored);
  }
  if (!backend.ok()) return has_no_backend(context, place, backend.status());
  // One rank of a process is enough: all ranks learn of it.
  const bool listens = place.local_rank == 0 || !options.threads;
  if (listens) {
    context.stop.on_signal([&](const std::string& reason) { (*backend)->abort(reason); });
  }
  const int code = options.calibrate ? calibrate(options, config, **backend)
                   : options.sweep_algorithms
                       ? sweep_algorithms(options, **backend, pinning)
                       : run_rank(context.program, options, **backend, pinning, context.args);
  if (listens) context.stop.forget();
  return code;
}

int run_threads(const Context& context) {
  const int ranks = std::max(context.options.ranks, 1);
  auto directory = base::TemporaryDirectory::create("rondo-perf-");
  if (!directory.ok()) return failed(directory.status());
  std::vector<int> codes(static_cast<size_t>(ranks), 0);
  const auto errors =
      std::make_shared<RankErrors>(spdlog::default_logger()->sinks().front(), ranks);
  spdlog::default_logger()->sinks() = {errors};
  // No rank begins before all have a thread: it would wait for the others.
  std::promise<bool> started;
  const std::shared_future<bool> all_started = started.get_future().share();
  std::vector<std::jthread> threads;
  try {
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        if (!all_started.get()) return;
        Config config = config_for(context.options);
        config.rank = rank;
        config.world_size = ranks;
        // Two folders deep, so that rank 0, which makes a folder and its parent where they are
        // missing, does not make the directory again once it is removed.
        config.rendezvous = directory->path() + "/meeting/ranks";
        const Place place{
            .rank = rank, .world_size = ranks, .local_rank = rank, .local_world_size = ranks};
        const int code = guarded([&] { return run_one(context, config, place); });
        codes[static_cast<size_t>(rank)] = code;
        // Before they have met the others may wait for this rank, which none of them watches yet.
        if (code != 0 && !context.have_met) {
          std::error_code ignored;
          std::filesystem::remove_all(directory->path(), ignored);
          std::_Exit(code);  // how many have failed by now says nothing
        }
      });
    }
  } catch (...) {
    started.set_value(false);
    throw;
  }
  started.set_value(true);
  threads.clear();  // waits for them
  errors->finish();
  return *std::max_element(codes.begin(), codes.end());
}

int run_program(int argc, char** argv) {
  // As nccl-tests names its programs: all_reduce_perf and the like are links to this one.
  const std::string called = argc > 0 ? std::filesystem::path(argv[0]).filename().string() : "";
  PerfProgram program{.name = "rondo-perf",
                      .description = kDescription,
                      .is_rondo = true,
                      .collective = collective_named(called)};
  if (program.collective) program.name = called;
  const ParsedOptions parsed = parse_options(program, argc, argv);
  if (!parsed.options) return parsed.exit_code;
  PerfOptions options = *parsed.options;
  options.progress = stderr_is_terminal();
  options.stdout_is_terminal = stdout_is_terminal();
  if (options.calibrate && options.calibrate_file.empty()) {
    options.calibrate_file = default_links_path();
    if (options.calibrate_file.empty()) {
      return failed({Code::kInvalidArgument,
                     "--calibrate needs a FILE: neither XDG_CONFIG_HOME nor HOME is set"});
    }
  }
  auto place = place_from_launcher();
  if (!place.ok()) return failed(place.status());
  if (options.topology && *place && (*place)->world_size > 1) {
    const Status printed = print_topology_of_hosts(config_for(options));
    if (!printed.ok()) return failed(printed);
    return is_written(stdout) ? 0 : 1;
  }
  if (options.topology) {
    const std::string report = topology_report(std::max(options.ranks, 1), config_for(options));
    return std::fputs(report.c_str(), stdout) >= 0 && is_written(stdout) ? 0 : 1;
  }
  // The only rank of a launcher, as in an interactive Slurm step, may still start others.
  const bool starts_others = options.threads || options.ranks > 1;
  if (const auto& launched = *place; launched && (launched->world_size > 1 || !starts_others)) {
    if (options.threads || (options.ranks > 0 && options.ranks != launched->world_size)) {
      return failed({Code::kInvalidArgument,
                     "a launcher has already started " + std::to_string(launched->world_size) +
                         " ranks: leave out --ranks, --threads, -t and -g"});
    }
  } else if (!options.threads && options.ranks > 1) {
    const std::string collective(program.collective ? name_of(*program.collective) : "");
    return failed(start_ranks(options.ranks, argv, collective));
  }
  const int alone_or_launched = *place ? (*place)->world_size : 1;
  const int ranks = options.threads ? std::max(options.ranks, 1) : alone_or_launched;
  const std::vector<std::string> args = {argv, argv + argc};
  if (has_rows(options) && (!*place || (*place)->rank == 0)) {
    write_without_backend(program, options, ranks, args, "");
  }
  StopOnSignal stop;
  const Context context{.program = program,
                        .options = options,
                        .args = args,
                        .stop = stop,
                        .private_bytes_before = private_memory_bytes()};
  if (options.threads) return stop.exit_code(run_threads(context));
  Config config = config_for(options);
  if (!*place) {
    config.rank = 0;
    config.world_size = 1;
  }
  return stop.exit_code(run_one(context, config, place->value_or(Place{})));
}

}  // namespace
}  // namespace rondo::bench

int main(int argc, char** argv) {
  rondo::comm::open_standard_streams();
  // CUDA's default has few queues, which streams share, so that one rank's kernel would wait in
  // line for another's. Set before there are threads, and before CUDA reads it.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  spdlog::set_default_logger(spdlog::stderr_color_mt("rondo-perf"));
  spdlog::set_pattern("rondo-perf: %^%v%$");
  return rondo::bench::guarded([&] { return rondo::bench::run_program(argc, argv); });
}
