// One call of the C API from Python: the arguments that all have, and the choice of the blocking or
// the asynchronous form.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <initializer_list>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "python/src/communicator.hpp"
#include "rondo/types.hpp"

namespace rondo::python {

/// `value` as a Python int, if it is a whole number of any type: an int, a numpy integer, a tensor of
/// one. Null for other values.
inline nb::object whole_number(nb::handle value) {
  PyObject* const whole = PyNumber_Index(value.ptr());
  if (whole == nullptr) PyErr_Clear();  // 0.5, for example
  return nb::steal(whole);
}

/// Keyword arguments that every call has: async_op, algorithm, timeout (seconds), factor, layout, stream.
struct CallSettings {
  rondo_call_options call;
  bool async_op = false;

  explicit CallSettings(const nb::kwargs& given) {
    rondo_call_options_init(&call, sizeof call);
    for (const auto& [key, value] : given) {
      const auto name = nb::cast<std::string>(key);
      try {
        set(name, value);
      } catch (const nb::cast_error&) {
        throw nb::type_error(("\"" + name + "\" is of a wrong type").c_str());
      }
    }
  }

 private:
  void set(const std::string& key, nb::handle value) {
    if (key == "async_op") {
      async_op = nb::cast<bool>(value);
    } else if (value.is_none()) {
      // the default
    } else if (key == "algorithm") {
      const auto text = nb::cast<std::string>(value);
      const auto algorithm = internal::parse<Algorithm>(text, kAlgorithmNames);
      if (!algorithm) throw nb::value_error(("no algorithm \"" + text + "\"").c_str());
      call.algorithm = static_cast<rondo_algorithm>(*algorithm);
    } else if (key == "stall_timeout") {
      call.stall_timeout_ms = milliseconds(nb::cast<double>(value));
    } else if (key == "factor") {
      call.factor = nb::cast<double>(value);
      if (const nb::object whole = whole_number(value);
          whole.is_valid() && !nb::int_(call.factor).equal(whole)) {
        throw nb::value_error(("a factor of " + nb::cast<std::string>(nb::str(value)) +
                               " is not exact in double; whole numbers up to 2^53 are")
                                  .c_str());
      }
    } else if (key == "layout") {
      call.layout = nb::cast<uint64_t>(value);
    } else if (key == "stream") {
      call.stream = reinterpret_cast<void*>(nb::cast<uintptr_t>(value));
    } else {
      throw nb::type_error(("no argument \"" + key + "\"").c_str());
    }
  }
};

inline rondo_data_type type_of(const Array& array) {
  return static_cast<rondo_data_type>(array.type);
}

inline std::vector<Array> taken(std::initializer_list<Array*> arrays) {
  std::vector<Array> all;
  for (Array* const each : arrays) all.push_back(std::move(*each));
  return all;
}

/// Calls one of the two forms with these arguments. Returns `result`, or a Work that yields it. The
/// arrays are the caller's, who drops them at the end; an operation that goes on takes them.
template <class Blocking, class Asynchronous, class Arguments>
nb::object run(nb::handle self_object, const CallSettings& options,
               std::initializer_list<Array*> arrays, nb::object result, Blocking* blocking,
               Asynchronous* asynchronous, const Arguments& arguments) {
  auto& self = nb::cast<PyCommunicator&>(self_object);
  const int rank = self.rank();  // not after the call: another thread may close it then
  for (const Array* array : arrays) {
    if (!array->object.is_valid() || array->on_device == self.on_device()) continue;
    throw nb::type_error(self.on_device() ? "this communicator is for a GPU's memory"
                                          : "this communicator is for a CPU's memory");
  }
  rondo_code code = RONDO_OK;
  if (options.async_op) {
    rondo_work* work = nullptr;
    code = self.run([&](rondo_communicator* handle) {
      return std::apply(
          [&](auto... each) { return asynchronous(handle, each..., &options.call, &work); },
          arguments);
    });
    check(code, rank);
    return nb::cast(PyWork(nb::borrow(self_object), work, taken(arrays), std::move(result)));
  }
  code = self.run_interruptible([&](rondo_communicator* handle) {
    return std::apply([&](auto... each) { return blocking(handle, each..., &options.call); },
                      arguments);
  });
  check(code, rank);
  if (self.in_group()) self.keep(nullptr, taken(arrays));
  return result;
}

}  // namespace rondo::python
