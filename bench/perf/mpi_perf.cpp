// rondo-perf-mpi: the harness on the MPI that it was compiled with. Its ranks are mpirun's; --ranks
// calls that mpirun.
#include <mpi.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "bench/backends/mpi.hpp"
#include "bench/harness/machine.hpp"
#include "bench/harness/run.hpp"
#include "comm/base/flush_stdout.hpp"

namespace rondo::bench {
namespace {

const PerfProgram kProgram{.name = "rondo-perf-mpi",
                           .description = "Times MPI's collectives with rondo-perf's harness."};

bool under_mpirun() {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"}) {
    if (std::getenv(variable) != nullptr) return true;
  }
  return false;
}

/// Replaces this process by mpirun; returns only on failure.
int become_mpirun(int ranks, int argc, char** argv) {
  std::vector<std::string> command = {RONDO_MPIRUN, "-n", std::to_string(ranks)};
#ifdef OPEN_MPI
  command.insert(command.end(), {"--bind-to", "none", "--oversubscribe"});
  if (geteuid() == 0) command.emplace_back("--allow-run-as-root");
#endif
  command.insert(command.end(), argv, argv + argc);
  std::vector<char*> words;
  for (std::string& word : command) words.push_back(word.data());
  words.push_back(nullptr);
  execvp(words[0], words.data());
  spdlog::error("cannot start {}: {}", RONDO_MPIRUN, std::strerror(errno));
  return 1;
}

int run_under_mpi(const PerfOptions& options, const std::vector<std::string>& args) {
  const auto backend = make_mpi_backend();
  if (options.ranks > 0 && options.ranks != backend->size()) {
    spdlog::error("mpirun has started {} ranks, --ranks says {}: leave it out", backend->size(),
                  options.ranks);
    return 1;
  }
  const std::string pinning = pin(backend->rank(), backend->size());
  return run_rank(kProgram, options, *backend, pinning, args);
}

int run_program(int argc, char** argv) {
  const ParsedOptions parsed = parse_options(kProgram, argc, argv);
  if (!parsed.options) return parsed.exit_code;
  if (parsed.options->ranks > 1 && !under_mpirun())
    return become_mpirun(parsed.options->ranks, argc, argv);
  MPI_Init(&argc, &argv);
  const int code = run_under_mpi(*parsed.options, {argv, argv + argc});
  // the others may be inside a call that this rank will never enter
  if (code != 0) MPI_Abort(MPI_COMM_WORLD, code);
  MPI_Finalize();
  return code;
}

}  // namespace
}  // namespace rondo::bench

int main(int argc, char** argv) {
  rondo::comm::open_standard_streams();
  spdlog::set_default_logger(spdlog::stderr_color_mt("rondo-perf-mpi"));
  spdlog::set_pattern("rondo-perf-mpi: %^%v%$");
  return rondo::bench::run_program(argc, argv);
}
