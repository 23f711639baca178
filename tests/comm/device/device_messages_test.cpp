// Messages of the device engine, walked on the host: blocks of one and of several threads, groups
// in a row, lanes of all pairs at once.
#include "tests/comm/device/device_messages.hpp"

#include <vector>

#include "tests/comm/device/device_walk.hpp"
#include "tests/harness/catch.hpp"

namespace rondo::engine::test {
namespace {

// Every rank's groups, one after the other, on the channels for messages.
void walk_messages(World& world, const std::vector<std::vector<DeviceGroup>>& groups,
                   uint32_t block_threads) {
  on_blocks(all_ranks(world.shape().ranks), world.shape().message_channels, block_threads,
            [&](uint32_t rank, uint32_t number, HostBlock& block) {
              for (const std::vector<DeviceGroup>& of_ranks : groups) {
                walk_group<HostBlock, HostAccess>(world.links(rank), of_ranks[rank], number, block);
              }
            });
}

TEST_CASE("The device engine's messages reach their counterparts, all pairs at once") {
  for (const uint32_t ranks : numbers_of_ranks()) {
    for (const uint32_t block_threads : {1U, 3U}) {
      if (testing::kSanitized && block_threads > 1 && ranks != 2) continue;
      DYNAMIC_SECTION(ranks << " ranks, blocks of " << block_threads) {
        World world(message_shape(ranks));
        std::vector<Letters> letters;
        for (uint32_t rank = 0; rank < ranks; ++rank) letters.emplace_back(rank, ranks);
        std::vector<std::vector<DeviceGroup>> groups(2);
        for (std::vector<DeviceGroup>& of_ranks : groups) {
          for (Letters& own : letters) of_ranks.push_back(own.group(kNever));
        }
        walk_messages(world, groups, block_threads);
        CHECK(all_well(world));
        for (const Letters& own : letters) CHECK(own.all_have_come());
      }
    }
  }
}

TEST_CASE("A message of the device engine that is another one, or alone, ends with a report") {
  for (const bool other : {true, false}) {
    World world(message_shape(2));
    std::vector<std::byte> data(1000);
    std::vector<DeviceGroup> groups(2);
    for (const uint32_t rank : {0U, 1U}) {
      groups[rank].limit_ns = other ? kNever : 1000;
      if (rank == 1 && !other) continue;
      put_messages(groups[rank], {{.buffer = data.data(),
                                   .count = rank == 0 ? 900U : 800U,
                                   .peer = 1 - rank,
                                   .type = static_cast<uint64_t>(DataType::kUint8),
                                   .sends = rank == 0}});
    }
    walk_messages(world, {groups}, 2);
    const DeviceReport& report = world.report(other ? 1 : 0, 1);
    CHECK(report.ended == (other ? DeviceReport::kMismatch : DeviceReport::kTimeout));
    CHECK(report.peer == (other ? 0 : 1));
    CHECK(report.message.count == (other ? 800 : 900));
    CHECK(report.whole == 1);
    if (other) CHECK(board::count_of_word(report.found) == 900);
  }
}

}  // namespace
}  // namespace rondo::engine::test
