// See cost.hpp.
//
// Ranks choose alike only if every rank computes the same doubles, whatever its processor and its C
// library. IEEE 754 rounds + - * / and sqrt exactly, and the compiler fuses nothing
// (-ffp-contract=off), so those are alike everywhere. log, pow and the like may differ in the last
// bit from one libm to another: no prediction may call them.
#include "comm/tuner/cost.hpp"

#include <algorithm>
#include <cmath>

#include "comm/algorithms/algorithm.hpp"

namespace rondo::tuner {
namespace {

/// The part of the operation's buffers beyond half of the cache, whose bytes cost
/// memory_us_per_byte. Half: slots and the other ranks' data use the rest, and replacement is not
/// exact; the measured bend is there.
double uncached_part(double buffers, const LinkProfile& profile) {
  const double llc = static_cast<double>(profile.llc_bytes) / 2;
  return buffers > llc ? 1 - llc / buffers : 0;
}

/// The factor at `bytes`, interpolated over the logarithm of the size: bisects it by square roots.
/// The interval left after kHalvings is a straight line to 12 digits.
double interpolate(const std::vector<Correction::Point>& points, uint64_t bytes) {
  constexpr int kHalvings = 20;
  const auto above = std::find_if(points.begin(), points.end(),
                                  [&](const Correction::Point& p) { return p.bytes >= bytes; });
  if (above == points.end()) return points.back().factor;
  if (above == points.begin() || above->bytes == bytes) return above->factor;
  const auto below = above - 1;
  const auto n = static_cast<double>(bytes);
  double from = std::max(static_cast<double>(below->bytes), 1.0), from_factor = below->factor;
  auto to = static_cast<double>(above->bytes);
  double to_factor = above->factor;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = std::sqrt(from * to), factor = std::sqrt(from_factor * to_factor);
    (n < middle ? to : from) = middle;
    (n < middle ? to_factor : from_factor) = factor;
  }
  return from_factor + (to_factor - from_factor) * (n - from) / (to - from);
}

bool is_on_one_host(const Question& q) { return q.hosts == nullptr || q.hosts->hosts() <= 1; }

bool were_measured(const base::HostMap& measured, const Question& q) {
  if (is_on_one_host(q)) return measured.hosts() == 1 && measured.ranks() == q.ranks;
  return measured == *q.hosts;
}

double correction_of(const Question& q, const LinkProfile& profile) {
  const bool mapped = q.mapped && is_on_one_host(q);
  for (const Corrections& corrections : profile.corrections) {
    if (!were_measured(corrections.hosts, q)) continue;
    for (const Correction& c : corrections.tables) {
      if (c.collective == q.collective && c.algorithm == q.algorithm && c.mapped == mapped &&
          !c.points.empty()) {
        return interpolate(c.points, q.bytes);
      }
    }
  }
  return 1;
}

struct Latency {
  double alpha_us, peer_us;
};

/// The profile's, or on GPUs that of the way in which this operation goes there.
Latency latency_of(const Question& q, const LinkProfile& profile) {
  const Latency usual = {profile.alpha_us, profile.peer_us};
  const auto& device = profile.on_device;
  if (!device) return usual;
  const bool small = q.bytes <= device->ll_bytes;
  if (small && algorithms::may_go_by_ll(q.collective, q.algorithm)) return usual;
  if (algorithms::traits_of(q.algorithm).needs.references) {
    return {device->direct_alpha_us, device->direct_peer_us};
  }
  return {device->staged_alpha_us, device->staged_peer_us};
}

/// Bytes that leave the busiest rank when ranks access each other's buffers in place.
double direct_bytes(const Question& q) {
  const algorithms::CollectiveTraits* traits = algorithms::find(q.collective, q.algorithm);
  if (!algorithms::traits_of(q.algorithm).needs.references || traits->volume == nullptr) return 0;
  const auto ranks = static_cast<uint64_t>(q.ranks);
  const algorithms::Volume volume = traits->volume({.n = ranks, .node = 1});  // not the root
  const internal::Form form = internal::form_of(q.collective);
  const bool has_blocks = form.in == internal::Holds::kEach || form.out == internal::Holds::kEach;
  const auto all = static_cast<double>(q.bytes * (has_blocks ? ranks : 1));
  // From a root every other rank fetches as much.
  const double readers = traits->in == algorithms::Touched::kOnRoot ? q.ranks - 1 : 1;
  return volume.sent.bytes(all, ranks) + readers * volume.fetched.bytes(all, ranks);
}

double most_on_a_host(const Question& q) {
  if (is_on_one_host(q)) return q.ranks;
  size_t most = 0;
  for (int h = 0; h < q.hosts->hosts(); ++h) most = std::max(most, q.hosts->ranks_on(h).size());
  return static_cast<double>(most);
}

}  // namespace

