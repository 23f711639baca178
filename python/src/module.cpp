// The extension module rondo._rondo. The package's __init__.py is its public face.
#include <dlfcn.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>

#include "python/src/communicator.hpp"
#include "python/src/interrupt.hpp"

namespace rondo::python {
namespace {

/// Library memory, exported by the buffer protocol: numpy and torch make arrays of it, which keep it.
struct Memory {
  explicit Memory(size_t wanted) : bytes(wanted), data(rondo_alloc(wanted == 0 ? 1 : wanted)) {
    if (data == nullptr) throw std::bad_alloc();
  }
  ~Memory() { rondo_free(data); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  size_t bytes;
  void* data;
};

int export_memory(PyObject* self, Py_buffer* view, int flags) {
  const auto* memory = nb::inst_ptr<Memory>(self);
  return PyBuffer_FillInfo(view, self, memory->data, static_cast<Py_ssize_t>(memory->bytes), 0,
                           flags);
}

PyType_Slot memory_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(export_memory)},
                              {0, nullptr}};

/// The version of the loaded librondo. An older or newer one, which LD_LIBRARY_PATH may put before the
/// package's own, is an ImportError.
nb::tuple loaded_version() {
  const int32_t loaded = rondo_version();
  const int32_t major = loaded / 10000, minor = loaded / 100 % 100, patch = loaded % 100;
  const std::string text =
      std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
  if (text == RONDO_VERSION) return nb::make_tuple(major, minor, patch);
  Dl_info from{};
  dladdr(reinterpret_cast<void*>(&rondo_version), &from);
  throw std::runtime_error("this module is of rondo " RONDO_VERSION ", but the library of rondo " +
                           text + " was loaded, from " + (from.dli_fname ? from.dli_fname : "?") +
                           ": see LD_LIBRARY_PATH and LD_PRELOAD");
}

}  // namespace
}  // namespace rondo::python

NB_MODULE(_rondo, module) {
  using namespace rondo::python;
  nanobind::set_leak_warnings(false);  // tensors of torch outlive the interpreter, and their memory
  module.attr("version") = loaded_version();
  nb::class_<Memory>(module, "Memory", nb::type_slots(memory_slots))
      .def(nb::init<size_t>(), nb::arg("bytes"));
  module.def("is_library_memory", [](nb::handle array) {
    const Array seen = array_of(array, false, "array");
    return rondo_is_library_memory(seen.data, seen.count * rondo::size_of(seen.type)) != 0;
  });
  // For torch.py: whoever calls them keeps the memory alive, and no other thread writes to it.
  module.def("register_memory", [](uintptr_t address, size_t bytes) {
    check(rondo_register_memory(reinterpret_cast<void*>(address), bytes), -1);
  });
  module.def("unregister_memory", [](uintptr_t address) {
    check(rondo_unregister_memory(reinterpret_cast<void*>(address)), -1);
  });
  module.def("make_unique_id", [] {
    rondo_unique_id id;
    check(rondo_make_unique_id(&id), -1);
    return std::string(id.text);
  });
  module.def("catch_interrupts", catch_interrupts);
  bind_communicator(module);
}
