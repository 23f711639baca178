// How often ranks on GPUs wait for each other while they set a communicator up.
#include "tests/comm/communicator/rounds.hpp"

#include "tests/comm/device/world.hpp"

namespace rondo::device::test {
namespace {

TEST_CASE("a GPU adds one round to the set-up") {
  const testing::Rounds rounds;
  const Rig world(3, {.gpu = gpus()});
  CHECK(rounds.most() == 5);
}

TEST_CASE("a GPU adds one round to the set-up of several hosts") {
  const testing::Rounds rounds;
  const HostsRig world({0, 0, 1});
  CHECK(rounds.most() == 7);
}

}  // namespace
}  // namespace rondo::device::test
