// See tensor_views.hpp.
#include "trainer/files/tensor_views.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>

namespace rondo::trainer {

void add_views(const DistributedDataParallel& ddp, const std::string& prefix, const void* array,
               std::vector<TensorView>& views) {
  const size_t element_bytes = size_of(ddp.type());
  for (size_t t = 0; t < ddp.tensors().size(); ++t) {
    const DdpTensor& tensor = ddp.tensors()[t];
    if (tensor.adds_to >= 0) continue;
    views.push_back({.name = prefix + tensor.name,
                     .type = ddp.type(),
                     .shape = tensor.shape,
                     .data = static_cast<const std::byte*>(array) + ddp.offset(t) * element_bytes});
  }
}

std::vector<TensorView> model_views(DistributedDataParallel& ddp) {
  std::vector<TensorView> views;
  for (const auto* list : {&ddp.tensors(), &ddp.buffers()}) {
    for (const DdpTensor& tensor : *list) {
      if (tensor.adds_to >= 0) continue;
      views.push_back(
          {.name = tensor.name, .type = *tensor.type, .shape = tensor.shape, .data = tensor.data});
    }
  }
  return views;
}

Status fill(const TensorFile& file, const std::vector<TensorView>& views) {
  for (const TensorView& view : views) {
    const TensorView* found = file.find(view.name);
    if (found == nullptr) {
      return Status(Code::kDataError, fmt::format("'{}': has no tensor '{}', which this model has",
                                                  file.path(), view.name));
    }
    if (found->shape != view.shape || found->type != view.type) {
      return Status(
          Code::kDataError,
          fmt::format("'{}': tensor '{}' is {} [{}], but this model's is {} [{}]", file.path(),
                      view.name, name(found->type), fmt::join(found->shape, ", "), name(view.type),
                      fmt::join(view.shape, ", ")));
    }
    std::memcpy(const_cast<void*>(view.data), found->data, view.bytes());
  }
  return {};
}

}  // namespace rondo::trainer
