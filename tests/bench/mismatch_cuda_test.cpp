// The kernel that compares, against the host's loop: every width, few elements and more than the
// grid has threads. Needs a GPU.
#include <cstring>
#include <vector>

#include "bench/backends/cuda_memory.hpp"
#include "tests/harness/catch.hpp"

using namespace rondo;
using namespace rondo::bench;

TEST_CASE("a device compares as the host does") {
  auto opened = open_cuda_memory(0);
  REQUIRE(opened.ok());
  CudaMemory& memory = **opened;
  constexpr size_t kBytes = size_t{8} << 20;
  auto* const found = static_cast<std::byte*>(memory.allocate(kBytes));
  auto* const expected = static_cast<std::byte*>(memory.allocate(kBytes));
  REQUIRE(found != nullptr);
  REQUIRE(expected != nullptr);
  for (const size_t element : {1, 2, 4, 8}) {
    for (const size_t count : {size_t{1}, size_t{31}, size_t{257}, kBytes / element}) {
      for (const std::vector<size_t>& wrong :
           {std::vector<size_t>{}, {0}, {count - 1}, {count / 2, count - 1}, {0, count / 3}}) {
        INFO(element << " bytes, " << count);
        std::memset(expected, 0x5a, kBytes);
        std::memset(found, 0x5a, kBytes);
        for (const size_t at : wrong) found[at * element + element - 1] = std::byte{0xff};
        REQUIRE(memory.give(memory.twin(found), found, kBytes).ok());
        REQUIRE(memory.give(memory.twin(expected), expected, kBytes).ok());
        const auto there =
            memory.compare(memory.twin(found), memory.twin(expected), count, element);
        const Mismatch here = mismatch_of(found, expected, count, element);
        REQUIRE(there.ok());
        CHECK(there->wrong == here.wrong);
        CHECK(there->first == here.first);
      }
    }
  }
}
