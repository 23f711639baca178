// {"question": "profile", "profile": TEXT}: reads a link profile as a communicator would, and says what is in it.
// {"question": "predict", "profile"?: TEXT, rows: [...]}: the model's times for measured rows, with and without the
// profile's corrections. Chapter 3 sets them beside the measurements.
#include "comm/algorithms/algorithm.hpp"
#include "comm/tuner/choose.hpp"
#include "comm/tuner/profile_file.hpp"
#include "explain/answers/answers.hpp"
#include "explain/operation.hpp"

namespace rondo::explain {
namespace {

constexpr size_t kMostRows = 1024;

Json points_json(const tuner::Correction& table) {
  Json points = Json::array();
  for (const auto& point : table.points) points.push_back({point.bytes, point.factor});
  return points;
}

Json corrections_json(const tuner::LinkProfile& links) {
  Json list = Json::array();
  for (const tuner::Corrections& corrections : links.corrections) {
    for (const tuner::Correction& table : corrections.tables) {
      list.push_back({{"ranks", corrections.hosts.ranks()},
                      {"hosts", corrections.hosts.hosts()},
                      {"collective", name(table.collective)},
                      {"algorithm", name(table.algorithm)},
                      {"library_memory", table.mapped},
                      {"points", points_json(table)}});
    }
  }
  return list;
}

/// A row's prices: {collective, algorithm, ranks, size_bytes, library_memory}. An algorithm `auto` is the one that a
/// communicator with these links would choose.
Result<Json> row_json(const PageRequest& row, const PageRequest& whole) {
  const auto collective = RONDO_TRY(row.one_of<Collective>("collective", kCollectiveNames));
  auto algorithm = RONDO_TRY(row.one_of<Algorithm>("algorithm", kAlgorithmNames));
  const auto ranks = static_cast<int>(RONDO_TRY(row.whole("ranks", 1, kMostPricedRanks)));
  const auto size = static_cast<uint64_t>(RONDO_TRY(row.whole("size_bytes", 0, int64_t{1} << 40)));
  const bool library = RONDO_TRY(row.truth("library_memory", false));
  const tuner::LinkProfile links = RONDO_TRY(links_of(whole, ranks, ranks));
  const uint64_t bytes = argument_bytes(collective, ranks, size);
  if (algorithm == Algorithm::kAuto) {
    algorithm = tuner::choose(collective, ranks, bytes, available_of(library), true, links);
  }
  if (algorithms::find(collective, algorithm) == nullptr ||
      algorithms::traits_of(algorithm).needs.hosts) {
    return row.refuse("algorithm", "has no price here");
  }
  const tuner::Price price = tuner::price({.collective = collective,
                                           .algorithm = algorithm,
                                           .ranks = ranks,
                                           .bytes = bytes,
                                           .mapped = library},
                                          links);
  return Json{{"algorithm", name(algorithm)},
              {"us", price.total_us()},
              {"uncorrected_us", price.total_us() / price.correction}};
}

}  // namespace

Result<Json> profile(const PageRequest& request) {
  const std::string text = RONDO_TRY(request.text("profile", tuner::kMaxProfileBytes));
  const tuner::LinkProfile links = RONDO_TRY(tuner::parse_profile(text, "the profile"));
  Json constants = Json::array();
  for (const tuner::Constant& constant : tuner::kConstants) {
    constants.push_back({{"name", constant.name}, {"value", links.*constant.value}});
  }
  return Json{{"name", links.name},           {"constants", std::move(constants)},
              {"llc_bytes", links.llc_bytes}, {"slot_bytes", links.slot_bytes},
              {"slots", links.slots},         {"corrections", corrections_json(links)}};
}

Result<Json> predict(const PageRequest& request) {
  const Json* const rows = RONDO_TRY(request.list("rows", kMostRows));
  if (rows == nullptr) return request.refuse("rows", "is missing");
  Json predictions = Json::array();
  for (size_t i = 0; i < rows->size(); ++i) {
    const PageRequest row = RONDO_TRY(request.item("rows", i));
    const auto one = row_json(row, request);
    predictions.push_back(one.ok() ? *one : Json{{"error", one.status().message()}});
  }
  return Json{{"rows", std::move(predictions)}};
}

}  // namespace rondo::explain
