// See input_queue.hpp.
#include "trainer/layers/cuda/input_queue.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace rondo::trainer::cuda {

template <class T>
InputQueue<T>::InputQueue(Device& device, const InputSizes& sizes)
    : device_(device),
      sizes_(sizes),
      places_(places_of(sizes)),
      memory_(device, places_.end),
      places_left_(sizes.symbols) {
  for (InputSlot& slot : slots_) {
    slot.memory = PinnedArray<std::byte>(device, places_.end);
    std::fill_n(slot.memory.data(), places_.end, std::byte{0});
    const Result<Device::Event> made = device.cuda().create_event();
    device.note(made.status());
    if (made.ok()) slot.copied = *made;
  }
}

template <class T>
InputQueue<T>::~InputQueue() {
  for (const InputSlot& slot : slots_) {
    if (slot.copied != nullptr) (void)device_.cuda().destroy_event(slot.copied);
  }
}

template <class T>
auto InputQueue<T>::places_of(const InputSizes& sizes) -> InputPlaces {
  size_t end = 0;
  const auto place = [&end](size_t bytes) {
    constexpr size_t kAlignment = 256;
    return std::exchange(end, (end + bytes + kAlignment - 1) / kAlignment * kAlignment);
  };
  const size_t tokens = sizes.samples * sizes.tokens;
  InputPlaces places{};
  places.keys = place(sizes.draws ? sizes.samples * sizeof(uint64_t) : 0);
  places.targets = place(sizes.samples * sizes.targets * sizeof(int32_t));
  places.tokens = place(tokens * sizeof(int32_t));
  places.order = place(tokens * sizeof(int32_t));
  places.images = place(sizes.samples * sizes.pixels * sizeof(T));
  places.end = end;
  return places;
}

/// By counting.
template <class T>
void InputQueue<T>::sort(const int32_t* tokens, size_t count, int32_t* order) {
  std::fill(places_left_.begin(), places_left_.end(), 0);
  for (size_t i = 0; i < count; ++i) ++places_left_[static_cast<size_t>(tokens[i])];
  std::exclusive_scan(places_left_.begin(), places_left_.end(), places_left_.begin(), 0);
  for (size_t i = 0; i < count; ++i) {
    order[places_left_[static_cast<size_t>(tokens[i])]++] = static_cast<int32_t>(i);
  }
}

template <class T>
Inputs<T> InputQueue<T>::take(const Batch& batch, bool training, uint64_t key) {
  InputSlot& slot = slots_[next_++ % kAhead];
  if (!device_.await(slot.copied).ok()) return {};
  std::byte *const host = slot.memory.data(), *const device = memory_.data();
  const size_t samples = batch.size, tokens = samples * sizes_.tokens;
  const bool draws = training && sizes_.draws, sorts = training && tokens > 0;
  for (size_t s = 0; draws && s < samples; ++s) {
    at<uint64_t>(host, places_.keys)[s] = sample_key(key, batch.ids[s]);
  }
  std::copy_n(batch.targets, samples * sizes_.targets, at<int32_t>(host, places_.targets));
  std::copy_n(batch.tokens, tokens, at<int32_t>(host, places_.tokens));
  if (sorts) sort(batch.tokens, tokens, at<int32_t>(host, places_.order));
  for (size_t i = 0; i < samples * sizes_.pixels; ++i) {
    at<T>(host, places_.images)[i] = narrow<T>(batch.images[i]);
  }
  device_.copy(device, host, places_.end);
  device_.note(device_.cuda().record(slot.copied, device_.stream()));
  return {.tokens = at<int32_t>(device, places_.tokens),
          .images = at<T>(device, places_.images),
          .targets = at<int32_t>(device, places_.targets),
          .keys = draws ? at<uint64_t>(device, places_.keys) : nullptr,
          .order = sorts ? at<int32_t>(device, places_.order) : nullptr};
}

template class InputQueue<float>;
template class InputQueue<BFloat16Bits>;
template class InputQueue<Float16Bits>;

}  // namespace rondo::trainer::cuda
