// Sets of CPUs: any number, as the kernel gives and takes them.
#include "kernels/host/cpu_mask.hpp"

#include "tests/harness/catch.hpp"

namespace rondo::kernels {
namespace {

TEST_CASE("a mask holds any CPU") {
  const std::vector<int> cpus{0, 7, 8, 1023, 1024, 5000};
  CpuMask mask;
  for (const int cpu : {5000, 8, 0, 1024, 1023, 7, 7}) add_cpu(mask, cpu);
  CHECK(list_cpus(mask) == cpus);
  CHECK(count_cpus(mask) == 6);
  CHECK(mask.size() == 5000 / 8 + 1);
  CHECK(list_cpus({}).empty());
  CHECK(count_cpus({}) == 0);
}

TEST_CASE("the mask grows until it is as long as the kernel wants it") {
  const CpuMask allowed = allowed_cpus();
  REQUIRE(count_cpus(allowed) > 0);
  CHECK(allowed_cpus(4) == allowed);  // the kernel takes whole words only
  CHECK(allowed_cpus(8192) == allowed);
}

TEST_CASE("a thread is bound to the CPUs of a mask, however long that is") {
  const CpuMask before = allowed_cpus();
  CpuMask one;
  add_cpu(one, list_cpus(before).back());
  CpuMask longer = one;
  longer.resize(4096, '\0');
  for (const CpuMask& mask : {one, longer}) {
    REQUIRE(bind_to_cpus(mask));
    CHECK(allowed_cpus() == one);
    REQUIRE(bind_to_cpus(before));
  }
  CHECK(allowed_cpus() == before);
  CpuMask none;
  add_cpu(none, 100'000);
  CHECK_FALSE(bind_to_cpus(none));
}

}  // namespace
}  // namespace rondo::kernels
