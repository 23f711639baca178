// A block's part of a launch: of the group's messages, then of its operations.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "comm/device/device_engine.hpp"
#include "comm/device/device_messages.hpp"

namespace rondo::engine {

/// Sorts a group's messages, given in the order of their calls, by lane. Called on the host.
/// REQUIRES: at most kMostMessages.
inline void put_messages(DeviceGroup& group, std::vector<DeviceMessage> messages) {
  const auto lane = [](const DeviceMessage& message) { return message.peer << 1 | message.sends; };
  std::stable_sort(messages.begin(), messages.end(),
                   [&](const auto& a, const auto& b) { return lane(a) < lane(b); });
  group.lane_count = 0;
  for (size_t i = 0; i < messages.size(); ++i) {
    group.messages[i] = messages[i];
    if (i == 0 || lane(messages[i - 1]) != lane(messages[i])) ++group.lane_count;
    group.lane_ends[group.lane_count - 1] = static_cast<uint8_t>(i + 1);
  }
}

/// Whether there is nothing else in it. Called on the host.
inline bool goes_by_ll(const DeviceGroup& group) {
  return group.lane_count == 0 && group.operation_count > 0 &&
         std::all_of(group.operations, group.operations + group.operation_count,
                     [](const DeviceOperation& operation) {
                       return operation.protocol == Protocol::kLl && operation.staged == nullptr;
                     });
}

/// A block's part of such a group.
template <class Block, class Access>
RONDO_DEVICE void walk_ll_group(const DeviceLinks& links, const DeviceGroup& group, uint32_t number,
                                Block& block) {
  for (uint32_t i = 0; i < group.operation_count; ++i) {
    if (number >= group.operations[i].channels) continue;
    DeviceEngine<Block, Access, true> engine(links, group.operations[i], number, block);
    if (engine.run() == Progress::kFailed) return;
  }
}

/// `number`: of the block. A block without a part in an operation skips it, on every rank alike.
/// Ends with the first failure, which has been reported.
template <class Block, class Access>
RONDO_DEVICE void walk_group(const DeviceLinks& links, const DeviceGroup& group, uint32_t number,
                             Block& block) {
  if (group.lane_count > 0 && number < links.shape.message_channels) {
    DeviceMessages<Block, Access> messages(links, group, number, block);
    if (messages.run() == Progress::kFailed) return;
  }
  for (uint32_t i = 0; i < group.operation_count; ++i) {
    if (number >= group.operations[i].channels) continue;
    DeviceEngine<Block, Access> engine(links, group.operations[i], number, block);
    if (engine.run() == Progress::kFailed) return;
  }
}

}  // namespace rondo::engine
