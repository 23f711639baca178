// An algorithm's predicted time, in parts, as JSON: a row of rondo-plan --json, and of what the page asks for.
#pragma once

#include <nlohmann/json.hpp>

#include "comm/tuner/choose.hpp"

namespace rondo::plan {

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
