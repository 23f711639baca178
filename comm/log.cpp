// See rondo/log.hpp. A logger of its own: an embedded library must not use the application's.
#include "rondo/log.hpp"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string>

#include "comm/base/hold_across_fork.hpp"
#include "comm/base/variables.hpp"
#include "rondo/rondo.h"

namespace rondo {

namespace {

std::optional<LogLevel> level_from_environment() {
  const std::string value = comm::variable("RONDO_LOG").value_or("warn");
  if (value == "debug") return LogLevel::kDebug;
  if (value == "info") return LogLevel::kInfo;
  if (value == "error") return LogLevel::kError;
  if (value == "off") return LogLevel::kOff;
  if (value == "warn") return LogLevel::kWarn;
  return std::nullopt;
}

std::mutex log_mutex;  // of the callback and the sink

struct Logger {
  std::atomic<LogLevel> level{LogLevel::kWarn};
  std::function<void(LogLevel, std::string_view)> callback;  // guarded by log_mutex
  spdlog::logger sink{"rondo", std::make_shared<spdlog::sinks::stderr_sink_mt>()};

  Logger() {
    base::hold_across_fork<log_mutex>();
    sink.set_pattern("[%n] [%l] %v");
    sink.set_level(spdlog::level::trace);
    if (const auto wanted = level_from_environment()) {
      level.store(*wanted);
    } else {
      sink.warn("RONDO_LOG is '{}': it must be debug, info, warn, error or off; using warn",
                std::getenv("RONDO_LOG"));
    }
  }
};

Logger& logger() {
  static auto* instance = new Logger;  // never destroyed: a static communicator may outlive it
  return *instance;
}

/// Both count debug, info, warn, error.
spdlog::level::level_enum to_spdlog(LogLevel level) {
  return static_cast<spdlog::level::level_enum>(spdlog::level::debug + static_cast<int>(level));
}

/// Directly, or as one of the pipes that rondo-run has named: "OUT,ERR", each may be missing.
bool leads_to_terminal(int fd) {
  if (isatty(fd) == 1) return true;
  const char* pipes = std::getenv("RONDO_TERMINAL");
  struct stat facts {};
  if (pipes == nullptr || fstat(fd, &facts) != 0 || !S_ISFIFO(facts.st_mode)) return false;
  const std::string named = "," + std::string(pipes) + ",";
  return named.find("," + std::to_string(facts.st_ino) + ",") != std::string::npos;
}

}  // namespace

void set_log_callback(std::function<void(LogLevel, std::string_view)> callback) {
  Logger& l = logger();
  const std::lock_guard<std::mutex> lock(log_mutex);
  l.callback = std::move(callback);
}

void set_log_level(LogLevel level) { logger().level.store(level, std::memory_order_relaxed); }

bool shows_log_level(LogLevel level) {
  return level >= logger().level.load(std::memory_order_relaxed);
}

bool stderr_is_terminal() { return leads_to_terminal(STDERR_FILENO); }
bool stdout_is_terminal() { return leads_to_terminal(STDOUT_FILENO); }

void log(LogLevel level, std::string_view message) {
  Logger& l = logger();
  if (!shows_log_level(level)) return;
  const std::lock_guard<std::mutex> lock(log_mutex);
  if (l.callback) {
    l.callback(level, message);
  } else {
    l.sink.log(to_spdlog(level), message);
  }
}

std::string_view version() { return RONDO_VERSION; }

}  // namespace rondo
