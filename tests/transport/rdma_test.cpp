// Which devices UCX may use, on hosts of which only the kernel's files are there.
#include "transport/ucx/rdma.hpp"

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/harness/catch.hpp"
#include "tests/harness/rank_group.hpp"

namespace rondo::transport::test {
namespace {

namespace fs = std::filesystem;

void add_port(const fs::path& devices, const std::string& device, int port,
              const std::string& state) {
  const fs::path at = devices / device / "ports" / std::to_string(port);
  fs::create_directories(at);
  std::ofstream(at / "state") << state << "\n";
}

}  // namespace

TEST_CASE("RDMA ports are used along with the interface, if they are up") {
  const testing::TempDirectory directory;
  const fs::path devices = directory.path();
  CHECK(ucx::with_rdma("eth0", true, devices / "none") == "eth0");
  CHECK(ucx::with_rdma("eth0", true, devices) == "eth0");
  add_port(devices, "mlx5_1", 1, "4: ACTIVE");
  add_port(devices, "mlx5_0", 1, "4: ACTIVE");
  add_port(devices, "mlx5_0", 2, "1: DOWN");
  fs::create_directories(devices / "mlx5_0" / "device/net/ib0");
  CHECK(ucx::with_rdma("eth0", true, devices) == "eth0,mlx5_0:1,mlx5_1:1");
  CHECK(ucx::with_rdma("eth0", false, devices) == "eth0");
  CHECK(ucx::with_rdma("ib0", false, devices) == "ib0,mlx5_0:1");
  CHECK(ucx::with_rdma("", true, devices).empty());
}

TEST_CASE("devices that are no network interfaces speak more than TCP") {
  CHECK(ucx::is_tcp_only("lo"));
  CHECK_FALSE(ucx::is_tcp_only("lo,mlx5_0:1"));
  for (const char* all : {"", "all"}) CHECK(ucx::is_tcp_only(all) == !ucx::has_rdma());
}

}  // namespace rondo::transport::test
