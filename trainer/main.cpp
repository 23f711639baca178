// rondo-train: the program. Starts its ranks as processes, or is one: reads the data, meets the other
// ranks, trains.
#include <fmt/format.h>

#include <memory>
#include <optional>

#include "comm/base/flush_stdout.hpp"
#include "rondo/rondo.hpp"
#include "trainer/base/device.hpp"
#include "trainer/cli/launch.hpp"
#include "trainer/cli/options.hpp"
#include "trainer/layers/host/matmul.hpp"
#include "trainer/program.hpp"
#include "trainer/report/report.hpp"
#include "trainer/step/device_strategy.hpp"
#include "trainer/step/setup.hpp"
#include "trainer/train.hpp"

namespace {

using namespace rondo;           // NOLINT: this file is the program
using namespace rondo::trainer;  // NOLINT

/// What a run needs of the world: its data, and the other ranks.
struct Surroundings {
  std::unique_ptr<Dataset> data, validation;
  Communicator communicator;
  std::optional<RankDevice> device;
};

/// The rank's GPU, with a communicator of all ranks' GPUs beside the one of the hosts.
Result<RankDevice> prepare_device(const TrainOptions& options, const Config& config,
                                  int local_rank) {
  return make_rank_device(config, options.device_of(local_rank, RONDO_TRY(Device::count())));
}

/// A communicator goes by another one where the one that is asked for cannot be.
Status require_algorithm(const Communicator& communicator, Algorithm algorithm) {
  constexpr size_t kSome = 1 << 16;
  const Algorithm chosen =
      communicator.plan(Collective::kAllReduce, kSome, DataType::kFloat32).algorithm;
  if (algorithm == Algorithm::kAuto || communicator.size() == 1 || chosen == algorithm) return {};
  return {Code::kUnavailable, fmt::format("--algorithm {} is not possible for {} ranks placed like "
                                          "these, or with these flags: leave it out",
                                          name(algorithm), communicator.size())};
}

Result<Surroundings> prepare(const TrainOptions& options, uint64_t rank, int local_rank) {
  // The data before the communicator: a rank that cannot read its data reports that itself.
  std::unique_ptr<Dataset> data = RONDO_TRY(open_data(options, options.data, rank));
  std::unique_ptr<Dataset> validation;
  if (!options.validation.empty()) {
    validation = RONDO_TRY(open_data(options, options.validation, rank));
  }
  RONDO_TRY(set_matmul_threads(options.compute_threads));
  Config config;
  config.pace = options.pace;
  config.reproducible = options.reproducible;
  config.algorithm = internal::parse<Algorithm>(options.algorithm, kAlgorithmNames).value();
  Communicator communicator = RONDO_TRY(Communicator::create(config));
  RONDO_TRY(require_algorithm(communicator, config.algorithm));
  std::optional<RankDevice> device;
  if (options.on_gpu()) {
    Result<RankDevice> made = prepare_device(options, config, local_rank);
    if (!made.ok()) communicator.abort(made.status().message());  // the others may have one
    device = RONDO_TRY(std::move(made));
    RONDO_TRY(require_algorithm(device->communicator, config.algorithm));
  }
  return Surroundings{.data = std::move(data),
                      .validation = std::move(validation),
                      .communicator = std::move(communicator),
                      .device = std::move(device)};
}

Status train_or_launch(const TrainOptions& options, char** argv, bool& is_left_out) {
  if (RONDO_TRY(must_launch(options))) {
    // Here already: rank 0 may be stopped before its first line, where another rank fails at once.
    RONDO_TRY(write_failure(options, kStopped));
    return launch(options, argv);
  }

  const std::optional<Place> place = RONDO_TRY(place_from_launcher());
  const auto rank = static_cast<uint64_t>(place ? place->rank : 0);
  // Now, so that a bad path is known before the work, and because the first rank that fails has the
  // launcher stop this one, perhaps before it can say why.
  if (rank == 0) {
    RONDO_TRY(write_failure(options, kStopped));
  }
  Result<Surroundings> made = prepare(options, rank, place ? place->local_rank : 0);
  if (!made.ok() && rank == 0) (void)write_failure(options, made.status().to_string());
  RONDO_TRY(made.status());
  return train(options, *made->data, made->validation.get(), made->communicator,
               end_run_at_interrupt(), &is_left_out, made->device ? &*made->device : nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  rondo::comm::open_standard_streams();
  return run_program(argc, argv, [argv](const TrainOptions& options, bool& is_left_out) {
    return train_or_launch(options, argv, is_left_out);
  });
}
