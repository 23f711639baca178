// Uses Gloo's own reduction functions, as its users do. Gloo throws; this file catches everything.
#include "bench/backends/gloo.hpp"

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/types.h>

#include <exception>
#include <iterator>
#include <string>
#include <utility>

namespace rondo::bench {
namespace {

using Reduction = void (*)(void*, const void*, const void*, size_t);

template <class T>
Reduction reduction_of(ReduceOp op) {
  constexpr Reduction kFirst[] = {&::gloo::sum<T>, &::gloo::product<T>, &::gloo::min<T>,
                                  &::gloo::max<T>};  // by ReduceOp; it has no others
  const auto index = static_cast<size_t>(op);
  return index < std::size(kFirst) ? kFirst[index] : nullptr;
}

/// Whether Gloo has an element type for it.
bool has_type(DataType type) {
  return type != DataType::kBFloat16 && type != DataType::kBool && type != DataType::kFloat8E4M3 &&
         type != DataType::kFloat8E5M2;
}

/// Calls body(T{}) with Gloo's element type.
template <class Body>
auto with_type(DataType type, Body body) {
  switch (type) {
    case DataType::kFloat64:
      return body(double{});
    case DataType::kFloat16:
      return body(::gloo::float16{});
    case DataType::kInt32:
      return body(int32_t{});
    case DataType::kInt64:
      return body(int64_t{});
    case DataType::kUint8:
      return body(uint8_t{});
    case DataType::kInt8:
      return body(int8_t{});
    case DataType::kInt16:
      return body(int16_t{});
    case DataType::kUint16:
      return body(uint16_t{});
    case DataType::kUint32:
      return body(uint32_t{});
    case DataType::kUint64:
      return body(uint64_t{});
    case DataType::kFloat32:
    case DataType::kBFloat16:
    case DataType::kBool:
    case DataType::kFloat8E4M3:
    case DataType::kFloat8E5M2:
      break;  // all but the first are refused by supports()
  }
  return body(float{});
}

class GlooBackend final : public Backend {
 public:
  explicit GlooBackend(std::shared_ptr<::gloo::rendezvous::Context> context)
      : context_(std::move(context)) {}

  std::string name() const override { return "Gloo (tcp)"; }
  int rank() const override { return context_->rank; }
  int size() const override { return context_->size; }

  Status supports(const CallShape& shape) const override {
    if (shape.collective == Collective::kReduceScatter) {
      return {Code::kUnavailable, "Gloo has no reduce_scatter that takes its caller's buffers"};
    }
    if (shape.collective >= Collective::kReduce) {
      return {Code::kUnavailable,
              "Gloo is measured at all_reduce, all_gather, broadcast and barrier only, not " +
                  std::string(name_of(shape.collective))};
    }
    if (!has_type(shape.type)) {
      return {Code::kUnavailable, "Gloo has no type for " + std::string(rondo::name(shape.type))};
    }
    if (reduces(shape.collective) && reduction_of<int32_t>(shape.op) == nullptr) {
      return {Code::kUnavailable, "Gloo has no operator for " + std::string(rondo::name(shape.op))};
    }
    return {};
  }

  Status barrier() override {
    return guarded([&] {
      ::gloo::BarrierOptions options(context_);
      options.setTag(next_tag());
      ::gloo::barrier(options);
    });
  }

  Status run(const BackendCall& operation) override {
    const CallShape& shape = operation.shape;
    if (shape.collective == Collective::kBarrier) return barrier();
    if (shape.count == 0) return {};  // Gloo asserts on empty buffers
    return guarded([&] {
      with_type(shape.type, [&](auto element) { run_typed<decltype(element)>(operation); });
    });
  }

 private:
  template <class T>
  void run_typed(const BackendCall& operation) {
    const CallShape& shape = operation.shape;
    T* in = static_cast<T*>(const_cast<void*>(operation.in));
    T* out = static_cast<T*>(operation.out);
    if (shape.collective == Collective::kAllReduce) {
      ::gloo::AllreduceOptions options(context_);
      if (in != out) options.setInput(in, shape.count);
      options.setOutput(out, shape.count);
      options.setReduceFunction(reduction_of<T>(shape.op));
      options.setTag(next_tag());
      ::gloo::allreduce(options);
    } else if (shape.collective == Collective::kAllGather) {
      ::gloo::AllgatherOptions options(context_);
      const bool in_place = in == out + static_cast<size_t>(rank()) * shape.count;
      if (!in_place) options.setInput(in, shape.count);
      options.setOutput(out, shape.count * static_cast<size_t>(size()));
      options.setTag(next_tag());
      ::gloo::allgather(options);
    } else {
      ::gloo::BroadcastOptions options(context_);
      if (rank() == shape.root && in != out) options.setInput(in, shape.count);
      options.setOutput(out, shape.count);
      options.setRoot(shape.root);
      options.setTag(next_tag());
      ::gloo::broadcast(options);
    }
  }

  template <class Body>
  Status guarded(Body body) {
    try {
      body();
    } catch (const std::exception& error) {
      return {Code::kSystem, std::string("Gloo: ") + error.what()};
    }
    return {};
  }

  uint32_t next_tag() { return tag_++; }

  std::shared_ptr<::gloo::rendezvous::Context> context_;
  uint32_t tag_ = 0;
};

}  // namespace

Result<std::unique_ptr<Backend>> make_gloo_backend(int rank, int size, const std::string& directory,
                                                   const std::string& interface) {
  try {
    ::gloo::transport::tcp::attr attributes;
    if (interface.empty()) attributes.hostname = "127.0.0.1";
    attributes.iface = interface;
    auto device = ::gloo::transport::tcp::CreateDevice(attributes);
    ::gloo::rendezvous::FileStore store(directory);
    auto context = std::make_shared<::gloo::rendezvous::Context>(rank, size);
    context->connectFullMesh(store, device);
    return std::unique_ptr<Backend>(std::make_unique<GlooBackend>(std::move(context)));
  } catch (const std::exception& error) {
    return Status(Code::kBootstrap, std::string("Gloo: ") + error.what());
  }
}

}  // namespace rondo::bench
