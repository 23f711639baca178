// See unknown_variables.hpp.
#include "comm/launch/unknown_variables.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string_view>

#include "comm/base/printable.hpp"
#include "comm/launch/variables.hpp"

namespace rondo::comm {
namespace {

constexpr std::string_view kPrefix = "RONDO_";
constexpr size_t kLongestShown = 64;

/// How many characters to insert, remove or replace: Levenshtein's distance.
size_t edits(std::string_view from, std::string_view to) {
  std::vector<size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < from.size(); ++i) {
    size_t diagonal = row[0]++;
    for (size_t j = 0; j < to.size(); ++j) {
      const size_t replaced = diagonal + (from[i] == to[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

bool is_known(std::string_view name) {
  for (const EnvironmentVariable& variable : kEnvironment) {
    if (name == variable.name) return true;
  }
  return std::any_of(std::begin(kForeignVariables), std::end(kForeignVariables),
                     [&](std::string_view foreign) {
                       return foreign.ends_with('_') ? name.starts_with(foreign) : name == foreign;
                     });
}

/// Empty if none is similar: of the letters after the prefix, at most a third are others.
std::string_view nearest(std::string_view name) {
  const auto* found =
      std::min_element(std::begin(kEnvironment), std::end(kEnvironment),
                       [&](const EnvironmentVariable& a, const EnvironmentVariable& b) {
                         return edits(name, a.name) < edits(name, b.name);
                       });
  const std::string_view best = found->name;
  const size_t letters = std::max(name.size(), best.size()) - kPrefix.size();
  return 3 * edits(name, best) <= letters ? best : std::string_view();
}

}  // namespace

std::vector<std::string> unknown_variables(const char* const* environment) {
  std::vector<std::string> sentences;
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const std::string_view entry = *environment;
    const std::string name = base::printable(entry.substr(0, entry.find('=')), kLongestShown);
    if (!name.starts_with(kPrefix) || is_known(name)) continue;
    const std::string similar(nearest(name));
    sentences.push_back(name + " is set, which rondo does not read" +
                        (similar.empty() ? "" : "; the nearest that it reads is " + similar) +
                        ": see rondo-run --help-environment");
  }
  return sentences;
}

}  // namespace rondo::comm
