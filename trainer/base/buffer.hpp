// Zeroed, 64-byte aligned memory: the library's where it can be had, so that all-reduces go
// straight from buffer to buffer, else ordinary memory. Not a container: it never grows and never
// copies.
#pragma once

#include <cstddef>
#include <cstring>
#include <new>
#include <utility>

#include "rondo/memory.hpp"

namespace rondo::trainer {

/// Owns `count` elements of T. Throws std::bad_alloc when neither memory is left.
template <class T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t count) : count_(count) {
    const size_t bytes = count * sizeof(T);
    data_ = static_cast<T*>(rondo::alloc(bytes));
    if (data_ != nullptr) return;
    library_ = false;
    data_ = static_cast<T*>(::operator new(bytes, kAlignment));
    std::memset(data_, 0, bytes);
  }
  ~Buffer() {
    if (library_) {
      rondo::dealloc(data_);
    } else {
      ::operator delete(data_, kAlignment);
    }
  }
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t count() const { return count_; }
  size_t bytes() const { return count_ * sizeof(T); }

 private:
  static constexpr std::align_val_t kAlignment{64};

  void swap(Buffer& other) {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    std::swap(library_, other.library_);
  }

  T* data_ = nullptr;
  size_t count_ = 0;
  bool library_ = true;
};

}  // namespace rondo::trainer
