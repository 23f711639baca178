// rondo-train: the program. Sets the process up, reads options and data, meets the other ranks,
// trains.
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <memory>

#include "rondo/rondo.hpp"
#include "trainer/cli/launch.hpp"
#include "trainer/cli/options.hpp"
#include "trainer/cli/scaling.hpp"
#include "trainer/layers/host/matmul.hpp"
#include "trainer/report/report.hpp"
#include "trainer/step/setup.hpp"
#include "trainer/step/train.hpp"

namespace {

using namespace rondo;           // NOLINT: this file is the program
using namespace rondo::trainer;  // NOLINT

/// What a run needs of the world: its data, and the other ranks.
struct Surroundings {
  std::unique_ptr<Dataset> data, validation;
  Communicator communicator;
};

Result<Surroundings> prepare(const TrainOptions& options, uint64_t rank) {
  // The data before the communicator: a rank that cannot read its data reports that itself.
  std::unique_ptr<Dataset> data = RONDO_TRY(open_data(options, options.data, rank));
  std::unique_ptr<Dataset> validation;
  if (!options.validation.empty()) {
    validation = RONDO_TRY(open_data(options, options.validation, rank));
  }
  RONDO_TRY(set_matmul_threads(options.threads));
  Config config;
  config.pace = options.pace;
  config.reproducible = options.reproducible;
  config.algorithm = parse<Algorithm>(options.algorithm, kAlgorithmNames).value();
  Communicator communicator = RONDO_TRY(Communicator::create(config));
  return Surroundings{.data = std::move(data),
                      .validation = std::move(validation),
                      .communicator = std::move(communicator)};
}

Status run(const TrainOptions& options, char** argv) {
  if (!options.scaling.empty()) return run_scaling(options, argv);
  if (!options.lesson.empty()) return teach(options);
  if (RONDO_TRY(must_launch(options))) {
    // Here already: rank 0 may be stopped before its first line, where another rank fails at once.
    RONDO_TRY(write_failure(options, kStopped));
    return launch(options.ranks, argv);
  }

  const std::optional<Place> place = RONDO_TRY(place_from_launcher());
  const auto rank = static_cast<uint64_t>(place ? place->rank : 0);
  // Now, so that a bad path is known before the work, and because the first rank that fails has the
  // launcher stop this one, perhaps before it can say why.
  if (rank == 0) {
    RONDO_TRY(write_failure(options, kStopped));
  }
  Result<Surroundings> made = prepare(options, rank);
  if (!made.ok() && rank == 0) (void)write_failure(options, made.status().to_string());
  RONDO_TRY(made.status());
  return train(options, *made->data, made->validation.get(), made->communicator);
}

}  // namespace

int main(int argc, char** argv) {
  prefer_fast_blas(argv);
  spdlog::set_default_logger(spdlog::stderr_color_st("rondo-train"));
  spdlog::set_pattern("rondo-train: %^%v%$");
  const Parsed parsed = parse_options(argc, argv);
  if (!parsed.options) return parsed.exit_code;
  const Status status = run(*parsed.options, argv);
  if (status.ok()) return EXIT_SUCCESS;
  spdlog::error("{}", status.to_string());
  return EXIT_FAILURE;
}
