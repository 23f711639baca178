// The kernels on a GPU equal the scalar reference in every bit, any NaN counting as equal to any
// other, and touch nothing else. share_test shows the same of the same code without a GPU; what is
// left for this one is the compiler, the launch, and fp16's instructions.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/cuda/launch.hpp"
#include "tests/harness/catch.hpp"
#include "tests/kernels/arena.hpp"

namespace rondo::kernels {
namespace {

using namespace test;

void must(cudaError_t code) {
  if (code != cudaSuccess) FAIL(cudaGetErrorString(code));
}
void must(const Status& status) {
  if (!status.ok()) FAIL(status.to_string());
}

/// Device memory, 256-aligned.
class DeviceMemory {
 public:
  explicit DeviceMemory(size_t bytes) { must(cudaMalloc(&memory_, bytes)); }
  ~DeviceMemory() { cudaFree(memory_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  std::byte* get() const { return static_cast<std::byte*>(memory_); }

 private:
  void* memory_ = nullptr;
};

void check_on_device(const Case& c, const std::vector<std::byte>& values, int blocks) {
  Arena expected(c, values), actual(c, values);
  expected.run(scalar_move_function(c.type, c.op));
  const auto bytes = actual.bytes();
  static const DeviceMemory memory(64 << 20);
  REQUIRE(bytes.size() <= 64 << 20);
  must(cudaMemcpy(memory.get(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
  actual.run_at(memory.get(), [&](const Move& move) {
    const Status status = cuda::launch_move(c.type, c.op, move, nullptr, blocks);
    if (!status.ok()) FAIL(describe(c) << ": " << status.to_string());
  });
  must(cudaMemcpy(bytes.data(), memory.get(), bytes.size(), cudaMemcpyDeviceToHost));
  const ptrdiff_t at = actual.difference(expected);
  if (at >= 0) FAIL(describe(c) << " blocks " << blocks << ": differs at byte " << at);
  SUCCEED();  // counted
}

TEST_CASE("Device kernels equal the reference in all shapes, in place on every source") {
  for_each_shape(
      {1, 2, 3, 4, 5, 6, 7, 8, 9},
      [](const Case& c, const std::vector<std::byte>& values) { check_on_device(c, values, 1); });
}

TEST_CASE("Device kernels equal the reference at every edge of count and alignment") {
  for_each_edge([](const Case& c, const std::vector<std::byte>& values) {
    check_on_device(c, values, c.sources == 1 ? 1 : c.sources == 2 ? 3 : 0);
  });
}

// A block takes up to 64 KiB of each source at a time: several times, and a rest. The reference is
// what takes its time here.
TEST_CASE("Device kernels equal the reference in several rounds of whole vectors") {
  for_each_kernel([](DataType type, ReduceOp op, const std::vector<std::byte>& values) {
    const size_t count = (size_t{208} << 10) / size_of(type) + 5;
    for (const Placement placement : {Placement::kTogether, Placement::kApart}) {
      check_on_device({type, op, 1, 2, 0, count, placement, 0}, values, 1);
      check_on_device({type, op, 3, 2, 1, count, placement, 0}, values, 1);
      check_on_device({type, op, 2, 1, -1, count, placement, 0}, values, 3);
    }
  });
}

// Few enough for compute-sanitizer, which scripts/gpu-check runs them under.
TEST_CASE("Device kernels equal the reference in a few moves of each") {
  for_each_kernel([](DataType type, ReduceOp op, const std::vector<std::byte>& values) {
    for (const Placement placement : kPlacements) {
      check_on_device({type, op, 3, 2, 1, 997, placement, 0}, values, 2);
    }
    const size_t count = (size_t{66} << 10) / size_of(type) + 1;
    check_on_device({type, op, 2, 1, -1, count, Placement::kAligned, 0}, values, 1);
  });
}

TEST_CASE("Device kernels equal the reference in scaled and divided sums") {
  for_each_rare_sum(
      [](const Case& c, const std::vector<std::byte>& values) { check_on_device(c, values, 2); });
}

TEST_CASE("Device kernels round small floats as the reference does, for every pattern") {
  for_each_pattern(
      {DataType::kFloat16, DataType::kBFloat16, DataType::kFloat8E4M3, DataType::kFloat8E5M2},
      [](DataType type, ReduceOp op, const SmallOperands& operands) {
        const size_t bytes = operands.first.size();
        const DeviceMemory memory(3 * bytes);
        std::byte* const device = memory.get();
        must(cudaMemcpy(device, operands.first.data(), bytes, cudaMemcpyHostToDevice));
        must(cudaMemcpy(device + bytes, operands.second.data(), bytes, cudaMemcpyHostToDevice));
        const auto actual = operands.fold(type, op, [&](Move move) {
          std::byte* const result = move.destinations[0];
          const std::byte* sources[] = {device, device + bytes};
          std::byte* destinations[] = {device + 2 * bytes};
          move.sources = sources;
          move.destinations = destinations;
          must(cuda::launch_move(type, op, move, nullptr));
          must(cudaMemcpy(result, destinations[0], bytes, cudaMemcpyDeviceToHost));
        });
        const auto expected = operands.fold(type, op, scalar_move_function(type, op));
        INFO(name(type) << " " << name(op) << " with pattern " << int(operands.second[0]));
        CHECK(wrong_elements(type, actual, expected) == 0);
      });
}

TEST_CASE("What cannot be launched is refused") {
  const DeviceMemory memory(64);
  const std::byte* sources[] = {memory.get()};
  std::byte* destinations[] = {memory.get()};
  Move move = {.sources = sources,
               .destinations = destinations,
               .source_count = cuda::kMaxOperands + 1,
               .destination_count = 1,
               .count = 1,
               .divisor = 1,
               .nontemporal = 0};
  CHECK(cuda::launch_move(DataType::kFloat32, ReduceOp::kSum, move, nullptr).code() ==
        Code::kInvalidArgument);
  move.source_count = 1;
  CHECK(cuda::launch_move(DataType::kFloat32, ReduceOp::kBand, move, nullptr).code() ==
        Code::kInvalidArgument);
  move.count = 0;
  CHECK(cuda::launch_move(DataType::kFloat32, ReduceOp::kSum, move, nullptr).ok());
}

}  // namespace
}  // namespace rondo::kernels
