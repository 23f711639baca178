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

Status check(std::span<const Timing> timings, size_t constants, bool between_hosts) {
  if (timings.size() < constants) {
    return {Code::kInvalidArgument, std::to_string(timings.size()) + " timings cannot determine " +
                                        std::to_string(constants) + " constants"};
  }
  for (const Timing& t : timings) {
    const Question& q = t.question;
    if (is_between_hosts(q) != between_hosts) {
      return {Code::kInvalidArgument,
              between_hosts ? "a timing on one host says nothing about the wire between hosts"
                            : "a timing between hosts among those that describe one host"};
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

Correction& table_of(const Question& q, std::vector<Correction>& tables) {
  const auto found = std::find_if(tables.begin(), tables.end(), [&](const Correction& c) {
    return c.collective == q.collective && c.algorithm == q.algorithm && c.mapped == q.mapped;
  });
  if (found != tables.end()) return *found;
  tables.push_back(
      {.collective = q.collective, .algorithm = q.algorithm, .mapped = q.mapped, .points = {}});
  return tables.back();
}

}  // namespace

Result<LinkProfile> fit_wire(std::span<const Timing> timings, const LinkProfile& base) {
  RONDO_TRY(check(timings, kConstantCount - kHostConstantCount, true));
  std::vector<EquationRow> rows;
  std::vector<double> targets;
  EquationRow used{};
  for (const Timing& t : timings) {
    EquationRow row = weights_of(t.question, base);
    double host_us = 0;
    for (size_t j = 0; j < kConstantCount; ++j) {
      if (j < kHostConstantCount) host_us += std::exchange(row[j], 0) * (base.*kConstants[j].value);
      used[j] += row[j] /= t.us;
    }
    rows.push_back(row);
    targets.push_back(1 - host_us / t.us);
  }
  const EquationRow constants = solve(rows, targets);
  LinkProfile profile = base;
  for (size_t j = kHostConstantCount; j < kConstantCount; ++j) {
    if (used[j] > 0) profile.*kConstants[j].value = rounded(constants[j]);
  }
  return profile;
}

Result<LinkProfile> fit(std::span<const Timing> timings, const LinkProfile& base) {
  RONDO_TRY(check(timings, kHostConstantCount, false));
  LinkProfile profile = base;
  profile.corrections.clear();
  profile.corrected_ranks = 0;
  std::vector<EquationRow> rows;
  EquationRow used{};
  for (const Timing& t : timings) {
    EquationRow row = weights_of(t.question, profile);
    for (size_t j = 0; j < kConstantCount; ++j) used[j] += row[j] /= t.us;
    rows.push_back(row);
  }
  const EquationRow constants = solve(rows, std::vector<double>(rows.size(), 1));
  for (size_t j = 0; j < kConstantCount; ++j) {
    if (used[j] > 0) profile.*kConstants[j].value = rounded(constants[j]);
  }
  std::vector<Correction> tables;
  for (const Timing& t : timings) {
    const double modelled = price(t.question, profile).total_us();
    if (modelled <= 0) {
      return Status(Code::kInvalidArgument,
                    "these timings explain nothing: by the constants fitted to them " +
                        std::string(name(t.question.collective)) + " by " +
                        std::string(name(t.question.algorithm)) + " would take no time at all");
    }
    table_of(t.question, tables)
        .points.push_back({.bytes = t.question.bytes, .factor = rounded(t.us / modelled)});
  }
  for (Correction& table : tables) {
    auto& points = table.points;
    std::sort(points.begin(), points.end(), [](auto& a, auto& b) { return a.bytes < b.bytes; });
    const auto end = std::unique(points.begin(), points.end(),
                                 [](auto& a, auto& b) { return a.bytes == b.bytes; });
    points.erase(end, points.end());
  }
  profile.corrections = std::move(tables);
  profile.corrected_ranks = timings[0].question.ranks;
  return profile;
}

}  // namespace rondo::tuner
