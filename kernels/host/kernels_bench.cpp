// GB/s of the kernels, by instruction set, beside memcpy in the same run. Bytes are those that a
// call must read and write: (k + m) * count * size. Not a test: nothing here is checked.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/host/targets.hpp"

namespace rondo::kernels {
namespace {

struct Free {
  void operator()(std::byte* pointer) const { std::free(pointer); }
};
using Buffer = std::unique_ptr<std::byte, Free>;

Buffer buffer(size_t bytes) {
  const size_t whole_pages = (bytes + 4095) / 4096 * 4096;
  Buffer result(static_cast<std::byte*>(std::aligned_alloc(4096, whole_pages)));
  std::memset(result.get(), 0, whole_pages);
  return result;
}

void report(benchmark::State& state, size_t bytes_per_call) {
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * bytes_per_call));
}

void memcpy_of(benchmark::State& state) {
  const auto bytes = static_cast<size_t>(state.range(0));
  const Buffer from = buffer(bytes), to = buffer(bytes);
  for (auto _ : state) {
    std::memcpy(to.get(), from.get(), bytes);
    benchmark::ClobberMemory();
  }
  report(state, 2 * bytes);
}

void reduce(benchmark::State& state, MoveFunction function, DataType type, uint32_t sources,
            uint32_t destinations, bool nontemporal) {
  const auto bytes = static_cast<size_t>(state.range(0));
  std::vector<Buffer> buffers;
  std::vector<const std::byte*> from;
  std::vector<std::byte*> to;
  for (uint32_t r = 0; r < sources + destinations; ++r) {
    buffers.push_back(buffer(bytes));
    if (r < sources) from.push_back(buffers.back().get());
    if (r >= sources) to.push_back(buffers.back().get());
  }
  const Move move = {.sources = from.data(),
                     .destinations = to.data(),
                     .source_count = sources,
                     .destination_count = destinations,
                     .count = bytes / size_of(type),
                     .divisor = 1,
                     .nontemporal = nontemporal ? destinations : 0};
  for (auto _ : state) {
    function(move);
    benchmark::ClobberMemory();
  }
  report(state, (sources + destinations) * bytes);
}

void register_all() {
  constexpr int64_t kSizes[] = {8, 2048, 32 << 10, 64 << 20};
  for (const int64_t size : kSizes) benchmark::RegisterBenchmark("memcpy", memcpy_of)->Arg(size);
  const auto add = [&](const char* set, DataType type, ReduceOp op, uint32_t k, uint32_t m) {
    for (const bool nontemporal : {false, true}) {
      const std::string label = std::string(set) + "/" + std::string(name(type)) + "/" +
                                std::string(name(op)) + "/" + std::to_string(k) + "to" +
                                std::to_string(m) + (nontemporal ? "/nontemporal" : "");
      for (const int64_t size : kSizes) {
        if (nontemporal && size < (1 << 20)) continue;
        benchmark::RegisterBenchmark(label.c_str(), reduce, move_function_for(set, type, op), type,
                                     k, m, nontemporal)
            ->Arg(size);
      }
    }
  };
  for (const char* set : instruction_sets()) {
    add(set, DataType::kFloat32, ReduceOp::kSum, 2, 1);
    add(set, DataType::kFloat32, ReduceOp::kSum, 2, 2);
    add(set, DataType::kFloat32, ReduceOp::kSum, 4, 1);
    add(set, DataType::kFloat32, ReduceOp::kSum, 1, 1);
    add(set, DataType::kFloat32, ReduceOp::kMax, 2, 1);
    add(set, DataType::kBFloat16, ReduceOp::kSum, 2, 1);
    add(set, DataType::kFloat16, ReduceOp::kSum, 2, 1);
    add(set, DataType::kFloat8E4M3, ReduceOp::kSum, 2, 1);
  }
}

}  // namespace
}  // namespace rondo::kernels

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  rondo::kernels::register_all();
  benchmark::RunSpecifiedBenchmarks();
}
