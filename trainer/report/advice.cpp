// See advice.hpp.
#include "trainer/report/advice.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "trainer/report/report.hpp"

namespace rondo::trainer {
namespace {

std::string ms(double value) { return fmt::format("{:.3g} ms", value); }
std::string percent(double share) { return fmt::format("{:.0f} %", 100 * share); }

std::string size(size_t bytes) {
  const auto b = static_cast<double>(bytes);
  if (b >= 1e6) return fmt::format("{:.3g} MB", b / 1e6);
  if (b >= 1e3) return fmt::format("{:.3g} KB", b / 1e3);
  return fmt::format("{} B", bytes);
}

/// What the buckets are when they are taken together.
struct Totals {
  size_t bytes = 0;
  double cost_ms = 0, first_ready_ms = 0;
  // Of those that are ready in the last 5 % of backward.
  size_t late_bytes = 0;
  double late_ms = 0;
  // The bucket that, if no other were before it, would end latest after backward; how much later.
  size_t stuck = 0;
  double stuck_ms = 0;
};

bool is_late(const Observed& o, const ObservedBucket& bucket) {
  return bucket.ready_ms >= 0.95 * o.backward_ms;
}

Totals totals_of(const Observed& o) {
  Totals t;
  t.first_ready_ms = o.backward_ms;
  for (size_t b = 0; b < o.buckets.size(); ++b) {
    const ObservedBucket& bucket = o.buckets[b];
    t.bytes += bucket.bytes;
    t.cost_ms += bucket.cost_ms;
    t.first_ready_ms = std::min(t.first_ready_ms, bucket.ready_ms);
    const double stuck_ms = bucket.ready_ms + bucket.cost_ms - o.backward_ms;
    if (stuck_ms > t.stuck_ms) {
      t.stuck = b;
      t.stuck_ms = stuck_ms;
    }
    if (!is_late(o, bucket)) continue;
    t.late_bytes += bucket.bytes;
    t.late_ms += bucket.cost_ms;
  }
  return t;
}

std::string tail(const Observed& o, const Totals& t) {
  const ObservedBucket& bucket = o.buckets[t.stuck];
  const std::string bucket_in_words =
      fmt::format("tail: bucket {} ({}, {})", t.stuck, bucket.members, size(bucket.bytes));
  if (is_late(o, bucket)) {
    return fmt::format("{} is ready only when backward ends: {} of the bytes cannot be hidden",
                       bucket_in_words,
                       percent(static_cast<double>(t.late_bytes) / static_cast<double>(t.bytes)));
  }
  return fmt::format(
      "{} takes {}, but is ready only {} before backward ends: a smaller "
      "--bucket-cap-mb starts earlier",
      bucket_in_words, ms(bucket.cost_ms), ms(o.backward_ms - bucket.ready_ms));
}

}  // namespace

Lateness lateness(const std::vector<std::vector<double>>& arrivals) {
  Lateness result;
  if (arrivals.size() < 2 || arrivals[0].empty()) return result;
  const size_t steps = arrivals[0].size();
  std::vector<size_t> times_last(arrivals.size());
  std::vector<size_t> last(steps);
  std::vector<double> margin(steps), spread(steps);
  for (size_t s = 0; s < steps; ++s) {
    double next = 0, first = arrivals[0][s];
    for (size_t r = 1; r < arrivals.size(); ++r) {
      if (arrivals[r][s] > arrivals[last[s]][s]) last[s] = r;
      first = std::min(first, arrivals[r][s]);
    }
    for (size_t r = 0; r < arrivals.size(); ++r) {
      if (r != last[s]) next = std::max(next, arrivals[r][s]);
    }
    margin[s] = arrivals[last[s]][s] - next;
    spread[s] = arrivals[last[s]][s] - first;
    ++times_last[last[s]];
  }
  result.rank = static_cast<size_t>(std::max_element(times_last.begin(), times_last.end()) -
                                    times_last.begin());
  result.share = static_cast<double>(times_last[result.rank]) / static_cast<double>(steps);
  for (size_t s = 0; s < steps; ++s) {
    if (last[s] != result.rank) margin[s] = 0;
  }
  result.late_ms = median(margin);
  result.spread_ms = median(spread);
  return result;
}

std::vector<double> costs_ms(const std::vector<std::vector<double>>& transfers, size_t buckets) {
  std::vector<double> costs;
  const size_t steps = transfers.empty() || buckets == 0 ? 0 : transfers[0].size() / buckets;
  for (size_t b = 0; b < buckets; ++b) {
    std::vector<double> shortest;
    for (size_t i = b * steps; i < (b + 1) * steps; ++i) {
      double least = transfers[0][i];
      for (const std::vector<double>& rank : transfers) least = std::min(least, rank[i]);
      shortest.push_back(least);
    }
    costs.push_back(median(shortest));
  }
  return costs;
}

namespace {

/// What limits the step wherever the buckets end; empty: none of it.
std::string apart_from_buckets(const Observed& o, const Totals& t) {
  if (o.ranks < 2) return "one rank: nothing is communicated";
  if (o.data_wait_ms > 0.2 * o.step_ms) {
    return fmt::format("data-bound: {} of a step of {} wait for samples", ms(o.data_wait_ms),
                       ms(o.step_ms));
  }
  if (o.overlap && o.slowed_ms > 0.05 * o.step_ms && o.slowed_ms > o.exposed_ms) {
    const std::string slowed = fmt::format("by {} a step, from {} to {}", ms(o.slowed_ms),
                                           ms(o.compute_ms), ms(o.compute_ms + o.slowed_ms));
    if (o.slowed_ms < t.cost_ms) {
      return fmt::format(
          "contention: communication slows computing {}: they share cores or memory bandwidth",
          slowed);
    }
    return fmt::format(
        "contention: computing is slower while communication runs {}: communication or another "
        "program shares the cores",
        slowed);
  }
  if (o.exposed_ms < 0.05 * o.step_ms) {
    return fmt::format("compute-bound: communication delays a step of {} by {}, {}", ms(o.step_ms),
                       ms(o.exposed_ms),
                       !o.hidden_fraction           ? "the step hardly waits for it"
                       : *o.hidden_fraction >= 0.95 ? "everything is hidden"
                                                    : "too little to matter");
  }
  if (o.lateness.share >= 0.7 && o.lateness.late_ms >= 0.5 * o.exposed_ms) {
    return fmt::format("straggler: rank {} is last in {} of the steps, by {}", o.lateness.rank,
                       percent(o.lateness.share), ms(o.lateness.late_ms));
  }
  if (o.lateness.spread_ms >= 0.5 * o.exposed_ms) {
    return fmt::format(
        "uneven: ranks reach the end of backward {} apart, not always the same one "
        "last: do they share cores, with each other or with somebody else?",
        ms(o.lateness.spread_ms));
  }
  if (!o.overlap) {
    return fmt::format("not overlapped: --no-overlap leaves all {} of communication exposed",
                       ms(t.cost_ms));
  }
  if (o.gather_wait_ms >= 0.5 * o.exposed_ms) {
    return fmt::format(
        "gathers: {} of the {} that a step waits are for ZeRO-1's parameters, which only the "
        "update "
        "and the next samples hide",
        ms(std::min(o.gather_wait_ms, o.exposed_ms)), ms(o.exposed_ms));
  }
  return {};
}

std::string by_buckets(const Observed& o, const Totals& t) {
  const double empty_ms = static_cast<double>(o.buckets.size()) * o.latency_ms;
  if (empty_ms >= 0.5 * t.cost_ms) {
    return fmt::format(
        "latency: {} bucket{} of {} on average cost {} x {}, however little they hold",
        o.buckets.size(), o.buckets.size() == 1 ? "" : "s",
        size(t.bytes / std::max<size_t>(1, o.buckets.size())), o.buckets.size(), ms(o.latency_ms));
  }
  // Ranks that come late make the wait longer than any communication.
  const double wait_ms = std::min(o.exposed_ms - o.gather_wait_ms, t.cost_ms);
  const bool too_long = t.cost_ms - o.backward_ms >= 0.5 * wait_ms;  // wherever they begin
  const bool remediable =
      is_late(o, o.buckets[t.stuck]) || o.cap_gain_ms >= 0.1 * wait_ms;  // or it is no advice
  if (!too_long && remediable && std::max(t.stuck_ms, t.late_ms) >= 0.5 * wait_ms) {
    return tail(o, t);
  }
  const double window_ms = o.backward_ms - t.first_ready_ms;
  if (t.cost_ms > window_ms) {
    return fmt::format(
        "communication-bound: the all-reduces take {}, backward after the first bucket only {}",
        ms(t.cost_ms), ms(window_ms));
  }
  if (!o.hidden_fraction || *o.hidden_fraction < 0) {
    return fmt::format("mixed: communication takes {}, and no single cause stands out",
                       ms(t.cost_ms));
  }
  return fmt::format("mixed: {} of {} of communication are hidden, and no single cause stands out",
                     percent(*o.hidden_fraction), ms(t.cost_ms));
}

}  // namespace

std::string diagnose(const Observed& o) {
  const Totals t = totals_of(o);
  const std::string apart = apart_from_buckets(o, t);
  return apart.empty() ? by_buckets(o, t) : apart;
}

}  // namespace rondo::trainer
