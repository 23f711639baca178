// A convolution as a matrix product (im2col: Chellapilla, Puri, Simard 2006), sample by sample: the
// patches of one sample become the columns of a matrix that stays in cache, where those of a whole
// batch would not. Backward unfolds them again, which costs less than keeping them.
#include "trainer/layers/host/convolution.hpp"

#include <algorithm>

#include "trainer/layers/host/lane_sum.hpp"
#include "trainer/layers/host/matmul.hpp"

namespace rondo::trainer {
namespace {

/// Output positions [begin, end) at which one offset in the kernel lies inside the image.
struct Inside {
  size_t begin, end;
};

Inside inside(const ConvolutionShape& s, size_t offset, size_t extent, size_t out_extent) {
  const auto first_at_least = [&](size_t position) {  // position: in the padded image
    return offset >= position ? 0 : (position - offset + s.stride - 1) / s.stride;
  };
  const size_t end = std::min(out_extent, first_at_least(s.padding + extent));
  return {.begin = std::min(first_at_least(s.padding), end), .end = end};
}

/// Calls run(column, pixel, count) for every row of `columns` and of the output: `count` elements
/// from columns[column] on stand for every stride-th element from image[pixel] on. The elements of
/// `columns` that no run covers stand for padding: the same for every sample.
template <class Run>
void for_each_run(const ConvolutionShape& s, Run run) {
  const size_t out_height = s.out_height(), out_width = s.out_width();
  for (size_t row = 0; row < s.patch(); ++row) {
    const size_t channel = row / (s.kernel * s.kernel);
    const size_t kernel_y = row / s.kernel % s.kernel, kernel_x = row % s.kernel;
    const Inside rows = inside(s, kernel_y, s.height, out_height);
    const Inside columns = inside(s, kernel_x, s.width, out_width);
    if (columns.begin == columns.end) continue;
    for (size_t out_y = rows.begin; out_y < rows.end; ++out_y) {
      const size_t y = out_y * s.stride + kernel_y - s.padding;
      const size_t x = columns.begin * s.stride + kernel_x - s.padding;
      run((row * out_height + out_y) * out_width + columns.begin,
          (channel * s.height + y) * s.width + x, columns.end - columns.begin);
    }
  }
}

/// columns[patch x out_pixels] from image[in_channels x height x width], but for the padding.
template <class T>
void unfold(const ConvolutionShape& s, const T* image, T* columns) {
  for_each_run(s, [&](size_t column, size_t pixel, size_t count) {
    const T* from = image + pixel;
    T* to = columns + column;
    if (s.stride == 1) {
      std::copy_n(from, count, to);
    } else {
      for (size_t i = 0; i < count; ++i) to[i] = from[i * s.stride];
    }
  });
}

/// The transpose of unfold: image += what each of its elements stands for in columns.
template <class T>
void fold(const ConvolutionShape& s, const T* columns, T* image) {
  for_each_run(s, [&](size_t column, size_t pixel, size_t count) {
    const T* from = columns + column;
    T* to = image + pixel;
    if (s.stride == 1) {
      for (size_t i = 0; i < count; ++i) to[i] += from[i];
    } else {
      for (size_t i = 0; i < count; ++i) to[i * s.stride] += from[i];
    }
  });
}

}  // namespace

template <class T>
void convolution_forward(const ConvolutionShape& shape, const T* x, const T* w, T* columns, T* y) {
  std::fill_n(columns, shape.columns(), T{0});
  for (size_t s = 0; s < shape.samples; ++s) {
    unfold(shape, x + s * shape.in_size(), columns);
    multiply<T>({.m = shape.out_channels,
                 .n = shape.out_pixels(),
                 .k = shape.patch(),
                 .a = {w, shape.patch()},
                 .b = {columns, shape.out_pixels()},
                 .c = {y + s * shape.out_size(), shape.out_pixels()}});
  }
}

template <class T>
void convolution_backward_weight(const ConvolutionShape& shape, const T* dy, const T* x, T* columns,
                                 bool accumulate, T* dw) {
  if (!accumulate) std::fill_n(dw, shape.out_channels * shape.patch(), T{0});
  std::fill_n(columns, shape.columns(), T{0});
  for (size_t s = 0; s < shape.samples; ++s) {
    unfold(shape, x + s * shape.in_size(), columns);
    multiply<T>({.m = shape.out_channels,
                 .n = shape.patch(),
                 .k = shape.out_pixels(),
                 .a = {dy + s * shape.out_size(), shape.out_pixels()},
                 .b = {.data = columns, .stride = shape.out_pixels(), .transposed = true},
                 .beta = 1,
                 .c = {dw, shape.patch()}});
  }
}

template <class T>
void convolution_backward_input(const ConvolutionShape& shape, const T* dy, const T* w, T* columns,
                                T* dx) {
  std::fill_n(dx, shape.samples * shape.in_size(), T{0});
  for (size_t s = 0; s < shape.samples; ++s) {
    multiply<T>({.m = shape.patch(),
                 .n = shape.out_pixels(),
                 .k = shape.out_channels,
                 .a = {.data = w, .stride = shape.patch(), .transposed = true},
                 .b = {dy + s * shape.out_size(), shape.out_pixels()},
                 .c = {columns, shape.out_pixels()}});
    fold(shape, columns, dx + s * shape.in_size());
  }
}

template <class T>
void convolution_bias_forward(const ConvolutionShape& shape, const T* bias, bool relu, T* y) {
  const size_t pixels = shape.out_pixels();
  for (size_t plane = 0; plane < shape.samples * shape.out_channels; ++plane, y += pixels) {
    const T add = bias[plane % shape.out_channels];
    for (size_t i = 0; i < pixels; ++i) y[i] += add;
    if (!relu) continue;
    for (size_t i = 0; i < pixels; ++i) y[i] = y[i] < T{0} ? T{0} : y[i];  // NaN stays
  }
}

template <class T>
void convolution_bias_backward(const ConvolutionShape& shape, const T* dy, bool accumulate,
                               T* dbias) {
  const size_t pixels = shape.out_pixels();
  for (size_t c = 0; c < shape.out_channels; ++c) {
    double sum = accumulate ? static_cast<double>(dbias[c]) : 0;
    for (size_t s = 0; s < shape.samples; ++s) {
      const T* plane = dy + (s * shape.out_channels + c) * pixels;
      sum += lane_sum(pixels, [&](size_t i) { return static_cast<double>(plane[i]); });
    }
    dbias[c] = static_cast<T>(sum);
  }
}

template void convolution_forward(const ConvolutionShape&, const float*, const float*, float*,
                                  float*);
template void convolution_forward(const ConvolutionShape&, const double*, const double*, double*,
                                  double*);
template void convolution_backward_weight(const ConvolutionShape&, const float*, const float*,
                                          float*, bool, float*);
template void convolution_backward_weight(const ConvolutionShape&, const double*, const double*,
                                          double*, bool, double*);
template void convolution_backward_input(const ConvolutionShape&, const float*, const float*,
                                         float*, float*);
template void convolution_backward_input(const ConvolutionShape&, const double*, const double*,
                                         double*, double*);
template void convolution_bias_forward(const ConvolutionShape&, const float*, bool, float*);
template void convolution_bias_forward(const ConvolutionShape&, const double*, bool, double*);
template void convolution_bias_backward(const ConvolutionShape&, const float*, bool, float*);
template void convolution_bias_backward(const ConvolutionShape&, const double*, bool, double*);

}  // namespace rondo::trainer
