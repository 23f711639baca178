// The device engine's kernel on a GPU: ranks as streams of one device, every collective by every
// algorithm. The host's walk (device_walk_test) shows that programs, counters and layout are right;
// left for this one are the compiler, the memory model, and that kernels of several ranks run
// together. Nothing here waits without a limit.
#include <vector>

#include "tests/comm/device/cuda/gpu_world.hpp"
#include "tests/comm/device/device_messages.hpp"
#include "tests/comm/engine/typed_calls.hpp"

namespace rondo::engine {
namespace {

using namespace test;

std::vector<std::vector<Launch>> launches_of(std::vector<Call>& calls) {
  std::vector<std::vector<Launch>> launches;
  for (Call& call : calls) launches.push_back(test::launches_of(call, kLimitNs));
  return launches;
}

// All of them one after the other in one world. `replays`: as a graph.
void check_typed(GpuWorld& world, uint32_t ranks, const std::vector<TypedCase>& cases,
                 int replays = 0) {
  std::vector<TypedCall> calls;
  std::vector<std::vector<Launch>> launches;
  calls.reserve(cases.size());
  for (const TypedCase& c : cases) {
    calls.emplace_back(c, ranks);
    launches.push_back(calls.back().launches());
  }
  world.walk(launches, all_ranks(ranks), replays);
  CHECK(world.all_well());
  for (size_t i = 0; i < calls.size(); ++i) {
    INFO(ranks << " ranks, operation " << i << ": " << describe(cases[i]));
    CHECK(calls[i].right());
  }
}

transport::cuda_ipc::SegmentSizes with_ll(transport::cuda_ipc::SegmentSizes shape,
                                          size_t ll_bytes) {
  shape.ll_bytes = ll_bytes;
  return shape;
}

TEST_CASE("On a device, ranks do every collective by every algorithm, one after the other") {
  for (const uint32_t ranks : {1u, 2u, 3u, 5u, 8u}) {
    DYNAMIC_SECTION(ranks << " ranks") {
      GpuWorld world(shape_of(ranks));
      std::vector<Call> calls = everything(ranks, {0, 1, 7, 200});
      world.walk(launches_of(calls), all_ranks(ranks));
      CHECK(world.all_well());
      check_results(calls);
    }
  }
}

constexpr schedule::Limits kLarge = {
    .element_bytes = 8, .slot_bytes = 256 << 10, .depth = 8, .channels = 8};

TEST_CASE("On a device, large slots and many channels") {
  for (const Algorithm algorithm :
       {Algorithm::kRing, Algorithm::kTwoShot, Algorithm::kOneShot, Algorithm::kTwoShotDirect}) {
    DYNAMIC_SECTION(name(algorithm)) {
      GpuWorld world(shape_of(4, kLarge), size_t{1} << 30);
      std::vector<Call> calls;
      for (const uint64_t count : {uint64_t{100'003}, uint64_t{1} << 20}) {
        calls.push_back(call_of({.collective = Collective::kAllReduce,
                                 .algorithm = algorithm,
                                 .ranks = 4,
                                 .count = count},
                                kLarge));
      }
      world.walk(launches_of(calls), all_ranks(4));
      CHECK(world.all_well());
      check_results(calls);
    }
  }
}

TEST_CASE("On a device, every type and operator gives the host's bits, from any address") {
  for (const uint32_t ranks : {2u, 3u, 8u}) {
    DYNAMIC_SECTION(ranks << " ranks") {
      GpuWorld world(with_ll(shape_of(ranks), kAreaBytes));
      check_typed(world, ranks, every_kernel(Algorithm::kOneShot, Protocol::kLl, 2 * kAreaBytes));
      for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot,
                                        Algorithm::kOneShotDirect, Algorithm::kTwoShotDirect}) {
        check_typed(world, ranks, every_kernel(algorithm, Protocol::kSimple, 300));
      }
    }
  }
}

// Several slices of 1 MiB for each of two channels; whole vectors, and narrower ones.
TEST_CASE("On a device, large direct sums give the host's bits") {
  for (const uint32_t ranks : {2u, 5u}) {
    schedule::Limits two = kLarge;
    two.channels = 2;
    std::vector<TypedCase> cases;
    for (const Algorithm algorithm : {Algorithm::kOneShotDirect, Algorithm::kTwoShotDirect}) {
      for (const DataType type : {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat8E4M3}) {
        for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMulSum}) {
          for (const size_t shift : {0, 4}) {
            cases.push_back({.algorithm = algorithm,
                             .protocol = Protocol::kSimple,
                             .type = type,
                             .op = op,
                             .count = (size_t{12} << 20) / size_of(type) + 3,
                             .shift = shift,
                             .seed = cases.size(),
                             .limits = two});
          }
        }
      }
    }
    for (const TypedCase& one : cases) {  // one at a time, for the memory
      GpuWorld world(shape_of(ranks, two));
      check_typed(world, ranks, {one});
    }
  }
}

