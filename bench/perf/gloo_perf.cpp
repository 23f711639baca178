// rondo-perf-gloo: the harness on Gloo, TCP over loopback. Its ranks meet through files.
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "bench/backends/gloo.hpp"
#include "bench/harness/launch.hpp"
#include "bench/harness/run.hpp"
#include "comm/base/flush_stdout.hpp"
#include "comm/base/temporary_directory.hpp"
#include "rondo/communicator.hpp"

namespace rondo::bench {
namespace {

const PerfProgram kProgram{
    .name = "rondo-perf-gloo",
    .description = "Times Gloo's collectives over TCP on loopback with rondo-perf's harness."};

int failed(const Status& status) {
  spdlog::error("{}", status.to_string());
  return 1;
}

int run_one(const PerfOptions& options, const Place& place, const std::string& directory,
            const std::vector<std::string>& args) {
  auto backend = make_gloo_backend(place.rank, place.world_size, directory);
  if (!backend.ok()) return failed(backend.status());
  // A rank is two threads. The one that reads the socket returns to epoll_wait() while the caller
  // holds their lock: on one CPU it spins until the kernel's next tick lets the caller go on, which
  // takes 4 ms where that is every 4 ms.
  return run_rank(kProgram, options, **backend, "not pinned: Gloo has two threads per rank", args);
}

int run_program(int argc, char** argv) {
  const ParsedOptions parsed = parse_options(kProgram, argc, argv);
  if (!parsed.options) return parsed.exit_code;
  const PerfOptions& options = *parsed.options;
  const std::vector<std::string> args(argv, argv + argc);
  auto place = place_from_launcher();
  if (!place.ok()) return failed(place.status());
  if (const auto& launched = *place) {
    const char* directory = std::getenv("RONDO_RENDEZVOUS");
    if (directory == nullptr || *directory == '\0' ||
        (options.ranks > 0 && options.ranks != launched->world_size)) {
      return failed(
          {Code::kInvalidArgument,
           "under a launcher RONDO_RENDEZVOUS must name a directory and --ranks must agree with "
           "its number of ranks: or run without a launcher, with --ranks"});
    }
    return run_one(options, *launched, directory, args);
  }
  if (options.ranks > 1) return failed(start_ranks(options.ranks, argv));
  auto directory = base::TemporaryDirectory::create("rondo-perf-");
  if (!directory.ok()) return failed(directory.status());
  return run_one(options, Place{}, directory->path(), args);
}

}  // namespace
}  // namespace rondo::bench

int main(int argc, char** argv) {
  rondo::comm::open_standard_streams();
  spdlog::set_default_logger(spdlog::stderr_color_mt("rondo-perf-gloo"));
  spdlog::set_pattern("rondo-perf-gloo: %^%v%$");
  return rondo::bench::run_program(argc, argv);
}
