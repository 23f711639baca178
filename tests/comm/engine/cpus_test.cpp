// How many CPUs there are for how many ranks: masks of any length, quotas of nested groups.
#include "comm/topology/cpus.hpp"

#include <climits>
#include <filesystem>
#include <fstream>

#include "kernels/host/cpu_mask.hpp"
#include "tests/harness/catch.hpp"
#include "tests/harness/rank_group.hpp"

namespace rondo::topology {
namespace {

/// A root of a file system with what granted_cpus() reads.
class Root {
 public:
  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = directory_.path() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  int granted() const { return granted_cpus(directory_.path()); }

 private:
  testing::TempDirectory directory_;
};

const std::string kVersion2 = "31 25 0:27 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw";
const std::string kVersion1 =
    "33 32 0:30 / /sys/fs/cgroup/cpu,cpuacct rw shared:11 - cgroup cgroup rw,cpu,cpuacct";

std::string mask_of(int cpu) {
  std::string mask;
  kernels::add_cpu(mask, cpu);
  return mask;
}

TEST_CASE("CPUs are counted once, whatever their numbers") {
  const std::vector<std::string> masks = {mask_of(0), mask_of(1500), mask_of(9000), mask_of(1500)};
  CHECK(count_cpus(masks) == 3);
  CHECK(count_cpus({}) == 0);
}

TEST_CASE("the least quota of a group and of those around it counts") {
  const Root root;
  CHECK(root.granted() == INT_MAX);
  root.write("/proc/self/mountinfo", kVersion2);
  root.write("/proc/self/cgroup", "0::/system.slice/job.service/inner");
  CHECK(root.granted() == INT_MAX);
  root.write("/sys/fs/cgroup/system.slice/job.service/inner/cpu.max", "max 100000");
  CHECK(root.granted() == INT_MAX);
  root.write("/sys/fs/cgroup/system.slice/job.service/cpu.max", "250000 100000");
  CHECK(root.granted() == 3);
  root.write("/sys/fs/cgroup/system.slice/cpu.max", "20000 100000");
  CHECK(root.granted() == 1);
}

TEST_CASE("a container's own group is mounted as the root") {
  const Root root;
  root.write("/proc/self/mountinfo", "31 25 0:27 /docker/1 /sys/fs/cgroup ro - cgroup2 cgroup2 rw");
  root.write("/proc/self/cgroup", "0::/docker/1/inner");
  root.write("/sys/fs/cgroup/cpu.max", "400000 100000");
  CHECK(root.granted() == 4);
  root.write("/sys/fs/cgroup/inner/cpu.max", "200000 100000");
  CHECK(root.granted() == 2);
  // In a namespace of control groups, too.
  root.write("/proc/self/mountinfo", kVersion2);
  root.write("/proc/self/cgroup", "0::/");
  CHECK(root.granted() == 4);
}

TEST_CASE("quotas of version 1 count, those of other controllers' groups do not") {
  const Root root;
  root.write("/proc/self/mountinfo", kVersion1 + "\n" + kVersion2);
  root.write("/proc/self/cgroup", "5:memory:/other\n4:cpu,cpuacct:/batch/job\n0::/");
  root.write("/sys/fs/cgroup/cpu,cpuacct/other/cpu.cfs_quota_us", "100000");
  root.write("/sys/fs/cgroup/cpu,cpuacct/other/cpu.cfs_period_us", "100000");
  root.write("/sys/fs/cgroup/cpu,cpuacct/batch/job/cpu.cfs_quota_us", "-1");
  root.write("/sys/fs/cgroup/cpu,cpuacct/batch/job/cpu.cfs_period_us", "100000");
  CHECK(root.granted() == INT_MAX);
  root.write("/sys/fs/cgroup/cpu,cpuacct/batch/cpu.cfs_quota_us", "150000");
  root.write("/sys/fs/cgroup/cpu,cpuacct/batch/cpu.cfs_period_us", "50000");
  CHECK(root.granted() == 3);
}

}  // namespace
}  // namespace rondo::topology
