// See check.hpp.
#include "trainer/ddp/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>

namespace rondo::ddp {
namespace {

template <class... Args>
Status refuse(fmt::format_string<Args...> text, Args&&... values) {
  return Status(Code::kInvalidArgument, fmt::format(text, std::forward<Args>(values)...));
}

/// Names tell tensors apart in errors and in files.
Status check_names(const std::vector<DdpTensor>& tensors, const std::vector<DdpTensor>& buffers) {
  std::set<std::string> names;
  for (const auto* list : {&tensors, &buffers}) {
    for (const DdpTensor& tensor : *list) {
      if (names.insert(tensor.name).second) continue;
      return refuse("there are two tensors '{}': give each a name of its own, buffers too",
                    tensor.name);
    }
  }
  return {};
}

bool can_be_averaged(DataType type) {
  return type == DataType::kFloat32 || type == DataType::kFloat64 || type == DataType::kBFloat16 ||
         type == DataType::kFloat16;
}

Status check_types(const std::vector<DdpTensor>& tensors, const std::vector<DdpTensor>& buffers,
                   DataType otherwise) {
  if (!can_be_averaged(otherwise)) {
    return refuse(
        "the options' type {} is not supported: use float, double, bfloat16 or half, and name "
        "other types of buffers with the buffers",
        name(otherwise));
  }
  for (const DdpTensor& tensor : tensors) {
    if (can_be_averaged(tensor.type.value_or(otherwise))) continue;
    return refuse(
        "tensor '{}' has the type {}, whose gradients cannot be averaged: use float, double, "
        "bfloat16 or half, or make it a buffer",
        tensor.name, name(*tensor.type));
  }
  for (const DdpTensor& buffer : buffers) {
    if (size_of(buffer.type.value_or(otherwise)) != 0) continue;
    return refuse("buffer '{}' has the unknown type {}", buffer.name,
                  static_cast<int>(*buffer.type));
  }
  return {};
}

Status check_shapes(const std::vector<DdpTensor>& tensors, DataType otherwise) {
  bool adding = false;
  for (size_t t = 0; t < tensors.size(); ++t) {
    const DdpTensor& tensor = tensors[t];
    if (tensor.shape.empty()) {
      return refuse("tensor {} '{}' has no shape: a scalar's is {{1}}", t, tensor.name);
    }
    size_t bytes = size_of(tensor.type.value_or(otherwise));
    for (const size_t extent : tensor.shape) {
      if (__builtin_mul_overflow(bytes, extent, &bytes)) {
        return refuse("tensor {} '{}' has more bytes than fit in memory", t, tensor.name);
      }
    }
    if (tensor.count() == 0) return refuse("tensor {} '{}' has no elements", t, tensor.name);
    if (adding && tensor.adds_to < 0) {
      return refuse("tensor {} '{}' comes after tensors that add to others: those come last", t,
                    tensor.name);
    }
    adding = tensor.adds_to >= 0;
    if (!adding) continue;
    const auto base = static_cast<size_t>(tensor.adds_to);
    if (base >= t || tensors[base].adds_to >= 0 || tensors[base].shape != tensor.shape ||
        tensors[base].type.value_or(otherwise) != tensor.type.value_or(otherwise)) {
      return refuse(
          "tensor {} '{}' adds to tensor {}, which must be an ordinary one of the same shape and "
          "type",
          t, tensor.name, tensor.adds_to);
    }
  }
  return {};
}

/// Memory that a caller gives.
struct CallersBytes {
  const char* kind;
  const DdpTensor* tensor;
  const std::byte* begin;
  const std::byte* end;

