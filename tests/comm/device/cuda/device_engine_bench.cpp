// How fast the device engine's kernel carries an all-reduce of floats out, ranks as streams of one
// GPU: against the time in which the device copies as many bytes as the algorithm reads and writes,
// and as a graph of 20 operations for each rank, replayed together. Small messages by LL, too, and
// as many launches with no operation in them, which is the floor. Results are checked. Not a test:
// no time is asserted.
//
// Channels, which are blocks and so multiprocessors: what the device has, shared among the ranks
// and a few left free. By LL as many as there are 2 KiB of data.
//
//   device_engine_bench [--channels N] [--slot-bytes N] [--depth N] [--largest BYTES] [--json FILE]
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/base/limits.hpp"
#include "comm/device/cuda_engine.hpp"
#include "tests/comm/schedule/operations.hpp"

namespace rondo::engine {
namespace {

constexpr int kGraphOperations = 20;
constexpr int kRounds = 11;

struct Options {
  int channels = 0;  // of each rank; 0: the device's multiprocessors shared
  size_t slot_bytes = 128 << 10;
  uint32_t depth = 8;
  uint64_t largest = uint64_t{1} << 30;
  const char* json = nullptr;
};

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "device_engine_bench: %s\n", what.c_str());
  std::exit(1);
}
void must(cudaError_t code, const char* what) {
  if (code != cudaSuccess) fail(std::string(what) + ": " + cudaGetErrorString(code));
}

