// Convolution of images (cross-correlation, as everywhere in this field): forward and, by hand,
// backward. Images are [samples x channels x height x width]. Refuses dilation, groups and kernels
// that are not square.
#pragma once

#include <cstddef>

namespace rondo::trainer {

/// REQUIRES: kernel <= height + 2 * padding, and the same of width; stride >= 1.
struct ConvolutionShape {
  size_t samples, in_channels, height, width, out_channels, kernel;
  size_t stride = 1, padding = 0;

  size_t out_height() const { return (height + 2 * padding - kernel) / stride + 1; }
  size_t out_width() const { return (width + 2 * padding - kernel) / stride + 1; }
  size_t out_pixels() const { return out_height() * out_width(); }
  /// Elements of one sample.
  size_t in_size() const { return in_channels * height * width; }
  size_t out_size() const { return out_channels * out_pixels(); }
  /// What one output pixel sees of its sample: elements under the kernel.
  size_t patch() const { return in_channels * kernel * kernel; }
  /// Elements of the scratch memory `columns`: one sample's patches.
  size_t columns() const { return patch() * out_pixels(); }
};

/// y[samples x out_channels x out_height x out_width] = w * x, with
/// w[out_channels x in_channels x kernel x kernel].
template <class T>
void convolution_forward(const ConvolutionShape& shape, const T* x, const T* w, T* columns, T* y);

/// dw = the gradient with respect to w, or dw += when `accumulate`.
template <class T>
void convolution_backward_weight(const ConvolutionShape& shape, const T* dy, const T* x, T* columns,
                                 bool accumulate, T* dw);

template <class T>
void convolution_backward_input(const ConvolutionShape& shape, const T* dy, const T* w, T* columns,
                                T* dx);

/// In place on a convolution's output: y += bias[out_channels], then max(0, y) when `relu`.
template <class T>
void convolution_bias_forward(const ConvolutionShape& shape, const T* bias, bool relu, T* y);

/// dbias[out_channels] = the sums of dy over samples and pixels, or dbias += when `accumulate`.
template <class T>
void convolution_bias_backward(const ConvolutionShape& shape, const T* dy, bool accumulate,
                               T* dbias);

}  // namespace rondo::trainer
