// Includes only rondo's public headers, as any other program.
#include "bench/backends/rondo.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <utility>
#include <vector>

#include "bench/harness/machine.hpp"
#include "bench/harness/pattern.hpp"
#include "rondo/memory.hpp"

namespace rondo::bench {
namespace {

class Rondo final : public RondoBackend {
 public:
  Rondo(Communicator communicator, const RondoOptions& options, std::unique_ptr<CudaMemory> cuda)
      : cuda_(std::move(cuda)), communicator_(std::move(communicator)), options_(options) {}

  /// Whether library memory is possible on these devices: afterwards only lack of it is an obstacle.
  Status check_registration() {
    if (!cuda_ || !options_.library_memory || staging_ == nullptr) return {};
    const Status status =
        communicator_.register_device_memory(cuda_->twin(staging_), kStagingBytes);
    if (!status.ok()) return {status.code(), "--memory library: " + status.message()};
    unregister(staging_);
    return {};
  }

  /// Called after all ranks have come and before anything else allocates.
  Status look_at_memory() {
    RONDO_TRY(barrier());
    const size_t now = private_memory_bytes(), before = options_.private_bytes_before;
    memory_ = {.shared_bytes =
                   communicator_.stats().shared_bytes / static_cast<size_t>(communicator_.size()),
               .private_bytes = (now > before ? now - before : 0) /
                                static_cast<size_t>(options_.ranks_in_process)};
    // No rank continues, and allocates, before all have looked.
    return barrier();
  }

  std::optional<MemoryUse> memory() const override { return memory_; }
  std::string links() const override {
    const std::string source = source_of_links();
    const bool both = !source.empty() && !options_.variables.empty();
    return source + (both ? "; " : "") + options_.variables;
  }
  std::string source_of_links() const {
    if (options_.cuda || !options_.config.pace.empty())
      return {};  // neither reads a file by itself
    if (!options_.config.links.empty()) return options_.config.links;
    const char* variable = std::getenv("RONDO_LINKS");
    if (variable != nullptr && *variable != 0) return variable;
    const std::string calibrated = default_links_path();
    std::error_code ignored;
    if (std::filesystem::exists(calibrated, ignored)) return calibrated;
    const std::vector<int> on = communicator_.hosts();
    if (std::ranges::any_of(on, [&](int host) { return host != on.front(); })) {
      return "built-in; rondo-perf --calibrate, started on these hosts as this is, fits them to "
             "the "
             "wire";
    }
    return "built-in; rondo-perf --ranks 2 --calibrate fits them to this processor in two minutes";
  }
  void abort(const std::string& reason) override { communicator_.abort(reason); }

  std::string name() const override { return "rondo"; }
  int rank() const override { return communicator_.rank(); }
  int size() const override { return communicator_.size(); }
  Status supports(const CallShape& shape) const override {
    if (shape.collective == kSendRecv) {
      if (options_.algorithm == Algorithm::kAuto) return {};
      return {Code::kUnavailable, "messages have no algorithm: leave out --algorithm"};
    }
    // Whether the buffers are suitable shows when they are used.
    if (options_.algorithm == Algorithm::kAuto) return {};
    const Status found = find_plan(shape, true).status();
    if (found.ok()) return {};
    return {found.code(), found.message() + " (comm/algorithms/README.md lists the algorithms)"};
  }
  bool supports_in_place(const CallShape& shape) const override {
    return is_safe_in_place(shape.collective, options_.algorithm);
  }
  Status barrier() override {
    if (!cuda_) return communicator_.barrier();
    RONDO_TRY(meet_on_host());
    RONDO_TRY(communicator_.barrier(on_stream()));
    return arrive();
  }
  void select(Algorithm algorithm, bool direct) override {
    options_.algorithm = algorithm;
    options_.direct = direct;
  }
  std::optional<Plan> planned(const CallShape& shape) const override {
    const Plan chosen = plan(shape);
    return chosen.algorithm == Algorithm::kAuto ? std::nullopt : std::optional<Plan>(chosen);
  }
  std::vector<int> hosts() const override { return communicator_.hosts(); }

  Status run(const BackendCall& operation) override {
    if (!cuda_) return call(operation);
    RONDO_TRY(meet_on_host());
    RONDO_TRY(operation.measured ? call(on_device(operation)) : stage(operation));
    return arrive();
  }

