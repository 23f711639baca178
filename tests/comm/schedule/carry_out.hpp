// Carries schedules out as they stand, before they are lowered, over links without end.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "comm/schedule/schedule.hpp"
#include "tests/harness/catch.hpp"

namespace rondo::schedule::test {

/// Of all ranks, which use links only. `act`(rank, step, received) makes one step with what comes from
/// its sources' slots, in their order, and returns what goes into its destinations' slots.
template <class Value, class Act>
void carry_out(const std::vector<Schedule>& schedules, const Act& act) {
  std::map<std::pair<int, int>, std::deque<Value>> links;  // from, to
  std::vector<size_t> at(schedules.size(), 0);
  const auto advance = [&](size_t rank) {
    if (at[rank] == schedules[rank].steps.size()) return false;
    const Step& step = schedules[rank].steps[at[rank]];
    const int self = static_cast<int>(rank);
    const auto is_slot = [](const Operand& o) { return o.place == OperandKind::kSlot; };
    for (const Operand& o : step.sources) {
      if (is_slot(o) && links[{o.peer, self}].empty()) return false;
    }
    std::vector<Value> received;
    for (const Operand& o : step.sources) {
      if (!is_slot(o)) continue;
      received.push_back(std::move(links[{o.peer, self}].front()));
      links[{o.peer, self}].pop_front();
    }
    const Value sent = act(rank, step, received);
    for (const Operand& o : step.destinations) {
      if (is_slot(o)) links[{self, o.peer}].push_back(sent);
    }
    ++at[rank];
    return true;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t rank = 0; rank < schedules.size(); ++rank) moved |= advance(rank);
  }
  for (size_t rank = 0; rank < schedules.size(); ++rank) {
    REQUIRE(at[rank] == schedules[rank].steps.size());
  }
}

}  // namespace rondo::schedule::test
