// rondo-run: starts a program as N ranks on this host. Flags and restarts; local_job does the rest.
// For several hosts use the cluster's own launcher: rondo reads the environments that those leave.
#include <sodium.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/base/flush_stdout.hpp"
#include "comm/base/limits.hpp"
#include "comm/launch/local_job.hpp"
#include "comm/launch/variables.hpp"
#include "rondo/rondo.h"

namespace {

/// A number, "cpu" (one per core) or "gpu" (one per NVIDIA device); -1: none of these.
int count_ranks(const std::string& text) {
  if (text == "cpu" || text == "auto") return static_cast<int>(std::thread::hardware_concurrency());
  if (text == "gpu") {
    int devices = 0;
    while (std::filesystem::exists("/dev/nvidia" + std::to_string(devices))) ++devices;
    return devices;
  }
  int value = -1;
  return CLI::detail::lexical_cast(text, value) ? value : -1;
}

void print_environment() {
  for (const auto& variable : rondo::comm::kEnvironment) {
    fmt::print("{:<20}  {:<20}  {}\n", variable.name, variable.value_when_absent, variable.meaning);
  }
}

int run(rondo::run::JobOptions options, int max_restarts, double timeout_s) {
  if (timeout_s > 0) {
    constexpr double kLongestS = 1e9;  // beyond, the clock would overflow
    options.deadline = std::chrono::steady_clock::now() +
                       std::chrono::ceil<std::chrono::milliseconds>(
                           std::chrono::duration<double>(std::min(timeout_s, kLongestS)));
  }
  while (true) {
    const rondo::run::JobResult result = rondo::run::run_job(options);
    if (!result.rank_failed || options.restart_count >= max_restarts) return result.exit_code;
    ++options.restart_count;
    spdlog::warn("restarting all ranks: {} of {}", options.restart_count, max_restarts);
  }
}

struct RunFlags {
  std::string ranks, bind = "none";
  int max_restarts = 0;
  double timeout_s = 0;
  bool standalone = false, no_prefix = false;
};

void add_flags(CLI::App& app, RunFlags& flags) {
  app.set_version_flag("--version", "rondo-run " RONDO_VERSION);
  app.add_option("-n,--nproc-per-node", flags.ranks,
                 "number of ranks, or cpu, or gpu: one for each")
      ->required();
  app.add_option("--max-restarts", flags.max_restarts,
                 "when a rank fails, start all again, so often")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--timeout", flags.timeout_s, "seconds for the whole job; then exit code 124")
      ->check(CLI::PositiveNumber);
  app.add_flag("--no-prefix", flags.no_prefix, "do not put the rank in front of every line");
  app.add_option(
         "--bind", flags.bind,
         "share: where there is a CPU for each, every rank keeps to its equal part of them; "
         "none: ranks run where the system puts them")
      ->check(CLI::IsMember({"share", "none"}))
      ->capture_default_str();
  app.add_flag("--standalone", flags.standalone, "accepted for torchrun's sake: always so");
  app.add_flag_callback(
      "--help-environment",
      [] {
        print_environment();
        throw CLI::Success();
      },
      "print every RONDO_ variable, its default and its meaning, and exit");
  app.prefix_command();
}

/// What to run: the words after the flags. Nothing, and a logged reason, where they are no command.
std::optional<std::vector<std::string>> command_of(const CLI::App& app) {
  std::vector<std::string> command = app.remaining();
  if (!command.empty() && command[0] == "--") {
    command.erase(command.begin());
  } else if (!command.empty() && command[0].starts_with("-")) {
    spdlog::error("unknown option {}: see --help", command[0]);
    return std::nullopt;
  }
  if (command.empty()) {
    spdlog::error("no program given: rondo-run -n N PROGRAM [ARGS...]");
    return std::nullopt;
  }
  return command;
}

}  // namespace

int main(int argc, char** argv) {
  spdlog::set_default_logger(spdlog::stderr_color_mt("rondo-run"));
  // On a terminal a line replaces the progress bar of a rank, and what Ctrl-C leaves on it.
  spdlog::set_pattern(isatty(STDERR_FILENO) == 1 ? "\r\033[Krondo-run: %v" : "rondo-run: %v");
  if (sodium_init() < 0) {
    spdlog::error("no source of random numbers");
    return 125;
  }
  CLI::App app(
      "rondo-run -n N [OPTIONS] [--] PROGRAM [ARGS...]\n"
      "Starts PROGRAM as N ranks on this host; the first one that fails stops all.\n"
      "rondo-status shows what they do; SIGUSR1 prints their flight recorders.",
      "rondo-run");
  RunFlags flags;
  add_flags(app, flags);
  try {
    app.parse(argc, argv);
    if (std::isnan(flags.timeout_s)) throw CLI::ValidationError("--timeout", "nan is no number");
  } catch (const CLI::ParseError& error) {
    if (app.exit(error) != 0) return 2;
    const rondo::Status printed = rondo::comm::flush_stdout();
    if (!printed.ok()) spdlog::error("{}", printed.message());
    return printed.ok() ? 0 : 125;
  }
  const int ranks = count_ranks(flags.ranks);
  if (ranks < 1 || ranks > rondo::base::kMaxRanks) {
    spdlog::error("-n is \"{}\": it must be from 1 to {}, or cpu, or gpu where there is one",
                  flags.ranks, rondo::base::kMaxRanks);
    return 2;
  }
  const auto command = command_of(app);
  if (!command) return 2;
  rondo::run::prepare_process();
  return run({.ranks = ranks,
              .command = *command,
              .restart_count = 0,
              .prefix_lines = !flags.no_prefix,
              .bind = flags.bind == "share",
              .deadline = {}},
             flags.max_restarts, flags.timeout_s);
}