  Result<double> time(const BackendCall& operation, size_t iterations) override {
    if (!cuda_) return Backend::time(operation, iterations);
    const BackendCall there = on_device(operation);
    const size_t together = std::max(options_.graph, size_t{1});
    const size_t times = (iterations + together - 1) / together;
    if (options_.graph > 0) RONDO_TRY(capture(there));
    auto took = cuda_->time([&]() -> Status {
      for (size_t i = 0; i < times; ++i) {
        RONDO_TRY(options_.graph > 0 ? cuda_->replay() : call(there));
      }
      return {};
    });
    RONDO_TRY(communicator_.status());
    if (!took.ok()) return took;
    return *took / static_cast<double>(times * together);
  }

  bool is_on_host() const override { return !cuda_; }
  Status give(const void* memory, size_t bytes) override {
    return cuda_ && bytes > 0 ? cuda_->give(cuda_->twin(memory), memory, bytes) : Status();
  }
  Status take(void* memory, size_t bytes) override {
    return cuda_ && bytes > 0 ? cuda_->take(memory, cuda_->twin(memory), bytes) : Status();
  }

  Result<Mismatch> compare(const void* found, const void* expected, size_t count,
                           DataType type) override {
    if (!cuda_) return Backend::compare(found, expected, count, type);
    return cuda_->compare(cuda_->twin(found), cuda_->twin(expected), count, size_of(type));
  }

  std::optional<Prediction> predict(const CallShape& shape) const override {
    if (shape.collective == kSendRecv) return std::nullopt;
    const Plan chosen = plan(shape);
    Prediction prediction{.algorithm = std::string(rondo::name(chosen.algorithm)),
                          .time_us = chosen.predicted_us};
    if (!options_.direct && !cuda_ && options_.algorithm == Algorithm::kAuto) {
      prediction.library_us = plan(shape, true).predicted_us;
    }
    return prediction;
  }

  void* allocate(size_t bytes) override {
    if (cuda_) {
      taken_ = true;
      captured_.reset();  // it was of other memory
      void* const memory = cuda_->allocate(bytes);
      return options_.library_memory ? registered(memory, bytes) : memory;
    }
    return options_.library_memory ? rondo::alloc(bytes) : Backend::allocate(bytes);
  }
  void release(void* memory) override {
    if (cuda_) {
      if (options_.library_memory) unregister(memory);
      cuda_->release(memory);
    } else if (options_.library_memory) {
      rondo::dealloc(memory);
    } else {
      Backend::release(memory);
    }
  }

 private:
  CallOptions on_stream() const {
    CallOptions options;
    options.stream = cuda_ ? cuda_->stream() : nullptr;
    return options;
  }
  /// `memory`, which all ranks may access from now on. Where one of them has none, or it cannot be
  /// registered, all get null.
  void* registered(void* memory, size_t bytes) {
    std::byte* const there = memory != nullptr ? cuda_->twin(memory) : nullptr;
    if (communicator_.register_device_memory(there, bytes).ok()) return memory;
    cuda_->release(memory);
    return nullptr;
  }
  /// What fails here has failed before, and been reported.
  void unregister(const void* memory) {
    (void)communicator_.unregister_device_memory(cuda_->twin(memory));
    taken_ = true;
    (void)meet_on_host();  // no peer maps it any more
  }
  /// A graph of several such operations, unless the last one was the same. All ranks decide alike,
  /// because captured operations are enqueued too.
  Status capture(const BackendCall& there) {
    const auto same = [](const BackendCall& a, const BackendCall& b) {
      return a.shape.collective == b.shape.collective && a.shape.count == b.shape.count &&
             a.shape.type == b.shape.type && a.shape.op == b.shape.op &&
             a.shape.root == b.shape.root && a.in_place == b.in_place;
    };
    if (captured_ && same(*captured_, there)) return {};
    captured_ = there;
    const auto enqueue = [&]() -> Status {
      for (size_t i = 0; i < options_.graph; ++i) RONDO_TRY(call(there));
      return {};
    };
    RONDO_TRY(cuda_->capture(enqueue));
    taken_ = true;
    return barrier();
  }
  /// Called once after this rank has allocated device memory or made a graph. These may wait for
  /// running kernels, also those of other ranks, which would wait for this rank; so all ranks meet
  /// here first. Every rank allocates at the same points. A split into nothing is a call in which
  /// the host's threads meet.
  Status meet_on_host() {
    if (!std::exchange(taken_, false)) return {};
    return communicator_.split(Communicator::kNoColor, 0).status();
  }
  /// Waits for the stream and returns the result.
  Status arrive() {
    RONDO_TRY(cuda_->synchronize());
    return communicator_.status();
  }
  BackendCall on_device(const BackendCall& operation) const {
    BackendCall there = operation;
    there.in = cuda_->twin(operation.in);
    there.out = cuda_->twin(operation.out);
    return there;
  }
  /// The harness's own calls use memory of any kind. Their device memory was allocated at the
  /// beginning: allocating now could wait for kernels that wait for this rank.
  Status stage(const BackendCall& operation) {
    const size_t element = size_of(operation.shape.type);
    const size_t in = in_elements(operation.shape, size()) * element;
    const size_t out = out_elements(operation.shape, size()) * element;
    if (staging_ == nullptr || in + out > kStagingBytes) {
      return {Code::kResourceExhausted, "no device memory for what ranks tell each other"};
    }
    std::byte* const there = cuda_->twin(staging_);
    BackendCall staged = operation;
    staged.in = there;
    staged.out = there + in;
    RONDO_TRY(cuda_->give(there, operation.in, in));
    RONDO_TRY(call(staged));
    return cuda_->take(operation.out, there + in, out);
  }

