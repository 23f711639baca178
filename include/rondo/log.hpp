// Where rondo's own messages go. By default to stderr, from level `warn` up
// (RONDO_LOG=debug|info|warn|error|off). And which rondo it is that speaks.
#pragma once

#include <functional>
#include <string_view>

#pragma GCC visibility push(default)
namespace rondo {

enum class LogLevel { kDebug = 0, kInfo = 1, kWarn = 2, kError = 3, kOff = 4 };

/// Redirects rondo's messages; an empty function restores stderr. The callback may run on any
/// thread that rondo runs on, one call at a time, and must not call rondo. Thread-safe.
void set_log_callback(std::function<void(LogLevel, std::string_view)> callback);
void set_log_level(LogLevel level);

/// Says something of one's own as rondo says its messages: same level, same place. Thread-safe.
void log(LogLevel level, std::string_view message);

/// Whether what this process writes to stderr reaches a terminal, be it through rondo-run: then a
/// program may draw a progress bar there, in lines that end in a carriage return.
bool stderr_is_terminal();

/// Of the library that runs, "0.1.0"; RONDO_VERSION (rondo.h) is that of the headers.
std::string_view version();

}  // namespace rondo
#pragma GCC visibility pop
