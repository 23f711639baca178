// Only the public headers of rondo are used here, as by any other program.
#include "bench/backends/rondo.hpp"

#include <utility>
#include <vector>

#include "bench/harness/machine.hpp"
#include "bench/harness/pattern.hpp"

namespace rondo::bench {
namespace {

class Rondo final : public RondoBackend {
 public:
  Rondo(Communicator communicator, const RondoOptions& options)
      : communicator_(std::move(communicator)), options_(options) {}

  /// After all ranks have come, and before anything else takes memory.
  Status look_at_memory() {
    RONDO_RETURN_IF_ERROR(communicator_.barrier());
    const size_t now = private_memory_bytes(), before = options_.private_bytes_before;
    memory_ = {.shared_bytes =
                   communicator_.stats().shared_bytes / static_cast<size_t>(communicator_.size()),
               .private_bytes = (now > before ? now - before : 0) /
                                static_cast<size_t>(options_.ranks_in_process)};
    // Nobody goes on, and takes memory, before all have looked.
    return communicator_.barrier();
  }

  std::optional<MemoryUse> memory() const override { return memory_; }
  void abort(const std::string& reason) override { communicator_.abort(reason); }

  std::string name() const override { return "rondo"; }
  int rank() const override { return communicator_.rank(); }
  int size() const override { return communicator_.size(); }
  Status supports(const Shape& shape) const override {
    if (options_.algorithm == Algorithm::kAuto || plan(shape).algorithm != Algorithm::kAuto)
      return {};
    return {Code::kUnavailable, "rondo has no " + std::string(rondo::name(shape.collective)) +
                                    " by " + std::string(rondo::name(options_.algorithm)) +
                                    ": see the table in comm/schedule/README.md"};
  }
  bool supports_in_place(const Shape& shape) const override {
    const Algorithm a = options_.algorithm;
    return !(shape.collective == Collective::kAllReduce && a == Algorithm::kOneShotDirect) &&
           !(shape.collective == Collective::kAllToAll && a == Algorithm::kTwoShotDirect);
  }
  Status barrier() override { return communicator_.barrier(); }
  void select(Algorithm algorithm, bool direct) override {
    options_.algorithm = algorithm;
    options_.direct = direct;
  }
  std::optional<Plan> planned(const Shape& shape) const override {
    const Plan chosen = plan(shape);
    return chosen.algorithm == Algorithm::kAuto ? std::nullopt : std::optional<Plan>(chosen);
  }

  Status run(const Operation& operation) override {
    const Shape& shape = operation.shape;
    const bool scaled = reduces(shape.collective) && shape.op == ReduceOp::kScaledSum;
    const CallOptions call{.algorithm = operation.measured ? options_.algorithm : Algorithm::kAuto,
                           .factor = scaled ? kFactor : 1};
    if (is_varying(shape.collective) && counts_.shape_count != shape.count) {
      counts_ = {.shape_count = shape.count, .counts = block_counts(shape, rank(), size())};
    }
    const std::vector<size_t>& counts = counts_.counts;
    switch (shape.collective) {
      case Collective::kAllReduce:
        return communicator_.all_reduce(operation.in, operation.out, shape.count, shape.type,
                                        shape.op, call);
      case Collective::kReduceScatter:
        return communicator_.reduce_scatter(operation.in, operation.out, shape.count, shape.type,
                                            shape.op, call);
      case Collective::kAllGather:
        return communicator_.all_gather(operation.in, operation.out, shape.count, shape.type, call);
      case Collective::kBroadcast:
        return communicator_.broadcast(operation.in, operation.out, shape.count, shape.type,
                                       shape.root, call);
      case Collective::kReduce:
        return communicator_.reduce(operation.in, operation.out, shape.count, shape.type,
                                    shape.root, shape.op, call);
      case Collective::kGather:
        return communicator_.gather(operation.in, operation.out, shape.count, shape.type,
                                    shape.root, call);
      case Collective::kScatter:
        return communicator_.scatter(operation.in, operation.out, shape.count, shape.type,
                                     shape.root, call);
      case Collective::kAllToAll:
        return communicator_.all_to_all(operation.in, operation.out, shape.count, shape.type, call);
      case Collective::kAllGatherV:
        return communicator_.all_gather_v(operation.in, operation.out, counts, {}, shape.type,
                                          call);
      case Collective::kReduceScatterV:
        return communicator_.reduce_scatter_v(operation.in, operation.out, counts, {}, shape.type,
                                              shape.op, call);
      case Collective::kAllToAllV:
        return communicator_.all_to_all_v(operation.in, counts, {}, operation.out, counts, {},
                                          shape.type, call);
      case Collective::kBarrier:
        return communicator_.barrier(call);
    }
    return {Code::kInvalidArgument, "unknown collective"};
  }

  std::optional<Prediction> predict(const Shape& shape) const override {
    const Plan chosen = plan(shape);
    return Prediction{.algorithm = std::string(rondo::name(chosen.algorithm)),
                      .time_us = chosen.predicted_us};
  }

  void* allocate(size_t bytes) override {
    return options_.library_memory ? rondo::alloc(bytes) : Backend::allocate(bytes);
  }
  void release(void* memory) override {
    if (options_.library_memory) {
      rondo::free(memory);
    } else {
      Backend::release(memory);
    }
  }

 private:
  Plan plan(const Shape& shape) const {
    return communicator_.plan(shape.collective, shape.count, shape.type, options_.direct,
                              options_.algorithm,
                              reduces(shape.collective) ? shape.op : ReduceOp::kSum);
  }

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
  auto communicator = Communicator::create(options.config);
  if (!communicator.ok()) return communicator.status();
  auto backend = std::make_unique<Rondo>(std::move(communicator).value(), options);
  RONDO_RETURN_IF_ERROR(backend->look_at_memory());
  return std::unique_ptr<RondoBackend>(std::move(backend));
}

}  // namespace rondo::bench
