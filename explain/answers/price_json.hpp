// A prediction's parts as JSON; shared by the questions with prices.
#pragma once

#include "comm/tuner/choose.hpp"
#include "explain/request.hpp"

namespace rondo::explain {

inline Json price_json(const tuner::Candidate& c) {
  return {{"algorithm", name(c.algorithm)},
          {"us", c.price.total_us()},
          {"overhead_us", c.price.overhead_us},
          {"latency_us", c.price.latency_us},
          {"slots_us", c.price.slots_us},
          {"memory_us", c.price.memory_us},
          {"reduce_us", c.price.reduce_us},
          {"process_copy_us", c.price.process_copy_us},
          {"wire_us", c.price.wire_us},
          {"correction", c.price.correction},
          {"refused", c.refusal == nullptr ? Json() : Json(c.refusal)}};
}

}  // namespace rondo::explain
