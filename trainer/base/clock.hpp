// The clock of all measurements.
#pragma once

#include <chrono>
#include <cstdint>

namespace rondo::trainer {

/// Nanoseconds of CLOCK_MONOTONIC.
inline int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

constexpr double to_ms(int64_t ns) { return static_cast<double>(ns) / 1e6; }

}  // namespace rondo::trainer
