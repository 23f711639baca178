// Averages of integers on a device: exact, or as NCCL's.
#include <limits>
#include <type_traits>
#include <vector>

#include "tests/comm/device/world.hpp"

namespace rondo::device::test {
namespace {

TEST_CASE("On a device, averages of integers are exact, or wrap as NCCL's") {
  for (const int size : {1, 2, 3}) {
    for (const bool wraps : {false, true}) {
      INFO(size << " ranks" << (wraps ? ", wrapping" : ""));
      Setup setup = {.gpu = gpus()};
      setup.config.wrapping_averages = wraps;
      Rig world(size, setup);
      const auto check = [&]<class T>(T most) {
        for (const size_t count : {size_t{1}, size_t{3000}}) {
          std::vector<std::vector<T>> data(static_cast<size_t>(size), std::vector<T>(count, most));
          for (int rank = 0; rank < size; ++rank) {
            must(world[rank].all_reduce(data[rank].data(), data[rank].data(), count,
                                        *DataTypeOf<T>::kValue, ReduceOp::kAvg,
                                        world.on_stream(rank)));
          }
          world.synchronize();
          using Word = std::make_unsigned_t<T>;
          const auto sum = static_cast<T>(static_cast<Word>(most) * static_cast<Word>(size));
          const T wanted = wraps ? static_cast<T>(sum / static_cast<T>(size)) : most;
          for (const auto& own : data) CHECK(own == std::vector<T>(count, wanted));
        }
      };
      check(uint8_t{250});
      check(int8_t{-120});
      check(std::numeric_limits<int32_t>::max());
      check(std::numeric_limits<int64_t>::min());
      check(std::numeric_limits<uint64_t>::max());
    }
  }
}

}  // namespace
}  // namespace rondo::device::test
