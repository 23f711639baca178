// What is decided about GPUs, without one: who can be together on a device, how segments are made
// and reached, and that no error path forgets anything.
#include <algorithm>
#include <array>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/harness/catch.hpp"
#include "tests/transport/fake_cuda.hpp"
#include "transport/cuda_ipc/reach.hpp"
#include "transport/cuda_ipc/segments.hpp"

namespace rondo::transport::cuda_ipc {
namespace {

using test::FakeCuda;

DeviceId device_id(int number) {
  DeviceId id{};
  id[0] = static_cast<std::byte>(number + 1);
  return id;
}

std::array<char, 32> bus(int number) { return {static_cast<char>('0' + number)}; }

DevicePlace place(uint64_t process, int number) {
  return {.process = process,
          .device = device_id(number),
          .number = number,
          .multiprocessors = 10,
          .pci_bus = bus(number)};
}

constexpr SegmentSizes kShape = {.ranks = 3,
                                 .channels = 2,
                                 .depth = 4,
                                 .slot_bytes = 256,
                                 .publish_depth = 2,
                                 .publish_slot_bytes = 256};

std::shared_ptr<CudaCalls> borrowed(FakeCuda& cuda) { return {std::shared_ptr<void>(), &cuda}; }

// All ranks' segments, made and connected; the first error, if there is one.
struct Job {
  std::vector<std::unique_ptr<Segments>> segments = {};

