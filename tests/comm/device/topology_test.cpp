// What rondo-perf --topology says of GPUs.
#include "tests/comm/device/world.hpp"

namespace rondo::device::test {
namespace {

TEST_CASE("The topology shows every GPU and how each reaches each") {
  const auto gpu = std::make_shared<FakeGpu>(3);
  gpu->devices[1].name = "A name";
  gpu->devices[1].memory_bytes = size_t{141} << 30;
  gpu->peers = {{0, 1}, {1, 0}, {1, 2}, {2, 1}};
  for (size_t d = 0; d < 3; ++d) gpu->devices[d].pci_bus = {static_cast<char>('0' + d)};
  gpu->nvlinks = {{"0", "1"}, {"1", "0"}};
  const OnGpu on(gpu);
  const std::string report = topology_report(2);
  INFO(report);
  for (const char* part :
       {"GPUs: 3\n", "  1         A name, 100 multiprocessors, 141.0 GiB, compute capability 0.0\n",
        "  0 to 1    NVLink\n", "  1 to 2    peer access\n", "  2 to 0    host memory\n",
        "  link profile of a communicator on all of them: GPUs, host memory\n",
        "  with ranks on other hosts, too, data between hosts pass through pinned memory\n"}) {
    INFO(part);
    CHECK(report.find(part) != std::string::npos);
  }
}

TEST_CASE("The topology says why there are no GPUs") {
  replace_backend(
      []() -> Result<GpuBackend> { return Status(Code::kUnavailable, "no GPU: none"); });
  CHECK(topology_report(2).find("GPUs: none (no GPU: none)\n") != std::string::npos);
  replace_backend({});
}

}  // namespace
}  // namespace rondo::device::test
