// rondo-run: starts a program as N ranks on this host, or as ranks of several hosts. Flags and
// restarts; local_job and hosts_job do the rest.
#include <fcntl.h>
#include <sodium.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/base/counted.hpp"
#include "comm/base/flush_stdout.hpp"
#include "comm/base/limits.hpp"
#include "comm/base/printable.hpp"
#include "comm/bootstrap/connection/interface.hpp"
#include "comm/launch/console.hpp"
#include "comm/launch/host_list.hpp"
#include "comm/launch/hosts_job.hpp"
#include "comm/launch/job_clock.hpp"
#include "comm/launch/local_job.hpp"
#include "comm/launch/serve.hpp"
#include "comm/launch/signals.hpp"
#include "comm/launch/variables.hpp"
#include "rondo/rondo.h"
#include "transport/cuda_ipc/cuda_calls.hpp"
#include "transport/memory/unique_fd.hpp"
#include "transport/ucx/factory.hpp"

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
    fmt::print("{:<23}  {:<20}  {}\n", variable.name, variable.value_when_absent, variable.meaning);
  }
}

/// A line of `--version`: "NAME: yes (DETAIL)", or "NAME: no, REASON".
std::string ability(const char* name, const rondo::Result<std::string>& detail) {
  if (!detail.ok()) return fmt::format("\n{}: no, {}", name, detail.status().message());
  return fmt::format("\n{}: yes ({})", name, *detail);
}

rondo::Result<std::string> find_gpus() {
  const auto cuda = RONDO_TRY(rondo::transport::cuda_ipc::open_cuda());
  const int gpus = RONDO_TRY(cuda->device_count());
  if (gpus == 0) return rondo::Status(rondo::Code::kUnavailable, "there is no GPU");
  return rondo::comm::counted(gpus, "GPU");
}

/// Scripts ask here, and read the words before the comma or the parenthesis.
std::string version_and_abilities() {
  return "rondo-run " RONDO_VERSION + ability("ucx", rondo::transport::ucx::version()) +
         ability("cuda", find_gpus());
}

/// `attempt` runs the job once.
int run_attempts(
    rondo::run::JobOptions options, int max_restarts, double timeout_s,
    const std::function<rondo::run::JobResult(const rondo::run::JobOptions&)>& attempt) {
  if (timeout_s > 0) {
    options.deadline = rondo::run::JobClock::now() + std::chrono::ceil<std::chrono::milliseconds>(
                                                         std::chrono::duration<double>(timeout_s));
  }
  while (true) {
    const rondo::run::JobResult result = attempt(options);
    if (!result.rank_failed || options.restart_count >= max_restarts) return result.exit_code;
    ++options.restart_count;
    spdlog::warn("restarting all ranks: {} of {}", options.restart_count, max_restarts);
  }
}

struct RunFlags {
  std::optional<std::string> ranks, per_host;
  std::string bind = "none";
  int max_restarts = 0;
  double timeout_s = 0;
  bool standalone = false, no_prefix = false, serve = false, elastic = false;
  std::optional<std::string> hosts, hostfile;
  std::string agent, remote_program, rendezvous_host, directory;
  double lost_after_s = 60;
};

/// What a number of seconds may be: beyond, the clock would overflow. "nan" would pass CLI::Range.
std::string check_seconds(const std::string& text) {
  double seconds = 0;
  const bool fits = CLI::detail::lexical_cast(text, seconds) && seconds >= 0.001 && seconds <= 1e9;
  return fits ? "" : "'" + text + "' is not a number of seconds from 0.001 to 1e9";
}

std::string check_restarts(const std::string& text) {
  int restarts = -1;
  const bool fits = CLI::detail::lexical_cast(text, restarts) && restarts >= 0;
  return fits ? "" : "'" + text + "' is not a whole number from 0";
}

void add_host_flags(CLI::App& app, RunFlags& flags) {
  auto* hosts =
      app.add_option("--hosts", flags.hosts, "a:2,b:2: hosts, and how many ranks each has at most");
  app.add_option("--hostfile", flags.hostfile, "the same as lines: HOST, HOST:2 or HOST slots=2")
      ->excludes(hosts);
  app.add_option("--agent", flags.agent,
                 "what runs a command on a host: CMD HOST COMMAND; by default ssh, which must not "
                 "ask for a password")
      ->take_last();
  app.add_option("--remote-rondo-run", flags.remote_program,
                 "rondo-run on the hosts; by default at the same path as here, else in PATH there");
  app.add_option("--rendezvous", flags.rendezvous_host,
                 "name or address under which the others reach the first host; by default as in "
                 "--hosts");
  app.add_option("--chdir", flags.directory, "directory of the ranks; by default the current one");
  app.add_option("--lost-after", flags.lost_after_s,
                 "a host that has been silent for so many seconds is lost; 60 by default")
      ->check(check_seconds);
  app.add_flag("--serve", flags.serve)->group("");  // what rondo-run starts on a host
}

