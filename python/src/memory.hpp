// Library memory as Python objects.
#pragma once

#include <nanobind/nanobind.h>

namespace rondo::python {

/// Memory, DeviceMemory, is_library_memory() and, for the backend of torch, register_memory() and unregister_memory().
void bind_memory(nanobind::module_& module);

}  // namespace rondo::python
