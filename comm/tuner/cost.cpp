// The terms, one function per collective. p ranks; n: bytes of all chunks together; q = (p-1)/p.
#include "comm/tuner/cost.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "comm/schedule/schedule.hpp"

namespace rondo::tuner {
namespace {

/// How often the busiest rank of a chain, or of a binary tree, has the data in a slot, one way:
/// from its children and to its parent, or the other way round.
double passes(Algorithm algorithm, double p) {
  if (p <= 2) return 1;
  return algorithm == Algorithm::kRing || p <= 4 ? 2 : 3;
}
double children(double p) { return p <= 2 ? 1 : 2; }
/// How often more it goes one way than the other.
double one_way(Algorithm algorithm, double p) {
  if (p <= 2) return 1;
  return algorithm == Algorithm::kRing ? 0 : 4 - passes(algorithm, p);
}

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
    case Algorithm::kTree:  // an inner node
      return {.hops = 2 * std::ceil(std::log2(p)),
              .slot_bytes = 2 * passes(algorithm, p) * n,
              .memory_bytes = 2 * n,
              .reduced_bytes = children(p) * n};
    case Algorithm::kStar:  // the root
      return {.hops = 2,
              .peers = 2 * (p - 2),
              .slot_bytes = 2 * (p - 1) * n,
              .memory_bytes = 2 * n,
              .reduced_bytes = (p - 1) * n};
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
  if (algorithm == Algorithm::kTwoShotDirect) {
    t.hops = 2, t.peers = 2 * (p - 2), t.slot_bytes = 0;
    t.process_copies = p - 1, t.process_copied_bytes = q * n;
  }
  return t;
}

/// What a chain and a tree do to be pipelined: the last rank begins when one slot has come through
/// all ranks between.
void pass_on(Algorithm algorithm, double p, double n, double slot, Terms& t) {
  t.hops = algorithm == Algorithm::kRing ? p - 1 : std::ceil(std::log2(p));
  t.one_way_bytes = one_way(algorithm, p) * n;
  t.slot_bytes = passes(algorithm, p) * n + 2 * (t.hops - 1) * std::min(n, slot);
}

/// The slowest rank is the last of the chain, or any that is not the root.
Terms broadcast(Algorithm algorithm, double p, double n, double slot) {
  Terms t{.hops = 1, .slot_bytes = 2 * n, .memory_bytes = 2 * n};
  if (algorithm == Algorithm::kRing || algorithm == Algorithm::kTree)
    pass_on(algorithm, p, n, slot, t);
  if (algorithm == Algorithm::kStar) t.peers = p - 2, t.slot_bytes = t.one_way_bytes = (p - 1) * n;
  if (algorithm == Algorithm::kOneShotDirect) {
    t.hops = 2, t.peers = p - 2, t.slot_bytes = 0;
    t.process_copies = 1, t.process_copied_bytes = n;
  }
  return t;
}

/// The slowest rank is the root.
Terms reduce(Algorithm algorithm, double p, double n, double slot) {
  Terms t{.hops = 1, .memory_bytes = 2 * n, .reduced_bytes = n};
  if (algorithm == Algorithm::kRing || algorithm == Algorithm::kTree)
    pass_on(algorithm, p, n, slot, t);
  if (algorithm == Algorithm::kTree) t.reduced_bytes = children(p) * n;
  if (algorithm == Algorithm::kStar) {
    t.peers = p - 2, t.slot_bytes = t.one_way_bytes = t.reduced_bytes = (p - 1) * n;
  }
  if (algorithm == Algorithm::kTwoShotDirect) {
    t.hops = 2, t.peers = 2 * (p - 2), t.reduced_bytes = n * (p - 1) / p;
  }
  return t;
}

/// gather and scatter; n: bytes of one block. Slots: the root serves everybody. Direct: everybody
/// serves itself.
Terms star(Algorithm algorithm, double p, double n) {
  if (algorithm == Algorithm::kStar) {
    return {.hops = 1,
            .peers = p - 2,
            .slot_bytes = (p - 1) * n,
            .one_way_bytes = (p - 1) * n,
            .memory_bytes = (p + 1) * n};
  }
  return {.hops = 2,
          .peers = p - 2,
          .memory_bytes = 2 * n,
          .process_copies = 1,
          .process_copied_bytes = n};
}

/// n: bytes of one block.
Terms all_to_all(Algorithm algorithm, double p, double n) {
  if (algorithm == Algorithm::kTwoShot) {
    return {.hops = 1, .peers = p - 2, .slot_bytes = 2 * (p - 1) * n, .memory_bytes = 2 * p * n};
  }
  return {.hops = 2,
          .peers = 2 * (p - 2),
          .memory_bytes = 2 * p * n,
          .process_copies = p - 1,
          .process_copied_bytes = (p - 1) * n};
}

Terms barrier(Algorithm algorithm, double p) {
  Terms t = all_reduce(algorithm, p, 1);
  if (algorithm == Algorithm::kFlat) t = {.hops = 1, .peers = p - 2};
  // Exchanges once, and so serves and polls every peer.
  if (algorithm == Algorithm::kTwoShot) t.hops = 1;
  return t;
}

/// The part of the operation's buffers that does not fit half of the cache, whose bytes cost
/// memory_us_per_byte. Half: slots and everybody else's data want the rest, and replacement is not
/// exact; the measured bend is there.
double uncached_part(double buffers, const LinkProfile& profile) {
  const double llc = static_cast<double>(profile.llc_bytes) / 2;
  return buffers > llc ? 1 - llc / buffers : 0;
}

/// The factor at `bytes`: between the points around it, over the logarithm of the size.
double interpolate(const std::vector<Correction::Point>& points, uint64_t bytes) {
  const auto above = std::find_if(points.begin(), points.end(),
                                  [&](const Correction::Point& p) { return p.bytes >= bytes; });
  if (above == points.end()) return points.back().factor;
  if (above == points.begin() || above->bytes == bytes) return above->factor;
  const auto below = above - 1;
  const auto log = [](uint64_t b) {
    return std::log(static_cast<double>(std::max<uint64_t>(b, 1)));
  };
  const double part = (log(bytes) - log(below->bytes)) / (log(above->bytes) - log(below->bytes));
  return std::pow(below->factor, 1 - part) * std::pow(above->factor, part);
}

double correction_of(const Question& q, const LinkProfile& profile) {
  if (q.ranks != profile.corrected_ranks) return 1;
  for (const Correction& c : profile.corrections) {
    if (c.collective == q.collective && c.algorithm == q.algorithm && c.mapped == q.mapped &&
        !c.points.empty()) {
      return interpolate(c.points, q.bytes);
    }
  }
  return 1;
}

}  // namespace

