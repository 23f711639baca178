// Only the public headers of rondo are used here, as by any other program.
#include "bench/backends/rondo.hpp"

#include <utility>

#include "bench/harness/pattern.hpp"

namespace rondo::bench {
namespace {

class Rondo final : public RondoBackend {
 public:
  Rondo(Communicator communicator, const RondoOptions& options)
      : communicator_(std::move(communicator)), options_(options) {}

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
                              options_.algorithm);
  }

  Communicator communicator_;
  RondoOptions options_;
};

}  // namespace

Result<std::unique_ptr<RondoBackend>> make_rondo_backend(const RondoOptions& options) {
  auto communicator = Communicator::create(options.config);
  if (!communicator.ok()) return communicator.status();
  return std::unique_ptr<RondoBackend>(
      std::make_unique<Rondo>(std::move(communicator).value(), options));
}

}  // namespace rondo::bench