algorithms::Terms terms_of(const Question& q, const LinkProfile& profile) {
  const algorithms::CollectiveTraits* traits = algorithms::find(q.collective, q.algorithm);
  if (traits == nullptr) return {};
  const bool barrier = q.collective == Collective::kBarrier;
  const auto n = static_cast<double>(q.bytes);
  if (q.ranks == 1) return {.memory_bytes = barrier ? 0 : 2 * n};
  const bool one_host = is_on_one_host(q);
  if (one_host && algorithms::traits_of(q.algorithm).needs.hosts) return {};
  // As profile_of() gives them to ranks on several hosts.
  const size_t slot_bytes =
      one_host ? profile.slot_bytes : std::max(profile.slot_bytes, profile.wire_slot_bytes);
  const algorithms::Load load{
      .p = static_cast<double>(q.ranks),
      .n = barrier ? 1 : n,
      .slot = static_cast<double>(slot_bytes),
      .on = one_host ? algorithms::HostSpread{} : algorithms::spread_of(*q.hosts)};
  algorithms::Terms terms = traits->terms(load);
  if (!one_host && traits->wire != nullptr) terms.wire = traits->wire(load);
  return terms;
}

std::array<double, kConstantCount> weights_of(const Question& question,
                                              const LinkProfile& profile) {
  if (algorithms::find(question.collective, question.algorithm) == nullptr) return {};
  algorithms::Terms t = terms_of(question, profile);
  if (question.mapped) t.process_copies = t.process_copied_bytes = 0;
  const double p = question.ranks, n = static_cast<double>(question.bytes);
  const double sharing = most_on_a_host(question);  // a cache, and cores
  const internal::Form form = internal::form_of(question.collective);
  const double buffers =
      sharing * n *
      ((form.in == internal::Holds::kEach ? p : 1) + (form.out == internal::Holds::kEach ? p : 1));
  const double turns =
      profile.parallel_ranks > 0 ? std::max(1.0, sharing / profile.parallel_ranks) : 1.0;
  const double uncached = uncached_part(buffers, profile);
  return {1,
          turns * t.hops,
          turns * t.peers,
          turns * t.slot_bytes,
          turns * t.one_way_bytes,
          turns * t.memory_bytes * (1 - uncached),
          turns * t.memory_bytes * uncached,
          turns * t.reduced_bytes,
          turns * t.process_copies,
          turns * t.process_copied_bytes,
          t.wire.hops,
          turns * t.wire.messages,
          t.wire.bytes + t.wire.fill_bytes,
          t.wire.both_bytes + t.wire.fill_bytes};
}

Price price(const Question& question, const LinkProfile& profile) {
  std::array<double, kConstantCount> us = weights_of(question, profile);
  const Latency latency = latency_of(question, profile);
  us[1] *= latency.alpha_us;
  us[2] *= latency.peer_us;
  for (size_t c = 0; c < kConstantCount; ++c) {
    if (c != 1 && c != 2) us[c] *= profile.*kConstants[c].value;
  }
  const double paced_us =
      profile.pace_us_per_byte == 0 ? 0 : profile.pace_us_per_byte * direct_bytes(question);
  return {.overhead_us = us[0],
          .latency_us = us[1] + us[2],
          .slots_us = us[3] + us[4],
          .memory_us = us[5] + us[6],
          .reduce_us = us[7],
          .process_copy_us = us[8] + us[9],
          .wire_us = us[10] + us[11] + us[12] + us[13] + paced_us,
          .correction = correction_of(question, profile)};
}

}  // namespace rondo::tuner
