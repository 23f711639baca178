// Parts of a plan as JSON, in rondo-plan --json and in the page that explains.
#pragma once

#include <nlohmann/json.hpp>

#include "comm/plan/plan.hpp"

namespace rondo::plan {

template <class Items, class Convert>
nlohmann::ordered_json list_of(const Items& items, const Convert& convert) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const auto& item : items) list.push_back(convert(item));
  return list;
}

inline nlohmann::ordered_json bytes_json(const RankBytes& b) {
  return {{"sent", b.sent},
          {"sent_formula", b.sent_text},
          {"sent_by_formula", b.formula_sent},
          {"fetched", b.fetched},
          {"fetched_formula", b.fetched_text},
          {"fetched_by_formula", b.formula_fetched}};
}

/// An algorithm's predicted time, in its parts.
inline nlohmann::ordered_json candidate_json(const tuner::Candidate& c) {
  using nlohmann::ordered_json;
  return {{"algorithm", name(c.algorithm)},
          {"predicted_us", c.price.total_us()},
          {"overhead_us", c.price.overhead_us},
          {"latency_us", c.price.latency_us},
          {"slots_us", c.price.slots_us},
          {"memory_us", c.price.memory_us},
          {"reduce_us", c.price.reduce_us},
          {"process_copy_us", c.price.process_copy_us},
          {"wire_us", c.price.wire_us},
          {"correction", c.price.correction},
          {"refused", c.refusal == nullptr ? ordered_json() : ordered_json(c.refusal)}};
}

}  // namespace rondo::plan
