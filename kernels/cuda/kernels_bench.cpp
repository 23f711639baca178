// Bytes per second of the kernels on a GPU, beside the device's copy in the same run. Bytes are
// those that a move must read and write: (k + m) * count * size. Not a test: nothing is checked.
//
//    kernels_bench_cuda [--bytes N] [--rounds N] [--json FILE]
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cuda/launch.hpp"

namespace rondo::kernels {
namespace {

constexpr int kBatch = 10;         // operations between two events
constexpr uint32_t kBuffers = 10;  // the maximum that a subject uses

struct Subject {
  DataType type;
  ReduceOp op;
  uint32_t sources, destinations;
  std::vector<double> ratios = {}, gb_per_s = {};
};

void must(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "kernels_bench_cuda: %s: %s\n", what, cudaGetErrorString(code));
  std::exit(1);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Bench {
 public:
  explicit Bench(size_t bytes) : bytes_(bytes) {
    must(cudaEventCreate(&begin_), "cudaEventCreate");
    must(cudaEventCreate(&end_), "cudaEventCreate");
    // Numbers of all sizes: equal ones can be faster than real ones.
    std::vector<uint32_t> numbers(bytes / 4 + 1);
    uint32_t x = 1;
    for (uint32_t& n : numbers) n = (x = x * 1664525 + 1013904223) >> 2;
    for (std::byte*& buffer : buffers_) {
      must(cudaMalloc(reinterpret_cast<void**>(&buffer), bytes), "cudaMalloc");
      must(cudaMemcpy(buffer, numbers.data(), bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    }
  }

  /// GB/s; bytes count each time they are read or written.
  double copy() {
    return timed(2, [&] {
      must(cudaMemcpyAsync(buffers_[1], buffers_[0], bytes_, cudaMemcpyDeviceToDevice, nullptr),
           "cudaMemcpyAsync");
    });
  }
  /// Some 100 ms of copies, in which the clocks rise.
  void warm_up() {
    double ms = 0;
    while (ms < 100) ms += 1e-6 * kBatch * 2 * static_cast<double>(bytes_) / copy();
  }
  double measure(const Subject& subject) {
    const std::byte* sources[kBuffers];
    for (uint32_t s = 0; s < subject.sources; ++s) sources[s] = buffers_[s];
    const bool scales = subject.op == ReduceOp::kMulSum;
    const std::vector<double> factors(subject.sources, 0.5);
    const Move move = {.sources = sources,
                       .destinations = buffers_ + subject.sources,
                       .source_count = subject.sources,
                       .destination_count = subject.destinations,
                       .count = bytes_ / size_of(subject.type),
                       .divisor = subject.op == ReduceOp::kAvg ? subject.sources : 1,
                       .nontemporal = 0,
                       .factors = scales ? factors.data() : nullptr};
    return timed(subject.sources + subject.destinations, [&] {
      const Status status = cuda::launch_move(subject.type, subject.op, move, nullptr);
      if (status.ok()) return;
      std::fprintf(stderr, "kernels_bench_cuda: %s\n", status.to_string().c_str());
      std::exit(1);
    });
  }

 private:
  template <class Body>
  double timed(uint32_t buffers, const Body& body) {
    body();  // the first one may load code
    must(cudaEventRecord(begin_, nullptr), "cudaEventRecord");
    for (int i = 0; i < kBatch; ++i) body();
    must(cudaEventRecord(end_, nullptr), "cudaEventRecord");
    must(cudaEventSynchronize(end_), "cudaEventSynchronize");
    float ms = 0;
    must(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
    return 1e-6 * kBatch * buffers * static_cast<double>(bytes_) / static_cast<double>(ms);
  }

  size_t bytes_;
  std::byte* buffers_[kBuffers] = {};
  cudaEvent_t begin_{}, end_{};
};

std::vector<Subject> subjects() {
  std::vector<Subject> all;
  for (const DataType type : {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16}) {
    for (const auto& [k, m] : {std::pair{1u, 1u}, {2u, 1u}, {2u, 2u}, {4u, 1u}, {8u, 1u}, {8u, 2u}})
      all.push_back({type, ReduceOp::kSum, k, m});
    all.push_back({type, ReduceOp::kMax, 2, 1});
    all.push_back({type, ReduceOp::kAvg, 2, 1});
  }
  for (const DataType type : {DataType::kFloat64, DataType::kFloat8E4M3, DataType::kFloat8E5M2,
                              DataType::kInt32, DataType::kInt8, DataType::kInt64}) {
    all.push_back({type, ReduceOp::kSum, 2, 1});
  }
  all.push_back({DataType::kFloat32, ReduceOp::kMulSum, 2, 1});
  all.push_back({DataType::kInt32, ReduceOp::kAvg, 2, 1});
  return all;
}

void write_json(const char* path, const std::string& device, size_t bytes, double copy,
                const std::vector<Subject>& all) {
  std::FILE* file = std::fopen(path, "w");
  if (file == nullptr) {
    std::fprintf(stderr, "kernels_bench_cuda: cannot write %s\n", path);
    std::exit(1);
  }
  std::fprintf(file, "{\"device\": \"%s\", \"bytes\": %zu, \"copy_gb_per_s\": %.1f, \"results\": [",
               device.c_str(), bytes, copy);
  const char* between = "\n";
  for (const Subject& s : all) {
    std::fprintf(file,
                 "%s  {\"type\": \"%s\", \"redop\": \"%s\", \"sources\": %u, \"destinations\": %u, "
                 "\"gb_per_s\": %.1f, \"of_copy\": %.3f}",
                 between, std::string(name(s.type)).c_str(), std::string(name(s.op)).c_str(),
                 s.sources, s.destinations, median(s.gb_per_s), median(s.ratios));
    between = ",\n";
  }
  std::fprintf(file, "\n]}\n");
  const bool failed = std::ferror(file) != 0;
  if (std::fclose(file) != 0 || failed) {
    std::fprintf(stderr, "kernels_bench_cuda: cannot write %s\n", path);
    std::exit(1);
  }
}

int run(int argc, char** argv) {
  size_t bytes = 256 << 20;
  int rounds = 11;
  const char* json = nullptr;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const bool known = flag == "--bytes" || flag == "--rounds" || flag == "--json";
    if (!known || i + 1 == argc) {
      std::fprintf(stderr, "kernels_bench_cuda [--bytes N] [--rounds N] [--json FILE]\n");
      return flag == "--help" ? 0 : 1;
    }
    const char* value = argv[++i];
    if (flag == "--bytes") bytes = std::strtoull(value, nullptr, 10) / 8 * 8;
    if (flag == "--rounds") rounds = std::atoi(value);
    if (flag == "--json") json = value;
  }
  if (bytes == 0 || rounds < 1) {
    std::fprintf(stderr, "kernels_bench_cuda: --bytes and --rounds are positive numbers\n");
    return 1;
  }
  cudaDeviceProp device{};
  must(cudaGetDeviceProperties(&device, 0), "no CUDA device");

  Bench bench(bytes);
  bench.warm_up();
  std::vector<Subject> all = subjects();
  std::vector<double> copies;
  for (int round = 0; round < rounds; ++round) {
    for (Subject& subject : all) {
      // Measures the copy beside each kernel, because clocks drift.
      copies.push_back(bench.copy());
      subject.gb_per_s.push_back(bench.measure(subject));
      subject.ratios.push_back(subject.gb_per_s.back() / copies.back());
    }
  }
  std::printf("# %s, %zu bytes a buffer; device copy %.1f GB/s, read and written\n", device.name,
              bytes, median(copies));
  std::printf("# %-8s %-7s %7s %12s %9s %8s\n", "type", "redop", "sources", "destinations", "GB/s",
              "of copy");
  for (const Subject& s : all) {
    std::printf("  %-8s %-7s %7u %12u %9.1f %8.3f\n", std::string(name(s.type)).c_str(),
                std::string(name(s.op)).c_str(), s.sources, s.destinations, median(s.gb_per_s),
                median(s.ratios));
  }
  if (json != nullptr) write_json(json, device.name, bytes, median(copies), all);
  return 0;
}

}  // namespace
}  // namespace rondo::kernels

int main(int argc, char** argv) { return rondo::kernels::run(argc, argv); }