  Status send_recv(const BackendCall& operation) {
    const CallShape& shape = operation.shape;
    // In a group neither waits for the other; group_end() returns the error of a refused call.
    RONDO_TRY(communicator_.group_start());
    (void)communicator_.send(operation.in, shape.count, shape.type, next_of(rank(), size()),
                             on_stream());
    (void)communicator_.recv(operation.out, shape.count, shape.type, prev_of(rank(), size()),
                             on_stream());
    return communicator_.group_end();
  }

  Status call(const BackendCall& operation) {
    const CallShape& shape = operation.shape;
    if (shape.collective == kSendRecv) return send_recv(operation);
    const bool scaled = reduces(shape.collective) && shape.op == ReduceOp::kMulSum;
    CallOptions call = on_stream();
    call.algorithm = operation.measured ? options_.algorithm : Algorithm::kAuto;
    call.factor = scaled ? kFactor : 1;
    if (is_varying(shape.collective) && counts_.shape_count != shape.count) {
      counts_ = {.shape_count = shape.count, .counts = block_counts(shape, rank(), size())};
    }
    const std::vector<size_t>& counts = counts_.counts;
    const Blocks blocks{.in_counts = counts, .out_counts = counts};
    return communicator_.run({shape.collective, operation.in, operation.out, shape.count,
                              shape.type, shape.op, shape.root, &blocks},
                             call);
  }

  Plan plan(const CallShape& shape) const { return plan(shape, options_.direct); }
  Plan plan(const CallShape& shape, bool direct) const {
    const auto found = find_plan(shape, direct);
    return found.ok() ? *found : Plan{};
  }
  Result<Plan> find_plan(const CallShape& shape, bool direct) const {
    return communicator_.find_plan(shape.collective, shape.count, shape.type, direct,
                                   options_.algorithm,
                                   reduces(shape.collective) ? shape.op : ReduceOp::kSum);
  }

  static constexpr size_t kStagingBytes = size_t{4} << 20;

  std::unique_ptr<CudaMemory> cuda_;  // null: buffers are the host's
  void* staging_ = cuda_ ? cuda_->allocate(kStagingBytes) : nullptr;
  std::optional<BackendCall> captured_;
  bool taken_ = true;  // of the device's memory, since the ranks met on the host
  Communicator communicator_;
  RondoOptions options_;
  struct {
    size_t shape_count = ~size_t{0};
    std::vector<size_t> counts;
  } counts_;  // of the last _v collective; one is measured at a time
  MemoryUse memory_{};
};

}  // namespace

Result<std::unique_ptr<RondoBackend>> make_rondo_backend(const RondoOptions& options) {
  std::unique_ptr<CudaMemory> cuda;
  Config config = options.config;
  if (options.cuda) {
    cuda = RONDO_TRY(open_cuda_memory(options.local_rank));
    config.device = cuda->device();
  }
  auto communicator = RONDO_TRY(Communicator::create(config));
  auto backend = std::make_unique<Rondo>(std::move(communicator), options, std::move(cuda));
  RONDO_TRY(backend->look_at_memory());
  RONDO_TRY(backend->check_registration());
  return std::unique_ptr<RondoBackend>(std::move(backend));
}

}  // namespace rondo::bench
