// The terms, one function per collective. p ranks; n: bytes of all chunks together; q = (p-1)/p.
#include "comm/tuner/cost.hpp"

#include <algorithm>
#include <limits>

#include "comm/schedule/schedule.hpp"

namespace rondo::tuner {
namespace {

Terms all_reduce(Algorithm algorithm, double p, double n) {
  const double q = (p - 1) / p;
  switch (algorithm) {
    case Algorithm::kRing:
      return {.hops = 2 * (p - 1),
              .slot_bytes = 4 * q * n,
              .memory_bytes = 2 * n,
              .reduced_bytes = q * n};
    case Algorithm::kOneShot:
      return {.hops = 1,
              .peers = p - 2,
              .slot_bytes = p * n,
              .memory_bytes = 3 * n,
              .reduced_bytes = (p - 1) * n};
    case Algorithm::kTwoShot:
      return {.hops = 2,
              .peers = 2 * (p - 2),
              .slot_bytes = 4 * q * n,
              .memory_bytes = 2 * n,
              .reduced_bytes = q * n};
    case Algorithm::kOneShotDirect:
      return {.hops = 2,
              .peers = 2 * (p - 2),
              .memory_bytes = (p + 1) * n,
              .reduced_bytes = (p - 1) * n};
    case Algorithm::kTwoShotDirect:
      return {.hops = 2, .peers = 2 * (p - 2), .memory_bytes = 2 * n, .reduced_bytes = q * n};
    default:
      return {};
  }
}

Terms reduce_scatter(Algorithm algorithm, double p, double n) {
  const double q = (p - 1) / p;
  Terms t{.slot_bytes = 2 * q * n, .memory_bytes = n + n / p, .reduced_bytes = q * n};
  if (algorithm == Algorithm::kRing) t.hops = p - 1;
  if (algorithm == Algorithm::kTwoShot) t.hops = 1, t.peers = p - 2;
  if (algorithm == Algorithm::kTwoShotDirect) t.hops = 2, t.peers = 2 * (p - 2), t.slot_bytes = 0;
  return t;
}

Terms all_gather(Algorithm algorithm, double p, double n) {
  const double q = (p - 1) / p;
  Terms t{.slot_bytes = 2 * q * n, .memory_bytes = n + n / p};
  if (algorithm == Algorithm::kRing) t.hops = p - 1;
  if (algorithm == Algorithm::kOneShot) t.hops = 1, t.peers = p - 2, t.slot_bytes = n;
  if (algorithm == Algorithm::kTwoShot) t.hops = 1, t.peers = p - 2;
  if (algorithm == Algorithm::kTwoShotDirect) t.hops = 2, t.peers = 2 * (p - 2), t.slot_bytes = 0;
  return t;
}

/// The slowest rank is the last of the chain, or any that is not the root.
Terms broadcast(Algorithm algorithm, double p, double n, double slot) {
  Terms t{.hops = 1, .slot_bytes = 2 * n, .memory_bytes = 2 * n};
  // A chain: the last rank begins when one slot has come through all ranks between.
  if (algorithm == Algorithm::kRing)
    t.hops = p - 1, t.slot_bytes += 2 * (p - 2) * std::min(n, slot);
  if (algorithm == Algorithm::kOneShotDirect) t.hops = 2, t.peers = p - 2, t.slot_bytes = 0;
  return t;
}

Terms barrier(Algorithm algorithm, double p) {
  Terms t = all_reduce(algorithm, p, 1);
  if (algorithm == Algorithm::kFlat) t = {.hops = 1, .peers = p - 2};
  if (algorithm == Algorithm::kTwoShot)
    t.hops = 1;  // exchanges once, and so serves and polls every peer
  return t;
}

/// The price of a byte of buffers: between cached and uncached by the part of them that does not
/// fit the cache.
/// Half of the cache: slots and everybody else's data want the rest, and replacement is not exact;
/// the measured bend is there.
double memory_us_per_byte(double buffers, const LinkProfile& profile) {
  const double llc = static_cast<double>(profile.llc_bytes) / 2;
  const double beyond = buffers > llc ? 1 - llc / buffers : 0;
  return profile.memory_cached_us_per_byte +
         beyond * (profile.memory_us_per_byte - profile.memory_cached_us_per_byte);
}

}  // namespace

Terms terms_of(Collective collective, Algorithm algorithm, int ranks, uint64_t bytes,
               const LinkProfile& profile) {
  const double p = ranks, n = static_cast<double>(bytes);
  if (!schedule::has(collective, algorithm)) return {};
  if (ranks == 1)
    return collective == Collective::kBarrier ? Terms{} : Terms{.memory_bytes = 2 * n};
  switch (collective) {
    case Collective::kAllReduce:
      return all_reduce(algorithm, p, n);
    case Collective::kReduceScatter:
      return reduce_scatter(algorithm, p, p * n);
    case Collective::kAllGather:
      return all_gather(algorithm, p, p * n);
    case Collective::kBroadcast:
      return broadcast(algorithm, p, n, static_cast<double>(profile.slot_bytes));
    case Collective::kBarrier:
      return barrier(algorithm, p);
  }
  return {};
}

double predict_us(Collective collective, Algorithm algorithm, int ranks, uint64_t bytes,
                  const LinkProfile& profile) {
  if (!schedule::has(collective, algorithm)) return std::numeric_limits<double>::infinity();
  const Terms t = terms_of(collective, algorithm, ranks, bytes, profile);
  const double p = ranks, n = static_cast<double>(bytes);
  const bool wide_in = collective == Collective::kReduceScatter;
  const bool wide_out = collective == Collective::kAllGather;
  const double buffers = p * n * ((wide_in ? p : 1) + (wide_out ? p : 1));
  const double turns = profile.parallel_ranks > 0 ? std::max(1.0, p / profile.parallel_ranks) : 1.0;
  return profile.overhead_us + turns * (t.hops * profile.alpha_us + t.peers * profile.peer_us +
                                        t.slot_bytes * profile.slot_us_per_byte +
                                        t.memory_bytes * memory_us_per_byte(buffers, profile) +
                                        t.reduced_bytes * profile.reduce_us_per_byte);
}

}  // namespace rondo::tuner
