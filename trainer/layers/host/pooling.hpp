// Pooling of images [planes x height x width], a plane being one channel of one sample: the largest
// of each 2 x 2 window, and the average of a whole plane. Refuses other windows.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rondo::trainer {

struct PoolShape {
  size_t planes, height, width;

  /// Windows do not overlap; an odd last row or column belongs to none, as in PyTorch.
  size_t out_height() const { return height / 2; }
  size_t out_width() const { return width / 2; }
  size_t out_count() const { return planes * out_height() * out_width(); }
};

/// y[planes x out_height x out_width]; which[same] is where in its window each stood, row by row 0
/// to 3: the first of equals, as in PyTorch. A NaN is larger than any number.
template <class T>
void max_pool_forward(const PoolShape& shape, const T* x, T* y, uint8_t* which);

/// dx[planes x height x width]: each dy where its value stood, zero elsewhere.
template <class T>
void max_pool_backward(const PoolShape& shape, const T* dy, const uint8_t* which, T* dx);

/// y[planes] = the averages of x[planes x pixels]. REQUIRES: pixels > 0.
template <class T>
void average_pool_forward(size_t planes, size_t pixels, const T* x, T* y);

template <class T>
void average_pool_backward(size_t planes, size_t pixels, const T* dy, T* dx);

}  // namespace rondo::trainer
