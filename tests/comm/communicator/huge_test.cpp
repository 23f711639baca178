// Messages past 4 GiB, in place in library memory: offsets and lengths are 64 bits everywhere. Those
// that go through slots: huge_staged_test.
#include "tests/comm/communicator/world.hpp"

namespace rondo::testing {

TEST_CASE("an all_reduce past 4 GiB") {
  const size_t count = (size_t{1} << 32) + 4097;
  need_memory(3 * count);  // for two ranks
  require_all_ok(run_world(
      How::kForks, 2,
      [&](Communicator& comm) {
        // In place and one byte an element keeps it to 4 GiB a rank; library memory on both goes
        // direct, which is one single slice of more than 2 GiB.
        auto* data = static_cast<unsigned char*>(alloc(count));
        expect(data != nullptr, "no library memory");
        const size_t places[] = {0,
                                 1,
                                 count / 2 - 1,
                                 count / 2,
                                 (size_t{1} << 31) + 5,
                                 (size_t{1} << 32) - 1,
                                 size_t{1} << 32,
                                 count - 1};
        for (const size_t place : places)
          data[place] = static_cast<unsigned char>(place % 101 + static_cast<size_t>(comm.rank()));
        expect_ok(comm.all_reduce(data, data, count, DataType::kUint8, ReduceOp::kSum,
                                  {.algorithm = Algorithm::kTwoShotDirect}),
                  "all_reduce");
        for (const size_t place : places) {
          expect_eq(static_cast<int>(data[place]), static_cast<int>(2 * (place % 101) + 1),
                    "element " + std::to_string(place));
        }
        rondo::dealloc(data);
      },
      {}, std::chrono::seconds{200}));
}

}  // namespace rondo::testing
