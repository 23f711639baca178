// Minimises the sum of (predicted / measured - 1)^2 over constants that may not be negative, by
// coordinate descent on the normal equations: there are some ten unknowns, and a step is a division.
#include "comm/tuner/fit.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "comm/algorithms/algorithm.hpp"

namespace rondo::tuner {
namespace {

using EquationRow = std::array<double, kConstantCount>;

// Columns are similar (hops and peers, slots and memory), so it converges slowly, in microseconds
// all the same.
constexpr int kSweeps = 50'000;

/// Returns the x >= 0 that minimises |A x - b|^2. Columns of zeros leave x at 0.
EquationRow solve(const std::vector<EquationRow>& rows, const std::vector<double>& targets) {
  std::array<EquationRow, kConstantCount> gram{};
  EquationRow right{}, scale{}, x{};
  for (const EquationRow& row : rows) {
    for (size_t j = 0; j < kConstantCount; ++j) scale[j] += row[j] * row[j];
  }
  for (double& s : scale) s = s > 0 ? std::sqrt(s) : 1;
  for (size_t i = 0; i < rows.size(); ++i) {
    const EquationRow& row = rows[i];
    for (size_t j = 0; j < kConstantCount; ++j) {
      right[j] += targets[i] * row[j] / scale[j];
      for (size_t k = 0; k < kConstantCount; ++k)
        gram[j][k] += row[j] * row[k] / scale[j] / scale[k];
    }
  }
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (size_t j = 0; j < kConstantCount; ++j) {
      if (gram[j][j] == 0) continue;
      double gradient = right[j];
      for (size_t k = 0; k < kConstantCount; ++k) gradient -= gram[j][k] * x[k];
      x[j] = std::max(0.0, x[j] + gradient / gram[j][j]);
    }
  }
  for (size_t j = 0; j < kConstantCount; ++j) x[j] /= scale[j];
  return x;
}

bool is_between_hosts(const Question& q) { return q.hosts != nullptr && q.hosts->hosts() > 1; }

Status check(std::span<const Timing> timings, size_t constants) {
  const bool between_hosts = !timings.empty() && is_between_hosts(timings[0].question);
  if (timings.size() < constants) {
    return {Code::kInvalidArgument, std::to_string(timings.size()) + " timings cannot determine " +
                                        std::to_string(constants) + " constants"};
  }
  for (const Timing& t : timings) {
    const Question& q = t.question;
    if (is_between_hosts(q) != between_hosts) {
      return {Code::kInvalidArgument,
              "timings on one host and between hosts; a profile is fitted to either"};
    }
    if (!between_hosts && q.ranks != timings[0].question.ranks) {
      return {Code::kInvalidArgument, "timings of " + std::to_string(q.ranks) + " and of " +
                                          std::to_string(timings[0].question.ranks) +
                                          " ranks; a profile is fitted to one number"};
    }
    if (!(t.us > 0) || !std::isfinite(t.us) ||
        algorithms::find(q.collective, q.algorithm) == nullptr) {
      return {Code::kInvalidArgument, std::string(name(q.collective)) + " by " +
                                          std::string(name(q.algorithm)) + " of " +
                                          std::to_string(q.bytes) + " bytes cannot have taken " +
                                          std::to_string(t.us) + " us"};
    }
  }
  return {};
}

/// Four digits: the rest is noise, and people read the files.
double rounded(double value) {
  if (value == 0) return 0;
  const double unit = std::pow(10, std::floor(std::log10(std::abs(value))) - 3);
  return std::round(value / unit) * unit;
}

base::HostMap map_of(const Question& q) {
  return is_between_hosts(q) ? *q.hosts : base::HostMap::one_host(q.ranks);
}

Corrections& corrections_of(const Question& q, LinkProfile& profile) {
  const base::HostMap hosts = map_of(q);
  for (Corrections& known : profile.corrections) {
    if (known.hosts == hosts) return known;
  }
  return profile.corrections.emplace_back(Corrections{.hosts = hosts, .tables = {}});
}

Correction& table_of(const Question& q, std::vector<Correction>& tables) {
  const auto found = std::find_if(tables.begin(), tables.end(), [&](const Correction& c) {
    return c.collective == q.collective && c.algorithm == q.algorithm && c.mapped == q.mapped;
  });
  if (found != tables.end()) return *found;
  tables.push_back(
      {.collective = q.collective, .algorithm = q.algorithm, .mapped = q.mapped, .points = {}});
  return tables.back();
}

/// What the constants alone predict.
double modelled_us(const Question& q, const LinkProfile& profile) {
  Price modelled = price(q, profile);
  modelled.correction = 1;
  return modelled.total_us();
}

/// The constants from `first` to `last`, fitted to what the others leave of the timings.
void fit_constants(std::span<const Timing> timings, size_t first, size_t last,
                   LinkProfile& profile) {
  std::vector<EquationRow> rows;
  std::vector<double> targets;
  EquationRow used{};
  for (const Timing& t : timings) {
    EquationRow row = weights_of(t.question, profile);
    double known_us = 0;
    for (size_t j = 0; j < kConstantCount; ++j) {
      if (j < first || j >= last)
        known_us += std::exchange(row[j], 0) * (profile.*kConstants[j].value);
      used[j] += row[j] /= t.us;
    }
    rows.push_back(row);
    targets.push_back(1 - known_us / t.us);
  }
  const EquationRow constants = solve(rows, targets);
  for (size_t j = first; j < last; ++j) {
    if (used[j] > 0) profile.*kConstants[j].value = rounded(constants[j]);
  }
}

/// Corrections that predict by `profile` what the same ones predict by `before`.
void keep_predictions(const LinkProfile& before, LinkProfile& profile) {
  for (Corrections& kept : profile.corrections) {
    for (Correction& table : kept.tables) {
      for (Correction::Point& point : table.points) {
        const Question q{.collective = table.collective,
                         .algorithm = table.algorithm,
                         .ranks = kept.hosts.ranks(),
                         .bytes = point.bytes,
                         .mapped = table.mapped,
                         .hosts = &kept.hosts};
        const double now = modelled_us(q, profile), then = modelled_us(q, before);
        if (now > 0 && then > 0) point.factor = rounded(point.factor * then / now);
      }
    }
  }
}

Status add_corrections(std::span<const Timing> timings, LinkProfile& profile) {
  for (const Timing& t : timings) {
    const double modelled = modelled_us(t.question, profile);
    if (modelled <= 0) {
      return {Code::kInvalidArgument,
              "these timings explain nothing: by the constants fitted to them " +
                  std::string(name(t.question.collective)) + " by " +
                  std::string(name(t.question.algorithm)) + " would take no time at all"};
    }
    table_of(t.question, corrections_of(t.question, profile).tables)
        .points.push_back({.bytes = t.question.bytes, .factor = rounded(t.us / modelled)});
  }
  for (Corrections& corrections : profile.corrections) {
    for (Correction& table : corrections.tables) {
      auto& points = table.points;
      std::sort(points.begin(), points.end(), [](auto& a, auto& b) { return a.bytes < b.bytes; });
      const auto end = std::unique(points.begin(), points.end(),
                                   [](auto& a, auto& b) { return a.bytes == b.bytes; });
      points.erase(end, points.end());
    }
  }
  return {};
}

}  // namespace

Result<LinkProfile> fit(std::span<const Timing> timings, const LinkProfile& base) {
  const bool between_hosts = !timings.empty() && is_between_hosts(timings[0].question);
  const size_t first = between_hosts ? kHostConstantCount : 0;
  const size_t last = between_hosts ? kConstantCount : kHostConstantCount;
  RONDO_TRY(check(timings, last - first));
  LinkProfile profile = base;
  fit_constants(timings, first, last, profile);
  for (const Timing& t : timings) {
    std::erase_if(corrections_of(t.question, profile).tables, [&](const Correction& table) {
      return table.collective == t.question.collective;
    });
  }
  keep_predictions(base, profile);
  RONDO_TRY(add_corrections(timings, profile));
  return profile;
}

}  // namespace rondo::tuner
