// See array.hpp.
#include "python/src/array.hpp"

#include <nanobind/stl/string.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace rondo::python {
namespace {

struct TypeName {
  std::string_view name;
  DataType type;
};
// numpy's and torch's names; ml_dtypes and torch differ in the fp8 formats.
constexpr TypeName kTypeNames[] = {{"float32", DataType::kFloat32},
                                   {"float64", DataType::kFloat64},
                                   {"float16", DataType::kFloat16},
                                   {"bfloat16", DataType::kBFloat16},
                                   {"int32", DataType::kInt32},
                                   {"int64", DataType::kInt64},
                                   {"uint8", DataType::kUint8},
                                   {"int8", DataType::kInt8},
                                   {"int16", DataType::kInt16},
                                   {"uint16", DataType::kUint16},
                                   {"uint32", DataType::kUint32},
                                   {"uint64", DataType::kUint64},
                                   {"bool", DataType::kBool},
                                   {"float8_e4m3fn", DataType::kFloat8E4M3},
                                   {"float8_e5m2", DataType::kFloat8E5M2}};

/// As Python's str() shows it.
std::string text_of(nb::handle object) {
  const nb::object text = nb::steal(PyObject_Str(object.ptr()));
  if (!text.is_valid()) throw nb::python_error();
  return nb::cast<std::string>(text);
}

[[noreturn]] void refuse_type(const char* name, const std::string& type) {
  std::string text = std::string(name) + " has elements of " + type + ", a type that rondo lacks";
  if (const std::string_view why = internal::why_absent(type); !why.empty())
    text += ": " + std::string(why);
  throw nb::type_error(text.c_str());
}

[[noreturn]] void refuse_layout(const char* name) {
  throw nb::value_error((std::string(name) + " is not contiguous in C order: pass a copy, such as "
                                             "numpy.ascontiguousarray(x) or x.contiguous()")
                            .c_str());
}

/// struct's formats and numpy's types begin with it.
void expect_own_byte_order(const char* name, std::string_view format) {
  if (!format.starts_with('>') && !format.starts_with('!')) return;
  throw nb::type_error((std::string(name) + " has elements of " + std::string(format) +
                        ", in another byte order than this machine's: pass "
                        "x.astype(x.dtype.newbyteorder(\"=\"))")
                           .c_str());
}

/// The type of one character of struct's formats, in native size.
std::optional<DataType> type_of_format(const char* format, Py_ssize_t bytes) {
  std::string_view text = format == nullptr ? "B" : format;
  if (!text.empty() && std::string_view("@=<").find(text[0]) != text.npos) text.remove_prefix(1);
  if (text.size() != 1) return std::nullopt;
  const auto by_size = [&](DataType two, DataType four, DataType eight) {
    return bytes == 2 ? two : bytes == 4 ? four : eight;
  };
  switch (text[0]) {
    case 'e':
      return DataType::kFloat16;
    case 'f':
      return DataType::kFloat32;
    case 'd':
      return DataType::kFloat64;
    case 'b':
      return DataType::kInt8;
    case 'B':
    case 'c':
      return DataType::kUint8;
    case '?':
      return DataType::kBool;
    case 'h':
    case 'i':
    case 'l':
    case 'q':
    case 'n':
      return by_size(DataType::kInt16, DataType::kInt32, DataType::kInt64);
    case 'H':
    case 'I':
    case 'L':
    case 'Q':
    case 'N':
      return by_size(DataType::kUint16, DataType::kUint32, DataType::kUint64);
    default:
      return std::nullopt;
  }
}

/// An export of the buffer protocol; released with the GIL held.
struct Export {
  Py_buffer view{};
  ~Export() { PyBuffer_Release(&view); }
};

/// Null, with Python's error set, where there is none.
std::shared_ptr<Export> export_of(nb::handle object, bool written) {
  auto exported = std::make_shared<Export>();  // releasing a view that was not made is allowed
  const int flags = written ? PyBUF_RECORDS : PyBUF_RECORDS_RO;
  return PyObject_GetBuffer(object.ptr(), &exported->view, flags) == 0 ? exported : nullptr;
}

bool is_instance_from(nb::handle object, std::string_view module) {
  const nb::object from = nb::getattr(object.type(), "__module__", nb::none());
  const char* text = from.is_none() ? nullptr : PyUnicode_AsUTF8(from.ptr());
  return text != nullptr && std::string_view(text).starts_with(module);
}

/// The parts of DLPack's ABI that are read (dlpack.h, versions 0 and 1).
struct DlTensor {
  void* data;
  struct {
    int32_t type, id;
  } device;
  int32_t ndim;
  struct {
    uint8_t code, bits;
    uint16_t lanes;
  } type;
  int64_t *shape, *strides;
  uint64_t byte_offset;
};

std::string dlpack_type(const DlTensor& tensor) {
  constexpr const char* kCodes[] = {"int", "uint", "float", "opaque", "bfloat", "complex", "bool"};
  if (tensor.type.lanes != 1) return "vectors";
  if (tensor.type.code > 6) return "DLPack's code " + std::to_string(tensor.type.code);
  if (tensor.type.code == 6) return "bool";
  return kCodes[tensor.type.code] + std::to_string(tensor.type.bits);
}

bool is_contiguous(const DlTensor& tensor) {
  if (tensor.strides == nullptr) return true;
  int64_t expected = 1;
  for (int i = tensor.ndim; i-- > 0;) {
    if (tensor.shape[i] == 0) return true;
    if (tensor.shape[i] != 1 && tensor.strides[i] != expected) return false;
    expected *= tensor.shape[i];
  }
  return true;
}

Array array_of_buffer(nb::handle object, std::shared_ptr<Export> exported, const char* name) {
  const Py_buffer& view = exported->view;
  const auto type = type_of_format(view.format, view.itemsize);
  if (!type) {
    expect_own_byte_order(name, view.format);
    const nb::object dtype = nb::getattr(object, "dtype", nb::none());  // numpy's names say more
    refuse_type(name, dtype.is_none() ? view.format : text_of(dtype));
  }
  if (!PyBuffer_IsContiguous(&view, 'C')) refuse_layout(name);
  return {.object = nb::borrow(object),
          .held = exported,
          .data = view.buf,
          .count = static_cast<size_t>(view.itemsize == 0 ? 0 : view.len / view.itemsize),
          .type = *type};
}

/// numpy exports no buffer of types that it did not define: these are looked at as integers.
Array array_of_ml_dtypes(nb::handle object, bool written, const char* name) {
  const DataType type = type_named(nb::cast<std::string>(object.attr("dtype").attr("name")), name);
  const nb::object integers = object.attr("view")(size_of(type) == 1 ? "u1" : "u2");
  auto exported = export_of(integers, written);
  if (!exported) throw nb::python_error();
  Array array = array_of_buffer(object, std::move(exported), name);
  array.type = type;
  return array;
}

Array array_of_tensor(nb::handle object, const char* name) {
  if (text_of(nb::object(object.attr("layout"))) != "torch.strided") {
    throw nb::type_error((std::string(name) + " is sparse: pass x.to_dense()").c_str());
  }
  if (!nb::cast<bool>(object.attr("is_contiguous")())) refuse_layout(name);
  const std::string device = nb::cast<std::string>(object.attr("device").attr("type"));
  if (device != "cpu" && device != "cuda") {
    throw nb::type_error((std::string(name) + " is on " + device + ", not on a CPU").c_str());
  }
  const std::string type = text_of(nb::object(object.attr("dtype")));
  return {.object = nb::borrow(object),
          .held = nullptr,
          .data = reinterpret_cast<void*>(nb::cast<uintptr_t>(object.attr("data_ptr")())),
          .count = nb::cast<size_t>(object.attr("numel")()),
          .type = type_named(std::string_view(type).substr(sizeof("torch.") - 1), name),
          .on_device = device == "cuda"};
}

Array array_of_dlpack(nb::handle object, const char* name) {
  const nb::object capsule = object.attr("__dlpack__")();
  const auto* tensor =
      static_cast<const DlTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
  if (tensor == nullptr) throw nb::python_error();
  if (!is_contiguous(*tensor)) refuse_layout(name);
  constexpr int32_t kCpu = 1, kCuda = 2, kCudaHost = 3;
  const int32_t device = tensor->device.type;
  if (device != kCpu && device != kCuda && device != kCudaHost) {
    throw nb::type_error((std::string(name) + " is neither in a CPU's nor a GPU's memory").c_str());
  }
  size_t count = 1;
  for (int i = 0; i < tensor->ndim; ++i) count *= static_cast<size_t>(tensor->shape[i]);
  return {.object = nb::borrow(object),
          .held = std::shared_ptr<void>(
              capsule.inc_ref().ptr(), [](void* held) { Py_DECREF(static_cast<PyObject*>(held)); }),
          .data = static_cast<std::byte*>(tensor->data) + tensor->byte_offset,
          .count = count,
          .type = type_named(dlpack_type(*tensor), name),
          .on_device = device == kCuda};
}

bool is_masked(PyTypeObject* type) {
  for (Py_ssize_t i = 0; type->tp_mro != nullptr && i < PyTuple_Size(type->tp_mro); ++i) {
    const nb::handle base = PyTuple_GetItem(type->tp_mro, i);
    const nb::object from = nb::getattr(base, "__module__", nb::none());
    const char* const module =
        PyUnicode_Check(from.ptr()) != 0 ? PyUnicode_AsUTF8(from.ptr()) : nullptr;
    if (module == nullptr || !std::string_view(module).starts_with("numpy.ma")) continue;
    if (nb::cast<std::string>(base.attr("__name__")) == "MaskedArray") return true;
  }
  return false;
}

/// Throws TypeError for a masked array, because rondo would move its elements without the mask.
void refuse_masked(nb::handle object, const char* name) {
  // The type of the last array without a mask, kept alive so that no other type has its address.
  static PyTypeObject* unmasked = nullptr;
  PyTypeObject* const type = Py_TYPE(object.ptr());
  if (type == unmasked) return;
  if (is_masked(type)) {
    throw nb::type_error((std::string(name) +
                          " is a masked array, whose mask would be lost: pass x.filled(value), or "
                          "x.data and numpy.ma.getmaskarray(x) in a call each")
                             .c_str());
  }
  Py_INCREF(type);
  Py_XDECREF(std::exchange(unmasked, type));
}

}  // namespace

DataType type_named(std::string_view text, const char* argument) {
  for (const TypeName& each : kTypeNames) {
    if (each.name == text) return each.type;
  }
  refuse_type(argument, std::string(text));
}

Array array_of(nb::handle object, bool written, const char* name) {
  refuse_masked(object, name);
  if (PyObject_CheckBuffer(object.ptr())) {
    if (auto exported = export_of(object, written)) {
      return array_of_buffer(object, std::move(exported), name);
    }
    PyErr_Clear();
    if (written && export_of(object, false)) {
      throw nb::value_error((std::string(name) + " is read-only").c_str());
    }
    PyErr_Clear();
    if (is_instance_from(object, "numpy")) return array_of_ml_dtypes(object, written, name);
  }
  if (is_instance_from(object, "torch") && nb::hasattr(object, "data_ptr")) {
    return array_of_tensor(object, name);
  }
  if (nb::hasattr(object, "__dlpack__")) return array_of_dlpack(object, name);
  const std::string is = nb::cast<std::string>(object.type().attr("__name__"));
  throw nb::type_error((std::string(name) + " is a " + is +
                        ": pass an array (numpy, torch, a buffer such as bytearray, or DLPack)")
                           .c_str());
}

}  // namespace rondo::python
