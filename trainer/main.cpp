// rondo-train: the program. Sets the process up, reads options and data, meets the other ranks,
// trains.
#include <signal.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <string_view>

#include "rondo/rondo.hpp"
#include "trainer/cli/launch.hpp"
#include "trainer/cli/options.hpp"
#include "trainer/cli/scaling.hpp"
#include "trainer/layers/host/matmul.hpp"
#include "trainer/report/report.hpp"
#include "trainer/report/screen.hpp"
#include "trainer/step/setup.hpp"
#include "trainer/train.hpp"

namespace {

using namespace rondo;           // NOLINT: this file is the program
using namespace rondo::trainer;  // NOLINT

std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);  // a signal handler sets it
constexpr int kInterruptedExit = 128 + SIGINT;

/// The first Ctrl-C ends the run after a step, the second the program. Not where a parent ignores
/// it, as for commands in a shell script's background.
void end_run_at_interrupt() {
  struct sigaction before {};
  if (sigaction(SIGINT, nullptr, &before) != 0 || before.sa_handler == SIG_IGN) return;
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted.store(true); };
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  sigaction(SIGINT, &action, nullptr);
}

/// Messages replace the progress bar, this program's and the library's.
void set_up_messages() {
  const auto sink = std::make_shared<spdlog::sinks::stderr_color_sink_st>();
  const char* no_color = std::getenv("NO_COLOR");
  if (no_color != nullptr && *no_color != 0) sink->set_color_mode(spdlog::color_mode::never);
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("rondo-train", sink));
  const std::string clear = stderr_is_terminal() ? kClearLine : "";
  spdlog::set_pattern(clear + "rondo-train: %^%v%$");
  if (clear.empty()) return;
  set_log_callback([](LogLevel level, std::string_view message) {
    constexpr const char* kNames[] = {"debug", "info", "warning", "error"};
    std::fprintf(stderr, "%s[rondo] [%s] %.*s\n", kClearLine, kNames[static_cast<size_t>(level)],
                 static_cast<int>(message.size()), message.data());
  });
}

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

Status run(const TrainOptions& options, char** argv, bool& is_left_out) {
  if (!options.scaling.empty()) return run_scaling(options, argv);
  if (!options.lesson.empty()) return teach(options);
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
  Result<Surroundings> made = prepare(options, rank);
  if (!made.ok() && rank == 0) (void)write_failure(options, made.status().to_string());
  RONDO_TRY(made.status());
  end_run_at_interrupt();
  return train(options, *made->data, made->validation.get(), made->communicator, interrupted,
               &is_left_out);
}

}  // namespace

int main(int argc, char** argv) try {
  prefer_fast_blas(argv);
  set_up_messages();
  const Parsed parsed = parse_options(argc, argv);
  if (!parsed.options) return parsed.exit_code;
  bool is_left_out = false;
  const Status status = run(*parsed.options, argv, is_left_out);
  if (status.ok()) return interrupted.load() ? kInterruptedExit : EXIT_SUCCESS;
  spdlog::error("{}", status.to_string());
  return is_left_out ? kLeftOutExitCode : EXIT_FAILURE;
} catch (const std::bad_alloc&) {
  std::fputs("rondo-train: resource exhausted: out of memory\n", stderr);
  return EXIT_FAILURE;
}
