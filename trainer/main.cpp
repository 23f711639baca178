// rondo-train: the program. Sets the process up, reads options and data, meets the other ranks,
// trains.
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>

#include "rondo/rondo.hpp"
#include "trainer/launch.hpp"
#include "trainer/layers/matmul.hpp"
#include "trainer/options.hpp"
#include "trainer/scaling.hpp"
#include "trainer/setup.hpp"
#include "trainer/teach.hpp"
#include "trainer/train.hpp"

namespace {

using namespace rondo;           // NOLINT: this file is the program
using namespace rondo::trainer;  // NOLINT

Status run(const Options& options, char** argv) {
  if (!options.scaling.empty()) return run_scaling(options, argv);
  if (!options.lesson.empty()) return teach(options.lesson);
  const Result<bool> launch_first = must_launch(options);
  RONDO_RETURN_IF_ERROR(launch_first.status());
  if (launch_first.value()) return launch(options.ranks, argv);

  // The data before the meeting: a rank that cannot read its data says so itself.
  const Result<std::optional<Place>> place = place_from_launcher();
  RONDO_RETURN_IF_ERROR(place.status());
  const auto rank = static_cast<uint64_t>(place.value() ? place.value()->rank : 0);
  const Result<std::unique_ptr<Dataset>> data = open_data(options, options.data, rank);
  RONDO_RETURN_IF_ERROR(data.status());
  std::unique_ptr<Dataset> validation;
  if (!options.validation.empty()) {
    Result<std::unique_ptr<Dataset>> opened = open_data(options, options.validation, rank);
    RONDO_RETURN_IF_ERROR(opened.status());
    validation = std::move(opened).value();
  }

  set_matmul_threads(options.threads);
  Config config;
  config.pace = options.pace;
  config.reproducible = options.reproducible;
  Result<Communicator> communicator = Communicator::create(config);
  RONDO_RETURN_IF_ERROR(communicator.status());
  return train(options, *data.value(), validation.get(), communicator.value());
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
