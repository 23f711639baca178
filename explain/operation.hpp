// One operation as requests describe it: {collective, algorithm, ranks, per_host, root, size_bytes, type}, and the links
// that it runs over. Shared by the questions about schedules and prices.
#pragma once

#include "comm/plan/plan.hpp"
#include "explain/request.hpp"

namespace rondo::explain {

/// Schedules of all ranks are made and drawn up to here.
inline constexpr int kMostRanks = 16;
/// Prices are computed up to here.
inline constexpr int kMostPricedRanks = 4096;

/// Ranks `0..ranks-1`, `per_host` to a host (the last may have fewer); null where they share one.
schedule::SharedHosts hosts_of(int ranks, int per_host);

/// The links of {profile, latency_us, bytes_per_second, pace_latency_us, pace_bytes_per_second, cores} for these ranks:
/// `profile` is a link profile's text, the built-in one by default; latency_us and bytes_per_second replace its wire
/// between hosts; pace_* are a wire between the ranks of a host, as rondo-perf --pace has it; `cores`: that a host's
/// ranks share, by default one each.
Result<tuner::LinkProfile> links_of(const PageRequest& request, int ranks, int per_host);

/// The collective's own count argument in bytes, where a rank's larger buffer has `size` bytes.
uint64_t argument_bytes(Collective collective, int ranks, uint64_t size);

/// What a host's memory, or a wire, offers to algorithms.
tuner::Available available_of(bool library_memory);

/// The whole request, as rondo-plan would have it.
Result<plan::PlanRequest> operation_of(const PageRequest& request, int most_ranks);

}  // namespace rondo::explain