void add_flags(CLI::App& app, RunFlags& flags) {
  app.set_version_flag("--version", version_and_abilities,
                       "print the version and what this rondo can use on this machine");
  auto* total =
      app.add_option("-n,--np", flags.ranks, "number of ranks of all hosts together; also -np");
  app.add_option("--nproc-per-node", flags.per_host,
                 "number of ranks of each host that has no number of its own; cpu or gpu: one for "
                 "each CPU or GPU of this host")
      ->excludes(total);
  app.add_option("--max-restarts", flags.max_restarts,
                 "when a rank fails, start all again, so often")
      ->check(check_restarts);
  app.add_flag(
      "--elastic", flags.elastic,
      "a rank that a signal kills, or a host that is lost, does not end the job: the other "
      "ranks go on, as rondo-train --elastic can");
  app.add_option("--timeout", flags.timeout_s, "seconds for the whole job; then exit code 124")
      ->check(check_seconds);
  app.add_flag("--no-prefix", flags.no_prefix, "do not put the rank in front of every line");
  app.add_option(
         "--bind", flags.bind,
         "share: where there is a CPU for each, every rank keeps to its equal part of them; "
         "none: ranks run where the system puts them")
      ->check(CLI::IsMember({"share", "none"}))
      ->capture_default_str();
  add_host_flags(app, flags);
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

/// Where the ranks of several hosts run: by the name under which the user came here, which other
/// hosts may know where links lead elsewhere.
std::string directory_of(const RunFlags& flags) {
  std::error_code error;
  const auto here = std::filesystem::current_path(error);
  const char* name = std::getenv("PWD");
  const bool by_name = name != nullptr && std::filesystem::equivalent(name, here, error);
  const std::filesystem::path base = by_name ? name : here;
  return (flags.directory.empty() ? base : base / flags.directory).string();
}

/// What the file holds, which may be a pipe. Nothing, and errno: it cannot be read; a folder can be
/// opened, but not read.
std::optional<std::string> read_text(const std::string& path) {
  const rondo::transport::UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return std::nullopt;
  std::string text;
  std::array<char, 4096> bytes;
  ssize_t got = 0;
  while ((got = read(fd.get(), bytes.data(), bytes.size())) > 0) {
    text.append(bytes.data(), static_cast<size_t>(got));
  }
  if (got < 0) return std::nullopt;
  return text;
}

/// Reads the value of -n or --nproc-per-node, if it is given. Returns false, and logs the reason, if it
/// is wrong.
bool read_ranks(const char* flag, const std::optional<std::string>& text,
                std::optional<int>* ranks) {
  if (!text) return true;
  *ranks = count_ranks(*text);
  if (**ranks >= 1 && **ranks <= rondo::base::kMaxRanks) return true;
  spdlog::error("{} is \"{}\": it must be from 1 to {}, or cpu, or gpu if there is one", flag,
                *text, rondo::base::kMaxRanks);
  return false;
}

/// The hosts of --hosts or --hostfile. Returns nothing, and logs the reason, if the list is wrong.
std::optional<std::vector<rondo::run::JobHost>> listed_hosts(const RunFlags& flags) {
  std::string text;
  if (flags.hostfile) {
    const auto found = read_text(*flags.hostfile);
    if (!found) {
      spdlog::error("--hostfile is \"{}\", which cannot be read: {}", *flags.hostfile,
                    std::strerror(errno));
      return std::nullopt;
    }
    text = *found;
  }
  auto hosts = flags.hosts ? rondo::run::parse_hosts(*flags.hosts)
                           : rondo::run::parse_hostfile(text, *flags.hostfile);
  if (hosts.ok()) return *hosts;
  if (flags.hosts) {
    spdlog::error("--hosts is \"{}\": {}; give HOST or HOST:RANKS, separated by commas",
                  rondo::base::printable(*flags.hosts, 1024), hosts.status().message());
  } else {
    spdlog::error("{}", hosts.status().message());
  }
  return std::nullopt;
}

/// Where the ranks run. Without a list that is this host, with an empty name. Returns nothing, and logs
/// the reason, if a flag is wrong.
std::optional<std::vector<rondo::run::JobHost>> hosts_of(const RunFlags& flags) {
  const bool here = !flags.hosts && !flags.hostfile;
  rondo::run::JobRanks ranks;
  if (here && !flags.ranks && !flags.per_host) {
    spdlog::error("-n is missing: the number of ranks; or --hosts a:2,b:2");
    return std::nullopt;
  }
  if (!read_ranks("-n", flags.ranks, &ranks.total) ||
      !read_ranks("--nproc-per-node", flags.per_host, &ranks.per_host)) {
    return std::nullopt;
  }
  auto listed =
      here ? std::vector{rondo::run::JobHost{.name = "", .without = 1}} : listed_hosts(flags);
  if (!listed) return std::nullopt;
  auto placed = rondo::run::place_ranks(std::move(*listed), ranks);
  if (placed.ok()) return *placed;
  spdlog::error("{}", placed.status().message());
  return std::nullopt;
}

/// mpirun's "-np N", which CLI11 would read as "-n p", becomes "-n N". Words of the program, which
/// begin with the first one that is no flag, stay as they are.
std::vector<std::string> accept_np(const CLI::App& app, int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  for (size_t i = 0; i < words.size() && words[i].starts_with('-') && words[i] != "--"; ++i) {
    if (words[i] == "-np") words[i] = "-n";
    const CLI::Option* const option = app.get_option_no_throw(words[i]);
    if (option != nullptr && option->get_items_expected_max() > 0) ++i;  // its value
  }
  std::reverse(words.begin(), words.end());  // as CLI::App::parse() takes them
  return words;
}

int start(const RunFlags& flags, const std::vector<rondo::run::JobHost>& hosts, int ranks,
          const std::vector<std::string>& command) {
  using namespace rondo::run;
  if (ranks > rondo::base::kMaxRanks) {
    spdlog::error("the number of ranks of all hosts is \"{}\": it must be from 1 to {}", ranks,
                  rondo::base::kMaxRanks);
    return 2;
  }
  const JobOptions job{.ranks = ranks,
                       .command = command,
                       .restart_count = 0,
                       .bind = flags.bind == "share",
                       .elastic = flags.elastic,
                       .stdout_is_terminal = isatty(STDOUT_FILENO) == 1,
                       .stderr_is_terminal = isatty(STDERR_FILENO) == 1,
                       .deadline = {},
                       .part = {}};
  const bool only_this_host = std::all_of(hosts.begin(), hosts.end(), [](const auto& host) {
    return rondo::comm::is_this_host(host.name);
  });
  const HostsOptions where{
      .hosts = hosts,
      .agent = {.words = flags.agent.empty() ? default_agent() : CLI::detail::split_up(flags.agent),
                .remote_program = flags.remote_program,
                .lost_after_s = flags.lost_after_s},
      .directory = directory_of(flags),
      .rendezvous_host = flags.rendezvous_host,
      .only_this_host = only_this_host};
  // Until here signals end rondo-run at once: it may have waited for a pipe or for a name server.
  prepare_process();
  int output_code = 0;
  const int code = run_attempts(job, flags.max_restarts, flags.timeout_s, [&](const auto& attempt) {
    TerminalConsole console(ranks, !flags.no_prefix);
    JobResult result =
        hosts.empty() ? run_job(attempt, console) : run_on_hosts(where, attempt, console);
    const int lost = console.exit_code();
    if (lost == kPipeExit) result.rank_failed = false;  // nobody would read of another attempt
    output_code = std::max(output_code, lost);
    return result;
  });
  return code == 0 ? output_code : code;
}

}  // namespace

