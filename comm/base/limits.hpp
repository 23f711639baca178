// The limits that several parts of comm check.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace rondo::base {

/// Ranks of a communicator, and of a job of rondo-run.
inline constexpr int kMaxRanks = 1024;
/// Ranks of a schedule, which rondo-plan builds and prices without running it.
inline constexpr int kMaxScheduleRanks = 65536;
inline constexpr int kMaxChannels = 64;
inline constexpr uint32_t kMaxSlots = 1024;
inline constexpr size_t kMaxSlotBytes = size_t{64} << 20;
/// Ten years: longer timeouts are cut to this, so that sums with the time of day do not overflow.
inline constexpr std::chrono::milliseconds kLongestTimeout = std::chrono::hours(24 * 3650);

}  // namespace rondo::base
