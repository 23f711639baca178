// See program.hpp.
#include "trainer/program.hpp"

#include <signal.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <string_view>

#include "rondo/rondo.hpp"
#include "trainer/cli/launch.hpp"
#include "trainer/cli/scaling.hpp"
#include "trainer/report/screen.hpp"

namespace rondo::trainer {
namespace {

std::atomic<bool> interrupted{false};
std::atomic<int> interrupted_by{0};  // a signal
static_assert(std::atomic<bool>::is_always_lock_free &&
              std::atomic<int>::is_always_lock_free);  // a signal handler sets them

/// Messages replace the progress bar, this program's and the library's.
void set_up_messages() {
  const auto sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
  const char* no_color = std::getenv("NO_COLOR");
  if (no_color != nullptr && *no_color != 0) sink->set_color_mode(spdlog::color_mode::never);
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("rondo-train", sink));
  const std::string clear = stderr_is_terminal() ? kClearLine : "";
  spdlog::set_pattern(clear + "rondo-train: %^%v%$");
  if (clear.empty()) return;
  set_log_callback([](LogLevel level, std::string_view message) {
    constexpr const char* kLevels[] = {"debug", "info", "warning", "error"};
    std::fprintf(stderr, "%s[rondo] [%s] %.*s\n", kClearLine, kLevels[static_cast<size_t>(level)],
                 static_cast<int>(message.size()), message.data());
  });
}

}  // namespace

const std::atomic<bool>& end_run_at_interrupt() {
  for (const int signal : {SIGINT, SIGTERM}) {
    struct sigaction before {};
    if (sigaction(signal, nullptr, &before) != 0 || before.sa_handler == SIG_IGN) continue;
    struct sigaction action {};
    action.sa_handler = [](int by) {
      interrupted_by.store(by);
      interrupted.store(true);
      ::signal(SIGINT, SIG_DFL);
    };
    action.sa_flags = SA_RESTART;
    sigaction(signal, &action, nullptr);
  }
  return interrupted;
}

int run_program(int argc, char** argv, const TrainRanks& train_ranks) try {
  prefer_fast_blas(argv);
  set_up_messages();
  const Parsed parsed = parse_options(argc, argv);
  if (!parsed.options) return parsed.exit_code;
  const TrainOptions& options = *parsed.options;
  bool is_left_out = false;
  const Status status = !options.scaling.empty()  ? run_scaling(options, argv)
                        : !options.lesson.empty() ? teach(options)
                                                  : train_ranks(options, is_left_out);
  if (status.ok()) return interrupted.load() ? 128 + interrupted_by.load() : EXIT_SUCCESS;
  spdlog::error("{}", status.to_string());
  // Without memory OpenBLAS's threads, which begin before main(), try for ever to get some, and
  // exit() would wait for them.
  if (status.code() == Code::kResourceExhausted) std::quick_exit(EXIT_FAILURE);
  return is_left_out ? kLeftOutExitCode : EXIT_FAILURE;
} catch (const std::bad_alloc&) {
  std::fputs("rondo-train: resource exhausted: out of memory\n", stderr);
  std::quick_exit(EXIT_FAILURE);
}

}  // namespace rondo::trainer
