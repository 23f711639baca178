// An optimizer's memory: zeros, aligned to pages, whose untouched pages cost nothing. A rank that
// updates only its own shard (ZeRO-1) therefore pays for its shard alone, although its arrays are
// numbered as the whole parameters are. Not for communication: see buffer.hpp.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <new>

namespace rondo::trainer {

/// Owns `count` elements. Throws std::bad_alloc.
template <class T>
class StateArray {
 public:
  explicit StateArray(size_t count) : bytes_(count * sizeof(T)) {
    if (bytes_ == 0) return;
    void* pages = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<T*>(pages);
  }
  ~StateArray() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  StateArray(const StateArray&) = delete;
  StateArray& operator=(const StateArray&) = delete;

  /// Null when empty.
  T* data() { return data_; }

 private:
  const size_t bytes_;
  T* data_ = nullptr;
};

}  // namespace rondo::trainer
