// The extension module rondo._rondo. The package's __init__.py is its public face.
#include <dlfcn.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>

#include "python/src/communicator.hpp"
#include "python/src/interrupt.hpp"
#include "python/src/memory.hpp"

namespace rondo::python {
namespace {

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
  bind_memory(module);
  module.def("make_unique_id", [] {
    rondo_unique_id id;
    check(rondo_make_unique_id(&id), -1);
    return std::string(id.text);
  });
  module.def("place_from_launcher", []() -> nb::object {
    rondo_place place;
    check(rondo_place_from_launcher(&place, sizeof place), -1);
    if (place.world_size == 0) return nb::none();
    return nb::make_tuple(place.rank, place.world_size, place.local_rank, place.local_world_size);
  });
  module.def("set_main_thread", [](uintptr_t identity) {
    set_main_thread(static_cast<pthread_t>(identity));  // threading's identity is the pthread_t
  });
  bind_communicator(module);
}
