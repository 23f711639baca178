// What a Python object that is an array looks like to rondo: where its elements are, how many, of
// which type. internal::Holds the object, so that the memory stays while an operation uses it. Copies
// nothing: what is not contiguous is refused.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <memory>
#include <string_view>

#include "rondo/types.hpp"

namespace rondo::python {

namespace nb = nanobind;

/// Elements in the memory of a Python object. Made, copied and destroyed with the GIL held.
struct Array {
  nb::object object;           // invalid: an argument that this rank need not pass
  std::shared_ptr<void> held;  // a buffer's export or a DLPack capsule
  void* data = nullptr;
  size_t count = 0;
  DataType type = DataType::kUint8;
  bool on_device = false;
};

/// Accepts, in this order: the buffer protocol (numpy, bytearray, array.array, memoryview), numpy
/// arrays of ml_dtypes' types, torch's tensors, DLPack. `written`: whether rondo will write it.
/// `name`: the argument, for the message. Throws TypeError or ValueError with a sentence for what is
/// no array, masked, not contiguous, read-only, or of a type that rondo lacks.
Array array_of(nb::handle object, bool written, const char* name);

/// The type of that name, numpy's or torch's. `argument`: what has it, for the message of TypeError.
DataType type_named(std::string_view name, const char* argument);

}  // namespace rondo::python
