// Carries batches to a device: what a pass reads is gathered in pinned memory and copied in its
// stream's turn, so that nobody waits. Tokens are sorted on the way, for the embedding's gradient.
#pragma once

#include <array>
#include <vector>

#include "trainer/base/batch.hpp"
#include "trainer/base/device.hpp"
#include "trainer/layers/cuda/block.hpp"
#include "trainer/layers/operands.hpp"

namespace rondo::trainer::cuda {

/// Batches of one model. One thread; borrows the device. Throws std::bad_alloc when it is made.
template <class T>
class InputQueue {
 public:
  /// How many passes the host may be ahead of the device.
  static constexpr size_t kAhead = 8;

  InputQueue(Device& device, const InputSizes& sizes);
  /// Waits for the stream.
  ~InputQueue();
  InputQueue(const InputQueue&) = delete;
  InputQueue& operator=(const InputQueue&) = delete;

  size_t device_bytes() const { return memory_.bytes(); }

  /// Enqueues the copy; the batch may then be reused. Waits only where the device has not yet come
  /// to the copy kAhead calls ago. `key`: of the pass's random numbers, which it draws if
  /// `training`. An error is the device's.
  Inputs<T> take(const Batch& batch, bool training, uint64_t key);

 private:
  /// Where things lie, in bytes from the beginning of the memory; there and in pinned memory alike.
  struct InputPlaces {
    size_t keys, targets, tokens, order, images, end;
  };
  struct InputSlot {
    PinnedArray<std::byte> memory;
    Device::Event copied = nullptr;
  };

  static InputPlaces places_of(const InputSizes& sizes);
  /// Of memory on the device, or in a slot.
  template <class Number>
  static Number* at(std::byte* memory, size_t place) {
    return reinterpret_cast<Number*>(memory + place);
  }
  void sort(const int32_t* tokens, size_t count, int32_t* order);

  Device& device_;
  const InputSizes sizes_;
  const InputPlaces places_;
  DeviceArray<std::byte> memory_;
  std::array<InputSlot, kAhead> slots_;
  size_t next_ = 0;
  std::vector<int32_t> places_left_;  // by symbol: scratch of sort()
};

}  // namespace rondo::trainer::cuda
