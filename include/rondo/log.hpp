// rondo's own messages: by default to stderr, from level `warn` up
// (RONDO_LOG=debug|info|warn|error|off). Also a callback during waits, and the version.
#pragma once

#include <functional>
#include <string_view>

#pragma GCC visibility push(default)
namespace rondo {

enum class LogLevel { kDebug = 0, kInfo = 1, kWarn = 2, kError = 3, kOff = 4 };

/// Redirects rondo's messages; an empty function restores stderr. The callback may run on any
/// thread that runs rondo's code, one call at a time, and must neither call rondo nor fork.
/// Thread-safe.
void set_log_callback(std::function<void(LogLevel, std::string_view)> callback);
void set_log_level(LogLevel level);
/// Whether messages of that level are shown: for those that cost something to make. Thread-safe.
bool shows_log_level(LogLevel level);

/// Logs a message of the caller's to the same place, subject to the same level. Thread-safe.
void log(LogLevel level, std::string_view message);

/// While a call of the calling thread blocks, rondo calls `callback(context)` about every 50 ms from
/// that thread, so that a program can look after other things, such as its signals. nullptr ends
/// that. The callback must not throw. It may call abort() of the communicator whose call blocks, and
/// anything of other communicators.
void set_wait_callback(void (*callback)(void* context), void* context = nullptr);

/// Whether this process's stderr is a terminal, directly or through rondo-run. If so, a program may
/// draw a progress bar there, in lines that end in a carriage return.
bool stderr_is_terminal();

/// The same for stdout. If so, a program may color it (unless NO_COLOR is set, see no-color.org).
bool stdout_is_terminal();

/// The version of the loaded library, "0.2.0"; RONDO_VERSION (rondo.h) is the headers'.
std::string_view version();

}  // namespace rondo
#pragma GCC visibility pop