  Status open(FakeCuda& cuda, const std::vector<DevicePlace>& places) {
    std::vector<Offer> offers;
    const bool exports = std::any_of(places.begin(), places.end(), [&](const DevicePlace& each) {
      return each.process != places[0].process;
    });
    for (const DevicePlace& each : places) {
      auto made = Segments::create(borrowed(cuda), kShape, each, exports, nullptr);
      RONDO_TRY(made.status());
      offers.push_back((*made)->offer());
      segments.push_back(std::move(*made));
    }
    for (uint32_t r = 0; r < segments.size(); ++r) {
      RONDO_TRY(segments[r]->connect(offers, r));
    }
    return {};
  }
};

}  // namespace

TEST_CASE("Blocks that would wait for each other for ever are refused, with what to do") {
  // 10 multiprocessors: 3 ranks with 3 channels fit, with 4 they do not.
  const std::vector<DevicePlace> together = {place(1, 0), place(1, 0), place(2, 0), place(2, 1)};
  CHECK(check_residency(together, 3, 1).ok());
  CHECK(check_residency(together, 4, 2).ok());
  const Status refused = check_residency(together, 4, 1);
  CHECK(refused.code() == Code::kUnavailable);
  CHECK(refused.message().find("ranks 0, 1, 2 share") != std::string::npos);
  CHECK(refused.message().find("at most 3 channels") != std::string::npos);
  const std::vector<DevicePlace> crowd(11, place(1, 0));
  CHECK(check_residency(crowd, 1, 1).message().find("Use fewer ranks") != std::string::npos);
  CHECK(check_residency({}, 4, 1).ok());
}

TEST_CASE("Blocks of a process's other communicators take places too") {
  // 10 multiprocessors; what a process says of its other communicators counts once, and not
  // elsewhere.
  std::vector<DevicePlace> places = {place(1, 0), place(1, 0), place(2, 0), place(2, 1)};
  places[0].elsewhere = places[1].elsewhere = 4;
  places[3].elsewhere = 8;
  CHECK(check_residency(places, 1, 1).ok());
  CHECK(check_residency(places, 2, 1).ok());
  places[2].elsewhere = 1;
  CHECK(check_residency(places, 2, 1).message().find("other communicators may take 5") !=
        std::string::npos);
  places[2].elsewhere = 5;  // of 9 for 3 ranks
  CHECK(check_residency(places, 1, 1).message().find("Destroy a communicator first") !=
        std::string::npos);
  places[2].elsewhere = 1;
  CHECK(modest_channels(places, 1, 8) == 1);
  CHECK(modest_channels(places, 8, 8) == 6);  // a quarter of 75 is for three ranks
  CHECK(modest_channels(places, 80, 8) == 8);
}

TEST_CASE("Sharing a GPU while another is idle is worth a word") {
  const std::vector<DeviceId> devices = {device_id(0), device_id(1), device_id(2)};
  const std::vector<DevicePlace> shared = {place(1, 0), place(2, 2), place(3, 2)};
  const std::string warning = sharing_warning(shared, devices);
  CHECK(warning.find("ranks 1, 2 share") != std::string::npos);
  CHECK(warning.find("GPU 1 has no rank") != std::string::npos);
  CHECK(sharing_warning({{place(1, 0), place(2, 1)}}, devices).empty());
  const std::vector<DevicePlace> full = {place(1, 0), place(2, 1), place(3, 2), place(4, 2)};
  CHECK(sharing_warning(full, devices).empty());
}

TEST_CASE("Threads of a process reach each other's segments as they are") {
  FakeCuda cuda;
  {
    Job job;
    REQUIRE(job.open(cuda, {place(1, 0), place(1, 0), place(1, 0)}).ok());
    for (uint32_t r = 0; r < 3; ++r) {
      for (uint32_t p = 0; p < 3; ++p) {
        CHECK(job.segments[r]->bases()[p] == job.segments[p]->offer().address);
      }
      const std::byte* segment = job.segments[r]->offer().address;
      const size_t bytes = SegmentLayout(kShape).bytes();
      CHECK(std::count(segment, segment + bytes, std::byte{0}) == static_cast<ptrdiff_t>(bytes));
      CHECK_FALSE(job.segments[r]->offer().exported);
    }
    CHECK(cuda.enabled.empty());
  }
  CHECK(cuda.alive() == 0);
}

// A process's last rank frees them, when the rank that made them has gone.
TEST_CASE("Segments keep the calls by which they free their memory") {
  auto cuda = std::make_shared<FakeCuda>();
  const std::weak_ptr<FakeCuda> seen = cuda;
  auto made = Segments::create(std::move(cuda), kShape, place(1, 0), false, nullptr);
  REQUIRE(made.ok());
  CHECK_FALSE(seen.expired());
  made->reset();
  CHECK(seen.expired());
}

TEST_CASE("GPUs of a process need peer access, and get it") {
  FakeCuda cuda;
  cuda.peers = {{0, 1}, {1, 0}};
  {
    Job job;
    REQUIRE(job.open(cuda, {place(1, 0), place(1, 1), place(1, 1)}).ok());
    CHECK(cuda.enabled == std::set<int>{0, 1});
  }
  cuda.peers = {{0, 1}};
  {
    Job job;
    const Status refused = job.open(cuda, {place(1, 0), place(1, 1), place(1, 1)});
    CHECK(refused.code() == Code::kUnavailable);
    CHECK(refused.message().find("GPU 1 cannot access GPU 0, that of rank 0") != std::string::npos);
  }
  CHECK(cuda.alive() == 0);
}

TEST_CASE("The slowest way between two GPUs is found") {
  FakeCuda cuda;
  cuda.devices.assign(4, {});
  for (int d = 0; d < 4; ++d) {
    cuda.devices[static_cast<size_t>(d)].uuid = device_id(d);
    cuda.devices[static_cast<size_t>(d)].pci_bus = bus(d);
    for (int p = 0; p < 3; ++p) cuda.peers.insert({d, p});
  }
  cuda.nvlinks = {{"0", "1"}, {"1", "0"}, {"0", "8"}};
  const auto slowest = [&](const std::vector<int>& devices) {
    std::vector<DevicePlace> places;
    for (const int device : devices) places.push_back(place(1, device));
    auto found = slowest_reach(cuda, places[0], places);
    REQUIRE(found.ok());
    return *found;
  };
  CHECK(slowest({0, 0}) == Reach::kSameGpu);
  CHECK(slowest({0, 0, 1}) == Reach::kNvlink);
  CHECK(slowest({0, 1, 2}) == Reach::kPeer);
  CHECK(slowest({0, 1, 2, 3}) == Reach::kHost);
  CHECK(slowest({3, 0}) == Reach::kPeer);  // the other direction is the other rank's to find
  CHECK(slowest({0, 9}) == Reach::kPeer);  // GPUs that only the other process sees
  CHECK(slowest({0, 8}) == Reach::kNvlink);
}

TEST_CASE("Processes import each other's segments, and let go of them") {
  FakeCuda cuda;
  {
    Job job;
    REQUIRE(job.open(cuda, {place(1, 0), place(2, 0), place(3, 1)}).ok());
    CHECK(cuda.alive() == 3 + 6);  // segments, and each two imported ones
    CHECK(job.segments[0]->offer().exported);
    for (const auto& each : job.segments) each->let_go();
    CHECK(cuda.alive() == 3);
  }
  CHECK(cuda.alive() == 0);
  CHECK(cuda.freed_while_imported == 0);
}

TEST_CASE("Whichever call fails, the error is told and nothing is left behind") {
  const std::vector<DevicePlace> places = {place(1, 0), place(1, 1), place(2, 0)};
  int calls = 0;
  {
    FakeCuda cuda;
    cuda.peers = {{0, 1}, {1, 0}};
    Job job;
    REQUIRE(job.open(cuda, places).ok());
    calls = cuda.calls;
  }
  REQUIRE(calls > 15);
  for (int fail_at = 0; fail_at < calls; ++fail_at) {
    FakeCuda cuda;
    cuda.peers = {{0, 1}, {1, 0}};
    cuda.fail_at = fail_at;
    {
      Job job;
      const Status status = job.open(cuda, places);
      INFO("call " << fail_at << ": " << status.to_string());
      CHECK(status.code() == Code::kSystem);
      CHECK(status.message().find("was told to fail") != std::string::npos);
    }
    CHECK(cuda.alive() == 0);
  }
}

}  // namespace rondo::transport::cuda_ipc