TEST_CASE("On a device, many operations by LL do not overtake each other") {
  for (const uint32_t ranks : {2u, 3u, 8u}) {
    GpuWorld world(with_ll(shape_of(ranks), 4096));
    std::vector<TypedCase> cases;
    for (size_t i = 0; i < 300; ++i) {
      cases.push_back({.collective = i % 5 == 3 ? Collective::kAllGather : Collective::kAllReduce,
                       .type = DataType::kFloat32,
                       .count = 1 + i * 37 % 1024,
                       .shift = i % 4 * 4,
                       .seed = i,
                       .area_bytes = 4096});
    }
    check_typed(world, ranks, cases);
  }
}

TEST_CASE("On a device, a replayed graph is new operations") {
  for (const uint32_t ranks : {2u, 4u}) {
    GpuWorld world(with_ll(shape_of(ranks), 4096));
    std::vector<TypedCase> cases;
    for (size_t i = 0; i < 20; ++i) {
      const bool by_ll = i % 4 != 3;
      cases.push_back({.algorithm = i % 8 == 7 ? Algorithm::kTwoShotDirect : Algorithm::kOneShot,
                       .protocol = by_ll ? Protocol::kLl : Protocol::kSimple,
                       .type = DataType::kFloat32,
                       .count = 500,
                       .seed = i,
                       .area_bytes = 4096});
    }
    check_typed(world, ranks, cases, 100);
  }
}

TEST_CASE("On a device, a rank that never comes is named when the limit has passed") {
  for (const Protocol protocol : {Protocol::kSimple, Protocol::kLl}) {
    GpuWorld world(with_ll(shape_of(2), kAreaBytes));
    TypedCall call({.protocol = protocol, .count = 90, .limit_ns = 200'000'000}, 2);
    world.walk({call.launches()}, {0});
    check_names_rank_1(world);
  }
}

TEST_CASE("On a device, who waits sees the host's abort") {
  for (const Protocol protocol : {Protocol::kSimple, Protocol::kLl}) {
    GpuWorld world(with_ll(shape_of(2), kAreaBytes));
    TypedCall call({.protocol = protocol, .count = 90}, 2);
    world.abort();
    world.walk({call.launches()}, {0});
    for (uint32_t c = 0; c < 2; ++c) CHECK(world.report(0, c).ended == DeviceReport::kAborted);
  }
}

TEST_CASE("On a device, ranks that disagree notice it, and nobody hangs") {
  for (const Protocol protocol : {Protocol::kSimple, Protocol::kLl}) {
    GpuWorld world(with_ll(shape_of(2), kAreaBytes));
    TypedCall call({.protocol = protocol, .count = 90}, 2);
    std::vector<Launch> launches = call.launches();
    launches[1].operation.fingerprint = 2;
    world.walk({launches}, {0, 1});
    check_disagreement(world);
  }
}

void exchange(uint32_t ranks) {
  GpuWorld world(message_shape(ranks));
  std::vector<Letters> letters;
  std::vector<uint16_t*> in;
  std::vector<DeviceGroup> groups;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    letters.emplace_back(rank, ranks);
    Letters& own = letters.back();
    uint16_t* const out = world.pool().upload(std::span<const uint16_t>(own.out()));
    in.push_back(world.pool().upload(std::span<const uint16_t>(own.in())));
    groups.push_back(own.group(kLimitNs, out, in.back()));
  }
  world.walk(groups, 2);
  CHECK(world.all_well());
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    const std::span<std::byte> host = std::as_writable_bytes(std::span(letters[rank].in()));
    must(cuda().copy(host.data(), reinterpret_cast<std::byte*>(in[rank]), host.size(), nullptr));
    must(cuda().synchronize(nullptr));
    CHECK(letters[rank].all_have_come());
  }
}

TEST_CASE("On a device, messages of all pairs at once reach their counterparts") {
  for (const uint32_t ranks : {2U, 4U}) {
    DYNAMIC_SECTION(ranks << " ranks") { exchange(ranks); }
  }
}

TEST_CASE("On a device, messages to oneself arrive") { exchange(1); }

}  // namespace
}  // namespace rondo::engine
