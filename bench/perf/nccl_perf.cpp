// rondo-perf-nccl: the harness on NCCL. Its ranks are threads of this process, one for each GPU, or
// several where NCCL allows it.
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "bench/backends/nccl.hpp"
#include "bench/harness/machine.hpp"
#include "bench/harness/run.hpp"
#include "comm/base/flush_stdout.hpp"
#include "rondo/communicator.hpp"

namespace rondo::bench {
namespace {

const PerfProgram kProgram{
    .name = "rondo-perf-nccl",
    .description = "Times NCCL's collectives with rondo-perf's harness: a rank on every GPU."};

int failed(const Status& status) {
  spdlog::error("{}", status.to_string());
  return 1;
}

Status check_launcher() {
  auto place = RONDO_TRY(place_from_launcher());
  if (!place || place->world_size == 1) return {};
  return {Code::kInvalidArgument, "a launcher has started " + std::to_string(place->world_size) +
                                      " processes, and one is enough: it has a rank on every GPU"};
}

/// One for each GPU, or --ranks.
Result<int> ranks_for(const PerfOptions& options) {
  auto gpus = RONDO_TRY(gpus_for_nccl());
  RONDO_TRY(check_nccl_ranks(options.ranks, gpus));
  return options.ranks > 0 ? options.ranks : gpus;
}

struct NcclRun {
  const PerfOptions& options;
  NcclWorld& world;
  int ranks;
  std::vector<std::string> args;
};

int run_one(const NcclRun& run, int rank) {
  const std::string pinning = pin(rank, run.ranks);
  auto backend = run.world.make_backend(rank);
  if (!backend.ok()) {
    if (rank == 0) {
      write_without_backend(kProgram, run.options, run.ranks, run.args,
                            backend.status().to_string());
    }
    return failed(backend.status());
  }
  return run_rank(kProgram, run.options, **backend, pinning, run.args);
}

int run_program(int argc, char** argv) {
  const ParsedOptions parsed = parse_options(kProgram, argc, argv);
  if (!parsed.options) return parsed.exit_code;
  if (const Status alone = check_launcher(); !alone.ok()) return failed(alone);
  PerfOptions options = *parsed.options;
  options.cuda = true;
  const std::vector<std::string> args = {argv, argv + argc};
  const auto failed_early = [&](int ranks, const Status& status) {
    write_without_backend(kProgram, options, ranks, args, status.to_string());
    return failed(status);
  };
  const auto ranks = ranks_for(options);
  if (!ranks.ok()) return failed_early(options.ranks, ranks.status());
  write_without_backend(kProgram, options, ranks.value(), args, "");
  auto world = make_nccl_world(ranks.value());
  if (!world.ok()) return failed_early(ranks.value(), world.status());
  const NcclRun run{.options = options, .world = **world, .ranks = ranks.value(), .args = args};
  std::promise<void> first;
  const std::shared_future<void> first_has_ended = first.get_future().share();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < run.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const int code = run_one(run, rank);
      if (rank == 0) first.set_value();
      if (code == 0) return;
      // The others may be inside a call that this rank will never enter. Rank 0 writes the report,
      // if it still can.
      first_has_ended.wait_for(std::chrono::seconds(10));
      std::fflush(stdout);
      std::_Exit(code);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return 0;
}

}  // namespace
}  // namespace rondo::bench

int main(int argc, char** argv) {
  rondo::comm::open_standard_streams();
  spdlog::set_default_logger(spdlog::stderr_color_mt("rondo-perf-nccl"));
  spdlog::set_pattern("rondo-perf-nccl: %^%v%$");
  return rondo::bench::run_program(argc, argv);
}