/// Device memory of one case, freed with it.
class Memory {
 public:
  Memory() = default;
  ~Memory() {
    for (void* piece : pieces_) cudaFree(piece);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::byte* take(size_t bytes) {
    void* piece = nullptr;
    must(cudaMalloc(&piece, std::max<size_t>(bytes, 1)), "cudaMalloc");
    pieces_.push_back(piece);
    must(cudaMemset(piece, 0, std::max<size_t>(bytes, 1)), "cudaMemset");
    return static_cast<std::byte*>(piece);
  }
  /// `count` times the same, copied on the device: the host would take seconds for a gigabyte.
  std::byte* take_filled(uint64_t count, float value) {
    const uint64_t some = std::min<uint64_t>(count, 1 << 18);
    const std::vector<float> values(some, value);
    std::byte* const piece = take(count * sizeof(float));
    must(cudaMemcpy(piece, values.data(), some * sizeof(float), cudaMemcpyHostToDevice),
         "cudaMemcpy");
    for (uint64_t done = some; done < count; done *= 2) {
      must(cudaMemcpy(piece + done * sizeof(float), piece,
                      std::min(done, count - done) * sizeof(float), cudaMemcpyDeviceToDevice),
           "cudaMemcpy");
    }
    return piece;
  }
  template <class T>
  T* upload(const std::vector<T>& values) {
    std::byte* piece = take(values.size() * sizeof(T));
    must(cudaMemcpy(piece, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
         "cudaMemcpy");
    return reinterpret_cast<T*>(piece);
  }

 private:
  std::vector<void*> pieces_;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Timer {
 public:
  Timer() {
    must(cudaEventCreate(&begin_), "cudaEventCreate");
    must(cudaEventCreate(&end_), "cudaEventCreate");
  }
  template <class Body>
  double us(cudaStream_t stream, const Body& body) {
    must(cudaEventRecord(begin_, stream), "cudaEventRecord");
    body();
    must(cudaEventRecord(end_, stream), "cudaEventRecord");
    must(cudaEventSynchronize(end_), "cudaEventSynchronize");
    float ms = 0;
    must(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
    return 1000.0 * static_cast<double>(ms);
  }

 private:
  cudaEvent_t begin_{}, end_{};
};

/// internal::Holds streams until something is enqueued on all of them. Without it the time would be that in
/// which the host enqueues for one rank after another. It opens by itself after two seconds, in case
/// CUDA waits for a stream while it enqueues.
class Gate {
 public:
  Gate() {
    must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    must(cudaEventCreateWithFlags(&opened_, cudaEventDisableTiming), "cudaEventCreate");
  }
  ~Gate() {
    open();
    cudaStreamSynchronize(stream_);
    cudaEventDestroy(opened_);
    cudaStreamDestroy(stream_);
  }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  void close(const std::vector<cudaStream_t>& streams) {
    must(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    is_open_ = false;
    must(cudaLaunchHostFunc(stream_, wait, this), "cudaLaunchHostFunc");
    must(cudaEventRecord(opened_, stream_), "cudaEventRecord");
    for (const cudaStream_t stream : streams) {
      must(cudaStreamWaitEvent(stream, opened_, 0), "cudaStreamWaitEvent");
    }
  }
  void open() { is_open_ = true; }

 private:
  static void wait(void* gate) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point limit = Clock::now() + std::chrono::seconds(2);
    while (!static_cast<Gate*>(gate)->is_open_ && Clock::now() < limit) std::this_thread::yield();
  }
  cudaStream_t stream_{};
  cudaEvent_t opened_{};
  std::atomic<bool> is_open_{true};
};

constexpr size_t kLlBytes = 4096;    // of a channel
constexpr size_t kLlChannel = 2048;  // so much for each, before another one is worth its launch

/// Launches of all ranks with no operation in them.
struct Floor {
  int ranks, channels;
  double us;  // a launch of each rank
};

struct Row {
  int ranks, channels;
  Protocol protocol;
  Algorithm algorithm;
  uint64_t bytes;
  double us, bound_us;  // an operation of a graph; copying what the algorithm moves
  bool right;
};

/// Bytes that all ranks together read and write.
double bytes_moved(const schedule::LoweredOperation& operation) {
  double elements = 0;
  for (const schedule::Program& program : operation.programs) {
    for (const schedule::Instruction& i : program.instructions) {
      if (i.action != schedule::Action::kMove) continue;
      elements += static_cast<double>(i.length) * (i.sources + i.destinations);
    }
  }
  return elements * sizeof(float);
}

class Case {
 public:
  Case(const Options& options, int ranks, Algorithm algorithm, Protocol protocol, uint64_t bytes)
      : ranks_(ranks), count_(bytes / sizeof(float)) {
    const bool by_ll = protocol == Protocol::kLl;
    schedule::Limits limits = {.element_bytes = sizeof(float),
                               .slot_bytes = options.slot_bytes,
                               .depth = options.depth,
                               .channels = options.channels};
    if (by_ll) {
      const auto channels = static_cast<int>((bytes + kLlChannel - 1) / kLlChannel);
      limits = ll_limits(sizeof(float), std::min(options.channels, channels), kLlBytes);
    }
    auto made = schedule::test::make_operation({.collective = Collective::kAllReduce,
                                                .algorithm = algorithm,
                                                .ranks = ranks,
                                                .count = count_},
                                               limits);
    if (!made.ok()) fail(made.status().to_string());
    operation_ = std::move(*made);
    // Channels without elements have nothing to do, but for signals: all are launched.
    blocks_ = static_cast<int>(operation_.programs[0].channels.size());
    if (by_ll) threads_ = kLlWalkThreads;
    const bool direct = algorithms::traits_of(algorithm).needs.references;
    if (by_ll && !fits_ll(operation_.programs[0], sizeof(float), kLlBytes)) {
      fail("too much for LL");
    }
    shape_ = {.ranks = static_cast<uint32_t>(ranks),
              .channels = static_cast<uint32_t>(limits.channels),
              .depth = options.depth,
              .slot_bytes = direct || by_ll ? 0 : options.slot_bytes,
              .publish_depth =
                  algorithms::traits_of(algorithm).needs.publish && !by_ll ? options.depth : 0,
              .publish_slot_bytes = options.slot_bytes,
              .ll_bytes = by_ll ? kLlBytes : 0};
    std::vector<std::byte*> segments;
    for (int r = 0; r < ranks; ++r) {
      segments.push_back(memory_.take(transport::cuda_ipc::SegmentLayout(shape_).bytes()));
      must(cudaStreamCreateWithFlags(&streams_.emplace_back(), cudaStreamNonBlocking),
           "cudaStreamCreate");
    }
    auto* reports = reinterpret_cast<DeviceReport*>(
        memory_.take(size_t{kMaxDeviceRanks} * shape_.channels * sizeof(DeviceReport)));
    const auto* abort = reinterpret_cast<const uint64_t*>(memory_.take(8));
    for (int r = 0; r < ranks; ++r) {
      const auto rank = static_cast<uint32_t>(r);
      links_.push_back({.shape = shape_,
                        .rank = rank,
                        .one_gpu = true,
                        .host_abort = abort,
                        .reports = reports + rank * shape_.channels,
                        .segments = {}});
      std::copy(segments.begin(), segments.end(), links_.back().segments);
      const schedule::Program& program = operation_.programs[rank];
      operations_.push_back(
          {.program = {.instructions = memory_.upload(program.instructions),
                       .operands = memory_.upload(program.operands),
                       .instruction_count = static_cast<uint32_t>(program.instructions.size()),
                       .operand_count = static_cast<uint32_t>(program.operands.size())},
           .geometries = memory_.upload(program.channels),
           .in = memory_.take_filled(count_, static_cast<float>(r + 1)),
           .out = memory_.take(bytes),
           .type = DataType::kFloat32,
           .op = ReduceOp::kSum,
           .protocol = protocol,
           .direct = direct,
           .divisor = 1,
           .scaled = false,
           .factor = 1,
           .fingerprint = 1,
           .limit_ns = 5'000'000'000,
           .channels = static_cast<uint32_t>(blocks_)});
    }
    must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  ~Case() {
    for (const cudaStream_t stream : streams_) cudaStreamDestroy(stream);
  }
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;

  /// Of one operation, in replays of graphs.
  double measure(Timer& timer, Gate& gate) {
    const int operations = count_ * sizeof(float) > (16 << 20) ? 4 : kGraphOperations;
    return measure(timer, gate, operations, 1);
  }
  /// The same without operations.
  double measure_floor(Timer& timer, Gate& gate) {
    return measure(timer, gate, kGraphOperations, 0);
  }

  /// Large results by their beginning, middle and end: whole ones would take longer to copy to the
  /// host than all measurements. Tests compare every element.
  bool right() {
    const size_t piece = std::min<size_t>(count_, size_t{1} << 20);
    std::vector<float> result(piece);
    const auto expected = static_cast<float>(ranks_ * (ranks_ + 1) / 2);
    for (const DeviceOperation& operation : operations_) {
      for (const size_t begin : {size_t{0}, (count_ - piece) / 2, count_ - piece}) {
        must(cudaMemcpy(result.data(), operation.out + begin * sizeof(float), piece * sizeof(float),
                        cudaMemcpyDeviceToHost),
             "cudaMemcpy");
        if (std::count(result.begin(), result.end(), expected) != std::ssize(result)) return false;
      }
    }
    return true;
  }
  /// Operations that begin after a failure end at once, and would be counted as fast ones.
  bool all_ended_well() const {
    std::vector<DeviceReport> reports(links_.size() * shape_.channels);
    must(cudaMemcpy(reports.data(), links_[0].reports, reports.size() * sizeof(DeviceReport),
                    cudaMemcpyDeviceToHost),
         "cudaMemcpy");
    for (size_t i = 0; i < reports.size(); ++i) {
      const DeviceReport& report = reports[i];
      if (report.ended == DeviceReport::kNot) continue;
      std::printf("# rank %zu, channel %zu gave up (%d): waited for %d of rank %d in step %u\n",
                  i / shape_.channels, i % shape_.channels, static_cast<int>(report.ended),
                  static_cast<int>(report.awaited), report.peer, report.step);
      return false;
    }
    return true;
  }
  int channels() const { return blocks_; }
  double moved() const { return bytes_moved(operation_); }

 private:
  void launch(size_t rank, uint32_t operation_count) {
    DeviceGroup group{};
    group.operation_count = operation_count;
    group.operations[0] = operations_[rank];
    void* arguments[] = {&links_[rank], &group};
    must(cudaLaunchKernel(threads_ == kLlWalkThreads ? walk_ll_kernel() : walk_kernel(),
                          dim3(static_cast<unsigned>(blocks_)),
                          dim3(static_cast<unsigned>(threads_)), arguments, 0, streams_[rank]),
         "cudaLaunchKernel");
  }

  /// `launches` of a rank in a row. Each rank has a graph of its own: nothing says that branches of
  /// one graph run side by side.
  cudaGraphExec_t capture(size_t rank, int launches, uint32_t operation_count) {
    must(cudaStreamBeginCapture(streams_[rank], cudaStreamCaptureModeThreadLocal), "capture");
    for (int i = 0; i < launches; ++i) launch(rank, operation_count);
    cudaGraph_t graph{};
    must(cudaStreamEndCapture(streams_[rank], &graph), "cudaStreamEndCapture");
    cudaGraphExec_t replayable{};
    must(cudaGraphInstantiate(&replayable, graph, 0), "cudaGraphInstantiate");
    must(cudaGraphDestroy(graph), "cudaGraphDestroy");
    must(cudaGraphUpload(replayable, streams_[rank]), "cudaGraphUpload");
    return replayable;
  }

  double measure(Timer& timer, Gate& gate, int launches, uint32_t operation_count) {
    std::vector<cudaGraphExec_t> graphs;
    std::vector<cudaEvent_t> ends(streams_.size());
    for (size_t r = 0; r < streams_.size(); ++r) {
      graphs.push_back(capture(r, launches, operation_count));
      must(cudaEventCreateWithFlags(&ends[r], cudaEventDisableTiming), "cudaEventCreate");
    }
    must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    std::vector<double> times;
    for (int round = 0; round <= kRounds; ++round) {
      if (round > 0) gate.close(streams_);  // not at first: it may load or allocate something
      const double us = timer.us(streams_[0], [&] {
        for (size_t r = 0; r < streams_.size(); ++r) {
          must(cudaGraphLaunch(graphs[r], streams_[r]), "cudaGraphLaunch");
        }
        for (size_t r = 1; r < streams_.size(); ++r) {
          must(cudaEventRecord(ends[r], streams_[r]), "cudaEventRecord");
          must(cudaStreamWaitEvent(streams_[0], ends[r], 0), "cudaStreamWaitEvent");
        }
        gate.open();
      });
      if (round > 0) times.push_back(us / launches);
    }
    for (const cudaEvent_t end : ends) cudaEventDestroy(end);
    for (const cudaGraphExec_t graph : graphs) {
      must(cudaGraphExecDestroy(graph), "cudaGraphExecDestroy");
    }
    return median(times);
  }

  int ranks_;
  uint64_t count_;
  int blocks_ = 0, threads_ = kWalkThreads;
  schedule::LoweredOperation operation_{};
  transport::cuda_ipc::SegmentSizes shape_;
  Memory memory_;
  std::vector<cudaStream_t> streams_;
  std::vector<DeviceLinks> links_;
  std::vector<DeviceOperation> operations_;
};

/// GB/s, bytes counted as often as they are read or written.
double copy_rate(Timer& timer) {
  constexpr size_t kBytes = 256 << 20;
  constexpr double kWarmUpUs = 100'000;  // until the clocks have risen
  Memory memory;
  std::byte* const a = memory.take(kBytes);
  std::byte* const b = memory.take(kBytes);
  const auto copy = [&] {
    return timer.us(nullptr, [&] {
      must(cudaMemcpyAsync(b, a, kBytes, cudaMemcpyDeviceToDevice, nullptr), "cudaMemcpyAsync");
    });
  };
  for (double spent = 0; spent < kWarmUpUs;) spent += copy();
  std::vector<double> times;
  for (int round = 0; round <= kRounds; ++round) times.push_back(copy());
  return 2e-3 * kBytes / median(times);
}

void write_json(const char* path, double copy, const Options& options,
                const std::vector<Floor>& floors, const std::vector<Row>& rows) {
  std::FILE* file = std::fopen(path, "w");
  if (file == nullptr) fail(std::string("cannot write ") + path);
  std::fprintf(file, "{\"copy_gb_per_s\": %.1f, \"slot_bytes\": %zu, \"depth\": %u, \"floors\": [",
               copy, options.slot_bytes, options.depth);
  for (size_t i = 0; i < floors.size(); ++i) {
    std::fprintf(file, "%s{\"ranks\": %d, \"channels\": %d, \"us\": %.3f}", i == 0 ? "" : ", ",
                 floors[i].ranks, floors[i].channels, floors[i].us);
  }
  std::fprintf(file, "], \"results\": [");
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    std::fprintf(
        file,
        "%s\n  {\"ranks\": %d, \"channels\": %d, \"algorithm\": \"%s\", "
        "\"protocol\": \"%s\", \"bytes\": %llu, \"us\": %.3f, \"bound_us\": %.3f, "
        "\"right\": %s}",
        i == 0 ? "" : ",", row.ranks, row.channels, std::string(name(row.algorithm)).c_str(),
        row.protocol == Protocol::kLl ? "ll" : "simple", static_cast<unsigned long long>(row.bytes),
        row.us, row.bound_us, row.right ? "true" : "false");
  }
  std::fprintf(file, "\n]}\n");
  if (std::ferror(file) != 0 || std::fclose(file) != 0) fail(std::string("cannot write ") + path);
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    const uint64_t number = std::strtoull(argv[i + 1], nullptr, 10);
    if (flag == "--channels")
      options.channels = static_cast<int>(number);
    else if (flag == "--slot-bytes")
      options.slot_bytes = number;
    else if (flag == "--depth")
      options.depth = static_cast<uint32_t>(number);
    else if (flag == "--largest")
      options.largest = number;
    else if (flag == "--json")
      options.json = argv[i + 1];
    else
      fail("unknown flag " + flag);
  }
  if (argc % 2 == 0) fail("a flag without a value");
  if (options.channels < 0) fail("--channels is a positive number");
  return options;
}

int run(int argc, char** argv) {
  const Options options = parse(argc, argv);
  // Else streams share eight queues, in which one rank's kernel can wait behind another's.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  cudaFuncAttributes loaded{};
  must(cudaFuncGetAttributes(&loaded, walk_kernel()), "no GPU");
  cudaDeviceProp device{};
  must(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  const int multiprocessors = device.multiProcessorCount;
  if (8 * options.channels > multiprocessors) fail("8 ranks need fewer --channels");

  Timer timer;
  Gate gate;
  const double copy = copy_rate(timer);
  std::printf("# %s: device copy %.1f GB/s, read and written\n", device.name, copy);
  std::printf("# ranks channels  algorithm           bytes         us   bound us  of bound\n");
  std::vector<Row> rows;
  std::vector<Floor> floors;
  bool all_right = true;
  const auto measure = [&](int ranks, Algorithm algorithm, Protocol protocol, uint64_t bytes) {
    if (bytes > options.largest) return;
    Options own = options;
    if (own.channels == 0)
      own.channels = std::clamp((multiprocessors - 4) / ranks, 1, base::kMaxChannels);
    Case one(own, ranks, algorithm, protocol, bytes);
    Row row = {.ranks = ranks,
               .channels = one.channels(),
               .protocol = protocol,
               .algorithm = algorithm,
               .bytes = bytes,
               .us = one.measure(timer, gate),
               .bound_us = 1e-3 * one.moved() / copy,
               .right = false};
    row.right = one.all_ended_well() && one.right();
    all_right = all_right && row.right;
    rows.push_back(row);
    std::printf("%7d %8d  %-15s %9llu %10.2f %10.2f %9.3f%s\n", ranks, row.channels,
                protocol == Protocol::kLl ? "one-shot LL" : std::string(name(algorithm)).c_str(),
                static_cast<unsigned long long>(bytes), row.us, row.bound_us, row.bound_us / row.us,
                row.right ? "" : "  WRONG");
    std::fflush(stdout);
    // Now, too: one that hangs later on leaves what has been measured.
    if (options.json != nullptr) write_json(options.json, copy, options, floors, rows);
  };
  for (const int ranks : {2, 4, 8}) {
    {
      Options own = options;
      if (own.channels == 0) own.channels = 4;  // as many as 8 KiB have by LL
      Case empty(own, ranks, Algorithm::kOneShot, Protocol::kLl, 8 << 10);
      floors.push_back(
          {.ranks = ranks, .channels = empty.channels(), .us = empty.measure_floor(timer, gate)});
      std::printf("%7d %8d  no operation    %9s %10.2f\n", ranks, empty.channels(), "",
                  floors.back().us);
    }
    for (const uint64_t bytes : {8, 128, 1024, 4096, 8192, 16384, 32768}) {
      measure(ranks, Algorithm::kOneShot, Protocol::kLl, bytes);
    }
    for (const Algorithm algorithm : {Algorithm::kTwoShotDirect, Algorithm::kOneShotDirect,
                                      Algorithm::kTwoShot, Algorithm::kOneShot, Algorithm::kRing}) {
      for (const uint64_t bytes :
           {uint64_t{8} << 10, uint64_t{1} << 20, uint64_t{64} << 20, uint64_t{1} << 30}) {
        measure(ranks, algorithm, Protocol::kSimple, bytes);
      }
    }
  }
  return all_right ? 0 : 1;
}

}  // namespace
}  // namespace rondo::engine

int main(int argc, char** argv) { return rondo::engine::run(argc, argv); }
