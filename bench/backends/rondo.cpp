// Only the public headers of rondo are used here, as by any other program.
#include "bench/backends/rondo.hpp"

#include <utility>

namespace rondo::bench {
namespace {

class RondoBackend final : public Backend {
 public:
  RondoBackend(Communicator communicator, const RondoOptions& options)
      : communicator_(std::move(communicator)), options_(options) {}

  std::string name() const override { return "rondo"; }
  int rank() const override { return communicator_.rank(); }
  int size() const override { return communicator_.size(); }
  Status supports(const Shape&) const override { return {}; }
  Status barrier() override { return communicator_.barrier(); }

  Status run(const Operation& operation) override {
    const Shape& shape = operation.shape;
    switch (shape.collective) {
      case Collective::kAllReduce:
        return communicator_.all_reduce(operation.in, operation.out, shape.count, shape.type,
                                        shape.op);
      case Collective::kReduceScatter:
        return communicator_.reduce_scatter(operation.in, operation.out, shape.count, shape.type,
                                            shape.op);
      case Collective::kAllGather:
        return communicator_.all_gather(operation.in, operation.out, shape.count, shape.type);
      case Collective::kBroadcast:
        return communicator_.broadcast(operation.in, operation.out, shape.count, shape.type,
                                       shape.root);
      case Collective::kReduce:
        return communicator_.reduce(operation.in, operation.out, shape.count, shape.type,
                                    shape.root, shape.op);
      case Collective::kGather:
        return communicator_.gather(operation.in, operation.out, shape.count, shape.type,
                                    shape.root);
      case Collective::kScatter:
        return communicator_.scatter(operation.in, operation.out, shape.count, shape.type,
                                     shape.root);
      case Collective::kAllToAll:
        return communicator_.all_to_all(operation.in, operation.out, shape.count, shape.type);
      case Collective::kBarrier:
        return communicator_.barrier();
    }
    return {Code::kInvalidArgument, "unknown collective"};
  }

  std::optional<Prediction> predict(const Shape& shape) const override {
    const Plan plan = communicator_.plan(shape.collective, shape.count, shape.type, options_.direct,
                                         options_.config.algorithm);
    return Prediction{.algorithm = std::string(rondo::name(plan.algorithm)),
                      .time_us = plan.predicted_us};
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
  Communicator communicator_;
  RondoOptions options_;
};

}  // namespace

Result<std::unique_ptr<Backend>> make_rondo_backend(const RondoOptions& options) {
  auto communicator = Communicator::create(options.config);
  if (!communicator.ok()) return communicator.status();
  return std::unique_ptr<Backend>(
      std::make_unique<RondoBackend>(std::move(communicator).value(), options));
}

}  // namespace rondo::bench
