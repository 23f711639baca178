// rondo-perf: times rondo's collectives. Finds out how its ranks are to be started; everything else
// is the harness'.
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "bench/backends/rondo.hpp"
#include "bench/harness/launch.hpp"
#include "bench/harness/machine.hpp"
#include "bench/harness/run.hpp"

namespace rondo::bench {
namespace {

const Program kProgram{
    .name = "rondo-perf",
    .description = "Times rondo's collectives, checks their results, prints nccl-tests' table.",
    .is_rondo = true};

int failed(const Status& status) {
  spdlog::error("{}", status.to_string());
  return 1;
}

int run_one(const Options& options, Config config, const Place& place,
            const std::vector<std::string>& args) {
  const std::string pinning = pin(place.local_rank, place.local_world_size);
  config.pace = options.pace;
  auto backend = make_rondo_backend({.config = config,
                                     .algorithm = options.algorithm,
                                     .library_memory = options.library_memory,
                                     .direct = options.library_memory || options.threads});
  // The ranks have met; an interrupted run leaves nothing behind.
  std::error_code ignored;
  if (options.threads && place.rank == 0) std::filesystem::remove_all(config.rendezvous, ignored);
  if (!backend.ok()) return failed(backend.status());
  return run_rank(kProgram, options, **backend, pinning, args);
}

int run_threads(const Options& options, const std::vector<std::string>& args) {
  const int ranks = std::max(options.ranks, 1);
  auto directory = TemporaryDirectory::create();
  if (!directory.ok()) return failed(directory.status());
  std::vector<int> codes(static_cast<size_t>(ranks), 0);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Config config;
      config.rank = rank;
      config.world_size = ranks;
      config.rendezvous = directory->path();
      const Place place{
          .rank = rank, .world_size = ranks, .local_rank = rank, .local_world_size = ranks};
      codes[static_cast<size_t>(rank)] = run_one(options, config, place, args);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return *std::max_element(codes.begin(), codes.end());
}

int run_program(int argc, char** argv) {
  const Parsed parsed = parse_options(kProgram, argc, argv);
  if (!parsed.options) return parsed.exit_code;
  const Options& options = *parsed.options;
  const std::vector<std::string> args(argv, argv + argc);
  auto place = place_from_launcher();
  if (!place.ok()) return failed(place.status());
  // A launcher's only rank, as in an interactive Slurm step, may still start others.
  const bool starts_others = options.threads || options.ranks > 1;
  if (const auto& launched = *place; launched && (launched->world_size > 1 || !starts_others)) {
    if (options.threads || (options.ranks > 0 && options.ranks != launched->world_size)) {
      return failed({Code::kInvalidArgument, "a launcher has already started " +
                                                 std::to_string(launched->world_size) +
                                                 " ranks: leave out --ranks and --threads"});
    }
    return run_one(options, Config{}, *launched, args);
  }
  if (options.threads) return run_threads(options, args);
  if (options.ranks > 1) return failed(start_ranks(options.ranks, argv));
  Config alone;
  alone.rank = 0;
  alone.world_size = 1;
  return run_one(options, alone, Place{}, args);
}

}  // namespace
}  // namespace rondo::bench

int main(int argc, char** argv) {
  spdlog::set_default_logger(spdlog::stderr_color_mt("rondo-perf"));
  return rondo::bench::run_program(argc, argv);
}
