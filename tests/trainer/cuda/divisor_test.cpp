#include "trainer/layers/cuda/divisor.hpp"

#include <cstdint>

#include "tests/harness/catch.hpp"

namespace rondo::trainer::cuda_divisor_test {

TEST_CASE("a divisor divides as the machine does, up to 2^31 - 1") {
  constexpr uint32_t kLast = cuda::Divisor::kMost;
  const auto check = [](uint32_t by) {
    const cuda::Divisor divisor(by);
    const auto divides = [&](uint32_t n) {
      const auto [quotient, remainder] = divisor.divide(n);
      return quotient == n / by && remainder == n % by;
    };
    INFO("by " << by);
    bool right = divides(0) && divides(kLast);
    // Around multiples, where a factor that is not exact shows first: small ones, and the largest.
    for (const uint32_t multiple : {by, kLast / by * by, kLast / 2 / by * by}) {
      for (const uint32_t off : {0u, 1u, 2u}) {
        right = right && (multiple < off || divides(multiple - off)) &&
                (multiple > kLast - off || divides(multiple + off));
      }
    }
    for (uint64_t n = 1; n <= kLast; n = n * 5 / 3 + 1) {
      right = right && divides(static_cast<uint32_t>(n));
    }
    REQUIRE(right);
  };
  for (uint32_t by = 1; by <= 3000; ++by) check(by);
  for (uint32_t power = 12; power < 31; ++power) {
    for (const uint32_t off : {0u, 1u, 3u}) {
      check((uint32_t{1} << power) + off);
      check((uint32_t{1} << power) - off);
    }
  }
  check(kLast);
  const auto [quotient, remainder] = cuda::Divisor(0).divide(7);  // a shape of nothing
  CHECK(quotient == 7);
  CHECK(remainder == 0);
}

}  // namespace rondo::trainer::cuda_divisor_test
