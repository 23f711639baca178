// rondo-compare: rondo, one MPI and Gloo in the same processes, in alternating batches, so that a
// noisy machine is equally noisy for all of them. scripts/compare runs it once per MPI and merges
// the results.
#include <mpi.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/backends/both_memories.hpp"
#include "bench/backends/gloo.hpp"
#include "bench/backends/mpi.hpp"
#include "bench/backends/rondo.hpp"
#include "bench/harness/machine.hpp"
#include "bench/harness/measure.hpp"
#include "bench/harness/size.hpp"
#include "comm/base/temporary_directory.hpp"
#include "kernels/host/cpu_mask.hpp"
#include "rondo/memory.hpp"
#include "rondo/rondo.h"

namespace rondo::bench {
namespace {

using nlohmann::json;

struct CompareOptions {
  std::string collective = "all_reduce", min = "8", max = "64M", type = "float", op = "sum",
              json_file;
  std::string interface;  // empty: all ranks are on this host
  size_t factor = 4, rounds = 11;
  double batch_ms = 20;
  bool in_place = false, no_gloo = false;
};

/// A library, the memory that it is measured on, and the CPUs that its caller may use meanwhile.
struct ComparedLibrary {
  std::string label;
  Backend* backend;
  Buffers buffers;
  kernels::CpuMask cpus;
};

/// One size: for every contender the slowest rank's mean of each round.
struct ComparedRounds {
  size_t bytes;
  std::vector<std::vector<double>> times_us;
};

/// Rank 0's text, on every rank.
std::string text_of_rank_0(const std::string& mine) {
  char text[4096] = {};
  std::strncpy(text, mine.c_str(), sizeof(text) - 1);
  MPI_Bcast(text, sizeof(text), MPI_CHAR, 0, MPI_COMM_WORLD);
  return text;
}

/// Where rondo's ranks meet: in `directory`; on several hosts at a port of rank 0's, with a secret
/// of rank 0's.
Result<std::string> rondo_rendezvous(const CompareOptions& options, const std::string& directory,
                                     int rank) {
  if (options.interface.empty()) return directory + "/rondo";
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  auto secret = make_unique_id();
  secret = text_of_rank_0(rank == 0 && secret.ok() ? *secret : "");
  if (secret->empty()) return Status(Code::kSystem, "rank 0 could not make a secret");
  setenv("RONDO_SECRET", secret->c_str(), 1);
  setenv("RONDO_INTERFACE", options.interface.c_str(), 1);
  return "tcp://" + text_of_rank_0(host) + ":29511";
}

/// One batch of each contender in turn. MPI's barrier keeps a rank from entering a batch while
/// another is still in the one before: a waiting rank spins, and would slow down the measured
/// library.
Status run_round(Backend& mpi, const std::vector<ComparedLibrary>& contenders,
                 const std::vector<BackendCall>& operations, const std::vector<size_t>& iterations,
                 std::vector<std::vector<double>>& times_us) {
  for (size_t i = 0; i < contenders.size(); ++i) {
    Backend& backend = *contenders[i].backend;
    kernels::bind_to_cpus(contenders[i].cpus);
    RONDO_TRY(mpi.barrier());
    const size_t warmup = std::clamp<size_t>(iterations[i] / 10, 1, 100);
    for (size_t w = 0; w < warmup; ++w) RONDO_TRY(backend.run(operations[i]));
    times_us[i].push_back(RONDO_TRY(time_batch(backend, operations[i], iterations[i])));
  }
  return {};
}

Result<ComparedRounds> compare_size(Backend& mpi, const std::vector<ComparedLibrary>& contenders,
                                    const CallShape& shape, const CompareOptions& options) {
  std::vector<BackendCall> operations;
  std::vector<size_t> iterations;
  for (const ComparedLibrary& contender : contenders) {
    Backend& backend = *contender.backend;
    kernels::bind_to_cpus(contender.cpus);
    auto wrong = RONDO_TRY(check(backend, shape, contender.buffers, options.in_place));
    if (wrong > 0) {
      return Status(Code::kDataError, contender.label + " has " + std::to_string(wrong) +
                                          " wrong elements at " +
                                          std::to_string(size_bytes(shape, mpi.size())) + " bytes");
    }
    operations.push_back(
        operation_on(shape, contender.buffers, options.in_place, backend.rank(), backend.size()));
    iterations.push_back(
        RONDO_TRY(choose_iterations(backend, operations.back(), options.batch_ms * 1e3)));
  }
  std::vector<std::vector<double>> mine(contenders.size());
  for (size_t round = 0; round < options.rounds; ++round) {
    RONDO_TRY(run_round(mpi, contenders, operations, iterations, mine));
  }
  ComparedRounds rounds{.bytes = size_bytes(shape, mpi.size()), .times_us = {}};
  for (const auto& times : mine) {
    rounds.times_us.push_back(RONDO_TRY(slowest_of(mpi, times)));
  }
  return rounds;
}

/// Median over the rounds of other / one: how many times as fast as `other` is `one`.
double ratio(const std::vector<double>& one, const std::vector<double>& other) {
  std::vector<double> ratios;
  for (size_t i = 0; i < one.size(); ++i) ratios.push_back(other[i] / one[i]);
  return median(std::move(ratios));
}

json to_json(const std::vector<ComparedLibrary>& contenders, const ComparedRounds& rounds) {
  json backends = json::array();
  for (size_t i = 0; i < contenders.size(); ++i) {
    backends.push_back({{"name", contenders[i].label},
                        {"median_us", median(rounds.times_us[i])},
                        {"rounds_us", rounds.times_us[i]}});
  }
  return {{"size", rounds.bytes}, {"backends", backends}};
}

void print_header(const std::vector<ComparedLibrary>& contenders) {
  std::printf("%10s", "size");
  for (const ComparedLibrary& contender : contenders)
    std::printf("  %24s", contender.label.c_str());
  std::printf("   [us; in brackets: slower than rondo on plain / library memory, times]\n");
}

void print_row(const std::vector<ComparedLibrary>& contenders, const ComparedRounds& rounds) {
  std::printf("%10s", format_size(rounds.bytes).c_str());
  for (size_t i = 0; i < contenders.size(); ++i) {
    char text[64];
    if (i < 2) {
      std::snprintf(text, sizeof(text), "%.2f", median(rounds.times_us[i]));
    } else {
      std::snprintf(text, sizeof(text), "%.2f (%.2f / %.2f)", median(rounds.times_us[i]),
                    ratio(rounds.times_us[0], rounds.times_us[i]),
                    ratio(rounds.times_us[1], rounds.times_us[i]));
    }
    std::printf("  %24s", text);
  }
  std::printf("\n");
  std::fflush(stdout);
}

Status compare_all(const CompareOptions& options, const std::string& directory, json& document) {
  const auto collective = internal::parse<Collective>(options.collective, kCollectiveNames);
  const auto type = internal::parse<DataType>(options.type, kDataTypeNames);
  const auto op = internal::parse<ReduceOp>(options.op, kReduceOpNames);
  const auto min = parse_size(options.min), max = parse_size(options.max);
  if (!collective || !type || !op || !min || !max || *min == 0 || *max < *min) {
    return {Code::kInvalidArgument, "unknown collective, type, operator or size: see --help"};
  }
  const auto mpi = make_mpi_backend();
  const int rank = mpi->rank(), ranks = mpi->size();
  // Gloo is not pinned: see rondo-perf-gloo. Its thread gets the CPUs of the one that makes it.
  const kernels::CpuMask all_cpus = kernels::allowed_cpus();
  std::unique_ptr<Backend> gloo;
  if (!options.no_gloo) {
    gloo = RONDO_TRY(make_gloo_backend(rank, ranks, directory + "/gloo", options.interface));
  }
  const std::string pinning = pin(rank, ranks);
  const kernels::CpuMask own_cpus = kernels::allowed_cpus();

  Config config;
  config.rank = rank;
  config.world_size = ranks;
  config.rendezvous = RONDO_TRY(rondo_rendezvous(options, directory, rank));
  auto rondo = RONDO_TRY(make_rondo_backend({.config = config}));
  const BothMemories memory(std::max<size_t>(*max, 64), ranks);
  if (!memory.ok())
    return {Code::kResourceExhausted, "no memory for four buffers of " + options.max};

  // The peers share rondo's plain buffers, so that none has better pages.
  const Buffers& plain = memory.of(false);
  std::vector<ComparedLibrary> contenders = {
      {"rondo plain", rondo.get(), plain, own_cpus},
      {"rondo library", rondo.get(), memory.of(true), own_cpus},
      {mpi->name(), mpi.get(), plain, own_cpus}};
  if (gloo) contenders.push_back({gloo->name(), gloo.get(), plain, all_cpus});
  std::vector<CallShape> shapes;
  for (size_t bytes : sizes_of({.min = *min, .max = *max, .factor = options.factor, .step = 0})) {
    shapes.push_back(shape_of(*collective, *type, *op, 0, bytes, ranks));
  }
  for (const ComparedLibrary& contender : contenders)
    RONDO_TRY(contender.backend->supports(shapes.back()));

  document = {{"mpi", mpi->name()},           {"ranks", ranks},
              {"pinning", pinning},           {"collective", options.collective},
              {"type", options.type},         {"redop", options.op},
              {"in_place", options.in_place}, {"rounds", options.rounds},
              {"batch_ms", options.batch_ms}, {"results", json::array()}};
  if (rank == 0) {
    std::printf("# %s, %s %s, %s, %d ranks (%s), %zu rounds\n", options.collective.c_str(),
                options.type.c_str(), options.op.c_str(),
                options.in_place ? "in place" : "out of place", ranks, pinning.c_str(),
                options.rounds);
    print_header(contenders);
  }
  for (const CallShape& shape : shapes) {
    auto rounds = RONDO_TRY(compare_size(*mpi, contenders, shape, options));
    document["results"].push_back(to_json(contenders, rounds));
    if (rank == 0) print_row(contenders, rounds);
  }
  return {};
}

int run_under_mpi(const CompareOptions& options) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  std::unique_ptr<base::TemporaryDirectory> mine;
  if (rank == 0) {
    auto made = base::TemporaryDirectory::create("rondo-perf-");
    if (made.ok()) mine = std::make_unique<base::TemporaryDirectory>(std::move(made).value());
  }
  const std::string directory = text_of_rank_0(mine ? mine->path() : "");
  json document;
  if (mine) std::filesystem::create_directory(directory + "/gloo");
  MPI_Barrier(MPI_COMM_WORLD);
  const Status status = directory.empty()
                            ? Status(Code::kSystem, "rank 0 could not make a temporary directory")
                            : compare_all(options, directory, document);
  if (!status.ok()) {
    spdlog::error("rank {}: {}", rank, status.to_string());
    return 1;
  }
  if (rank != 0 || options.json_file.empty()) return 0;
  std::ofstream file(options.json_file);
  file << document.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
  file.close();
  if (file.fail()) spdlog::error("cannot write {}: {}", options.json_file, std::strerror(errno));
  return file.fail() ? 1 : 0;
}

int run_program(int argc, char** argv) {
  CLI::App app("Measures rondo beside MPI and Gloo in the same processes; start it with mpirun.",
               "rondo-compare");
  app.set_version_flag("--version", "rondo-compare " RONDO_VERSION);
  CompareOptions options;
  app.add_option("COLLECTIVE", options.collective, "the collective to measure")
      ->capture_default_str();
  app.add_option("-b,--minbytes", options.min, "smallest size")->capture_default_str();
  app.add_option("-e,--maxbytes", options.max, "largest size")->capture_default_str();
  app.add_option("-f,--stepfactor", options.factor, "from size to size: multiply by this")
      ->check(CLI::Range(size_t{2}, size_t{1} << 20))
      ->capture_default_str();
  app.add_option("-d,--datatype", options.type, "as for rondo-perf")->capture_default_str();
  app.add_option("-o,--op", options.op, "as for rondo-perf")->capture_default_str();
  app.add_option("--rounds", options.rounds, "batches of each library per size")
      ->check(CLI::Range(size_t{1}, size_t{1000}))
      ->capture_default_str();
  app.add_option("--batch-ms", options.batch_ms, "length of a batch")
      ->check(CLI::Range(0.1, 100.0))
      ->capture_default_str();
  app.add_flag("--in-place", options.in_place, "input and output are the same buffer");
  app.add_flag("--no-gloo", options.no_gloo, "leave Gloo out");
  app.add_option("--interface", options.interface,
                 "the ranks are on several hosts that share TMPDIR, joined by this interface");
  app.add_option("--json", options.json_file, "write every round there");
  try {
    app.parse(argc, argv);
    if (std::isnan(options.batch_ms))
      throw CLI::ValidationError("--batch-ms", "nan is not a number");
  } catch (const CLI::ParseError& error) {
    return app.exit(error, std::cout, std::cerr) == 0 ? 0 : 2;
  }
  MPI_Init(&argc, &argv);
  const int code = run_under_mpi(options);
  if (code != 0) MPI_Abort(MPI_COMM_WORLD, code);  // the others may be waiting for this rank
  MPI_Finalize();
  return code;
}

}  // namespace
}  // namespace rondo::bench

int main(int argc, char** argv) {
  spdlog::set_default_logger(spdlog::stderr_color_mt("rondo-compare"));
  return rondo::bench::run_program(argc, argv);
}