int main(int argc, char** argv) try {
  rondo::comm::open_standard_streams();
  spdlog::set_default_logger(spdlog::stderr_color_mt("rondo-run"));
  // On a terminal a line replaces the progress bar of a rank, and what Ctrl-C leaves on it.
  spdlog::set_pattern(isatty(STDERR_FILENO) == 1 ? "\r\033[Krondo-run: %v" : "rondo-run: %v");
  if (sodium_init() < 0) {
    spdlog::error("no source of random numbers");
    return 125;
  }
  CLI::App app(
      "rondo-run -n N [OPTIONS] [--] PROGRAM [ARGS...]\n"
      "rondo-run --hosts a:2,b:2 [OPTIONS] [--] PROGRAM [ARGS...]\n"
      "Starts PROGRAM as ranks on this host or several; the first one that fails stops all.\n"
      "rondo-status shows what they do. SIGUSR1, SIGUSR2, SIGWINCH, SIGTSTP and SIGCONT are "
      "passed to the ranks. SIGINT, SIGTERM and most other signals end the job.",
      "rondo-run");
  RunFlags flags;
  add_flags(app, flags);
  try {
    app.parse(accept_np(app, argc, argv));
  } catch (const CLI::ParseError& error) {
    if (app.exit(error) != 0) return 2;
    const rondo::Status printed = rondo::comm::flush_stdout();
    if (!printed.ok()) spdlog::error("{}", printed.message());
    return printed.ok() ? 0 : 125;
  }
  if (flags.serve) {
    rondo::run::prepare_process();
    return rondo::run::serve();
  }
  // An unknown flag ends the flags, so what comes after it is missing: the command comes first.
  const auto command = command_of(app);
  if (!command) return 2;
  auto hosts = hosts_of(flags);
  if (!hosts) return 2;
  int ranks = 0;
  for (const rondo::run::JobHost& host : *hosts) ranks += host.ranks;
  if (!flags.hosts && !flags.hostfile) hosts->clear();
  if (!flags.directory.empty() && hosts->empty() && chdir(flags.directory.c_str()) != 0) {
    spdlog::error("--chdir is \"{}\": {}", flags.directory, std::strerror(errno));
    return 2;
  }
  return start(flags, *hosts, ranks, *command);
} catch (const std::exception& error) {  // what has been started has ended
  spdlog::error("{}", error.what());
  return rondo::run::kLauncherExit;
}
