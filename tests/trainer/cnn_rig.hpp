// What the tests of the convolutional network share: a small network, and samples.
#pragma once

#include <utility>
#include <vector>

#include "tests/trainer/model_rig.hpp"
#include "trainer/models/cnn.hpp"

namespace rondo::trainer::testing {

inline CnnShape small(size_t batch) {
  return {.layers = 2,
          .width = 2,
          .channels = 2,
          .height = 6,
          .width_pixels = 7,
          .classes = 3,
          .batch = batch};
}

template <class T>
struct CnnRig : ModelRig<T> {
  explicit CnnRig(const CnnShape& shape, SumOverRanks sum = nullptr)
      : ModelRig<T>(make_cnn<T>(shape, std::move(sum))) {}
};

/// Samples, and shares of them.
struct Samples {
  Samples(const CnnShape& shape, size_t samples)
      : size(shape.channels * shape.height * shape.width_pixels),
        images(samples * size),
        targets(samples) {
    for (size_t i = 0; i < images.size(); ++i) {
      images[i] = static_cast<float>(0.5 + 0.5 * symmetric_unit(i + 31));
    }
    for (size_t i = 0; i < samples; ++i) {
      targets[i] = static_cast<int32_t>(mix(i + 5) % shape.classes);
    }
  }
  Batch share(size_t first, size_t count) const {
    return {.size = count,
            .tokens = nullptr,
            .images = count == 0 ? nullptr : images.data() + first * size,
            .targets = count == 0 ? nullptr : targets.data() + first,
            .ids = nullptr};
  }
  Batch all() const { return share(0, targets.size()); }

  size_t size;
  std::vector<float> images;
  std::vector<int32_t> targets;
};

}  // namespace rondo::trainer::testing