  std::string named() const { return fmt::format("the {} of '{}'", kind, tensor->name); }
};

/// Adds the memory of these tensors to `all`: of every one or of none.
Status collect(const char* kind, const std::vector<const DdpTensor*>& tensors,
               void* DdpTensor::*member, DataType otherwise, std::vector<CallersBytes>& all) {
  for (const DdpTensor* tensor : tensors) {
    const auto* memory = static_cast<const std::byte*>(tensor->*member);
    if ((memory == nullptr) != (tensors[0]->*member == nullptr)) {
      const bool lacks = memory == nullptr;
      return refuse(
          "the {} of '{}' is null, but that of '{}' is not: give the {} of every tensor "
          "or of none",
          kind, (lacks ? tensor : tensors[0])->name, (lacks ? tensors[0] : tensor)->name, kind);
    }
    if (memory == nullptr) continue;
    const size_t each = size_of(tensor->type.value_or(otherwise));
    if (reinterpret_cast<uintptr_t>(memory) % each != 0) {
      return refuse("the {} of '{}' is not aligned to the {} bytes of its elements", kind,
                    tensor->name, each);
    }
    all.push_back(
        {.kind = kind, .tensor = tensor, .begin = memory, .end = memory + tensor->count() * each});
  }
  return {};
}

Status check_memory(const std::vector<DdpTensor>& tensors, const std::vector<DdpTensor>& buffers,
                    const DdpOptions& options) {
  std::vector<const DdpTensor*> gradients, parameters, others;
  for (const DdpTensor& tensor : tensors) {
    gradients.push_back(&tensor);
    if (tensor.adds_to < 0) parameters.push_back(&tensor);
    if (tensor.adds_to >= 0 && tensor.data != nullptr) {
      return refuse("tensor '{}' adds to another and so has no parameter: leave its data null",
                    tensor.name);
    }
  }
  for (const DdpTensor& buffer : buffers) {
    others.push_back(&buffer);
    if (buffer.gradient == nullptr) continue;
    return refuse("buffer '{}' has a gradient: leave it null, or make it a parameter", buffer.name);
  }
  std::vector<CallersBytes> all;
  RONDO_TRY(collect("parameter", parameters, &DdpTensor::data, options.type, all));
  RONDO_TRY(collect("gradient", gradients, &DdpTensor::gradient, options.type, all));
  if (options.shard && !all.empty()) {
    return refuse(
        "{} is the caller's memory, which shards cannot use: leave it null, or turn off "
        "shard",
        all[0].named());
  }
  RONDO_TRY(collect("buffer", others, &DdpTensor::data, options.type, all));
  std::sort(all.begin(), all.end(),
            [](const CallersBytes& a, const CallersBytes& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < all.size(); ++i) {
    if (all[i].begin >= all[i - 1].end) continue;
    return refuse("{} overlaps {}: give each memory of its own", all[i].named(),
                  all[i - 1].named());
  }
  return {};
}

Status check_cap(const std::vector<DdpTensor>& tensors, const DdpOptions& options) {
  if (options.bucket_cap_mb != kDdpAutoCap) {
    if (options.bucket_cap_mb >= 0 && options.bucket_cap_mb < 1e6) return {};
    return refuse(
        "bucket_cap_mb is {}: it must be at least 0 (one bucket per tensor) and below a "
        "million, or kDdpAutoCap",
        options.bucket_cap_mb);
  }
  if (options.shard) {
    return refuse(
        "bucket_cap_mb is kDdpAutoCap, but shards are parts of buckets that stay: name a cap");
  }
  for (const DdpTensor& tensor : tensors) {
    if (tensor.type.value_or(options.type) == tensors[0].type.value_or(options.type)) continue;
    return refuse(
        "bucket_cap_mb is kDdpAutoCap, but '{}' and '{}' are of different types: name a cap",
        tensors[0].name, tensor.name);
  }
  if (options.auto_after_steps > 0) return {};
  return refuse("auto_after_steps is 0: nothing is measured before the first step");
}

}  // namespace

Status check(const std::vector<DdpTensor>& tensors, const std::vector<DdpTensor>& buffers,
             const DdpOptions& options) {
  RONDO_TRY(check_names(tensors, buffers));
  RONDO_TRY(check_types(tensors, buffers, options.type));
  RONDO_TRY(check_cap(tensors, options));
  RONDO_TRY(check_shapes(tensors, options.type));
  return check_memory(tensors, buffers, options);
}

namespace {

Status check_host(const Communicator& communicator, const Communicator* host) {
  if (host == nullptr) {
    return refuse(
        "the communicator is on GPU {} and DdpOptions::host is null: name a communicator of the "
        "same ranks without a device",
        communicator.device());
  }
  if (host->device() >= 0) {
    return refuse(
        "DdpOptions::host is on GPU {}: it must be without a device (Config::device of -1)",
        host->device());
  }
  if (host->size() == communicator.size() && host->rank() == communicator.rank()) return {};
  return refuse(
      "in DdpOptions::host this is rank {} of {}, but in the communicator on a device rank {} of "
      "{}: both must have the same ranks in the same order",
      host->rank(), host->size(), communicator.rank(), communicator.size());
}

/// Null: the options need nothing that there is not on a device.
const char* absent_on_device(const DdpOptions& options) {
  if (options.hook && !options.hook->works_on_device()) {
    return "communication hooks without CommunicationHook::enqueue(): leave DdpOptions::hook null, "
           "or override works_on_device() and enqueue()";
  }
  if (options.rows == DdpOptions::Rows::kTouched) return "kTouched rows: use kWhole";
  return nullptr;
}

}  // namespace

Status check_device(const Communicator& communicator, const std::vector<DdpTensor>& tensors,
                    const DdpOptions& options) {
  if (communicator.device() < 0) {
    if (options.host == nullptr && options.stream == nullptr) return {};
    return refuse("DdpOptions::{} is for communicators on a device, and this one is on none",
                  options.host != nullptr ? "host" : "stream");
  }
  RONDO_TRY(check_host(communicator, options.host));
  const auto lacks = [](const std::string& what) {
    return Status(Code::kUnavailable, "on a device there is no support for " + what);
  };
  if (const char* const what = absent_on_device(options)) return lacks(what);
  for (const DdpTensor& tensor : tensors) {
    if (tensor.adds_to >= 0) {
      return lacks(fmt::format(
          "tensors that add to others, such as '{}': add both gradients up before they are ready",
          tensor.name));
    }
    const DataType type = tensor.type.value_or(options.type);
    if (size_of(type) < 4 && communicator.is_reproducible()) {
      return lacks(fmt::format(
          "reproducible sums of {}, the type of '{}': use float, or a communicator that is not "
          "reproducible",
          name(type), tensor.name));
    }
  }
  return {};
}

}  // namespace rondo::ddp
