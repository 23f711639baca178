#include "python/src/memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <new>

#include "python/src/array.hpp"
#include "python/src/communicator.hpp"
#include "python/src/gil.hpp"

namespace rondo::python {
namespace {

/// Ranges of library memory that were freed, by size: a step of a training asks for those of the
/// last one, and new pages take longer than their transfer. What is kept and what is in use are
/// together never more than what was in use at once. The GIL guards it.
class FreedRanges {
 public:
  /// A new range of zeros, which is not given back here; nullptr: the arena is full.
  void* allocate(size_t bytes) {
    forget_after_fork();
    void* data = rondo_alloc(bytes);
    while (data == nullptr && !ranges_.empty()) {  // they may be what fills the arena
      rondo_free(remove(ranges_.begin()));
      data = rondo_alloc(bytes);
    }
    return data;
  }

  /// A range of that size, with what it held; nullptr: the arena is full.
  void* take(size_t bytes) {
    forget_after_fork();
    void* const data = kept_or_new(bytes);
    if (data == nullptr) return nullptr;
    used_ += bytes;
    most_ = std::max(most_, used_);
    return data;
  }

  void give(void* data, size_t bytes) {
    forget_after_fork();
    if (rondo_is_library_memory(data, bytes) == 0) return rondo_free(data);  // the parent's
    used_ -= bytes;
    ranges_.emplace(bytes, data);
    kept_ += bytes;
  }

 private:
  using Ranges = std::multimap<size_t, void*>;

  void* kept_or_new(size_t bytes) {
    if (const auto found = ranges_.find(bytes); found != ranges_.end()) return remove(found);
    const size_t most = std::max(most_, used_ + bytes);
    while (!ranges_.empty() && used_ + bytes + kept_ > most) rondo_free(remove(ranges_.begin()));
    return allocate(bytes);
  }

  void* remove(Ranges::iterator range) {
    void* const data = range->second;
    kept_ -= range->first;
    ranges_.erase(range);
    return data;
  }

  /// What a parent has kept is the parent's.
  void forget_after_fork() {
    if (owner_ == ::getpid()) return;
    *this = FreedRanges();
  }

  Ranges ranges_;
  size_t kept_ = 0;  // bytes
  size_t used_ = 0;
  size_t most_ = 0;  // of used_, ever
  pid_t owner_ = ::getpid();
};

FreedRanges& freed() {
  static auto* const ranges = new FreedRanges;  // leaked: arrays outlive static objects
  return *ranges;
}

/// Library memory, exported by the buffer protocol: numpy and torch make arrays of it, which keep it.
struct Memory {
  Memory(size_t wanted, bool reused)
      : bytes(wanted),
        is_reused(reused),
        data(reused ? freed().take(bytes) : freed().allocate(bytes)) {
    if (data == nullptr) throw std::bad_alloc();
  }
  ~Memory() { is_reused ? freed().give(data, bytes) : rondo_free(data); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  size_t bytes;
  bool is_reused;
  void* data;
};

/// Memory of a CUDA device: torch and cupy make arrays of it, which keep it. If it is registered when
/// the last of them goes, it is never freed. CUDA may wait for kernels, and they for another thread
/// of Python's, so neither call holds the interpreter.
struct DeviceMemory {
  DeviceMemory(size_t wanted, int device) : bytes(wanted) {
    const auto allocate = [&] {
      const ReleasedGil released;
      return rondo_device_alloc(wanted, device, &data);
    };
    check(allocate(), -1);
  }
  ~DeviceMemory() {
    const ReleasedGil released;
    (void)rondo_device_free(data);
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  /// CUDA's array interface, version 3: bytes.
  nb::dict array_interface() const {
    nb::dict interface;
    interface["shape"] = nb::make_tuple(bytes);
    interface["typestr"] = "|u1";
    interface["data"] = nb::make_tuple(reinterpret_cast<uintptr_t>(data), false);
    interface["version"] = 3;
    return interface;
  }

  size_t bytes;
  void* data = nullptr;
};

int export_memory(PyObject* self, Py_buffer* view, int flags) {
  const auto* memory = nb::inst_ptr<Memory>(self);
  return PyBuffer_FillInfo(view, self, memory->data, static_cast<Py_ssize_t>(memory->bytes), 0,
                           flags);
}

PyType_Slot memory_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(export_memory)},
                              {0, nullptr}};

}  // namespace

void bind_memory(nb::module_& module) {
  nb::class_<Memory>(module, "Memory", nb::type_slots(memory_slots))
      .def(nb::init<size_t, bool>(), nb::arg("bytes"), nb::arg("reused") = false);
  nb::class_<DeviceMemory>(module, "DeviceMemory")
      .def(nb::init<size_t, int>(), nb::arg("bytes"), nb::arg("device") = 0)
      .def_prop_ro("__cuda_array_interface__", &DeviceMemory::array_interface);
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
}

}  // namespace rondo::python