Terms terms_of(Collective collective, Algorithm algorithm, int ranks, uint64_t bytes,
               const LinkProfile& profile) {
  const double p = ranks, n = static_cast<double>(bytes);
  if (!schedule::has(collective, algorithm)) return {};
  if (ranks == 1)
    return collective == Collective::kBarrier ? Terms{} : Terms{.memory_bytes = 2 * n};
  switch (base_of(collective)) {
    case Collective::kAllReduce:
      return all_reduce(algorithm, p, n);
    case Collective::kReduceScatter:
      return reduce_scatter(algorithm, p, p * n);
    case Collective::kAllGather:
      return all_gather(algorithm, p, p * n);
    case Collective::kBroadcast:
      return broadcast(algorithm, p, n, static_cast<double>(profile.slot_bytes));
    case Collective::kReduce:
      return reduce(algorithm, p, n, static_cast<double>(profile.slot_bytes));
    case Collective::kGather:
    case Collective::kScatter:
      return star(algorithm, p, n);
    case Collective::kAllToAll:
      return all_to_all(algorithm, p, n);
    default:
      return barrier(algorithm, p);
  }
}

std::array<double, kConstantCount> weights_of(const Question& question,
                                              const LinkProfile& profile) {
  if (!schedule::has(question.collective, question.algorithm)) return {};
  Terms t =
      terms_of(question.collective, question.algorithm, question.ranks, question.bytes, profile);
  if (question.mapped) t.process_copies = t.process_copied_bytes = 0;
  const double p = question.ranks, n = static_cast<double>(question.bytes);
  const Form form = form_of(question.collective);
  const double buffers =
      p * n * ((form.in == Holds::kEach ? p : 1) + (form.out == Holds::kEach ? p : 1));
  const double turns = profile.parallel_ranks > 0 ? std::max(1.0, p / profile.parallel_ranks) : 1.0;
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
          turns * t.process_copied_bytes};
}

Price price(const Question& question, const LinkProfile& profile) {
  std::array<double, kConstantCount> us = weights_of(question, profile);
  for (size_t c = 0; c < kConstantCount; ++c) us[c] *= profile.*kConstants[c].value;
  return {.overhead_us = us[0],
          .latency_us = us[1] + us[2],
          .slots_us = us[3] + us[4],
          .memory_us = us[5] + us[6],
          .reduce_us = us[7],
          .process_copy_us = us[8] + us[9],
          .correction = correction_of(question, profile)};
}

double predict_us(Collective collective, Algorithm algorithm, int ranks, uint64_t bytes,
                  const LinkProfile& profile) {
  if (!schedule::has(collective, algorithm)) return std::numeric_limits<double>::infinity();
  return price({.collective = collective,
                .algorithm = algorithm,
                .ranks = ranks,
                .bytes = bytes,
                .mapped = schedule::needs_of(algorithm).references},
               profile)
      .total_us();
}

}  // namespace rondo::tuner
