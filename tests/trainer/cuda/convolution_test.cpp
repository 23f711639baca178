// Convolutions on a GPU, walked on the host, beside the host's. Numbers are whole, so that every sum
// has one value, and memory ends where the operands do.
#include "trainer/layers/cuda/convolution.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <new>

#include "tests/trainer/cuda/values.hpp"
#include "trainer/layers/cuda/rows.hpp"
#include "trainer/layers/host/convolution.hpp"

namespace rondo::trainer::cuda_convolution_test {

using namespace cuda;           // NOLINT: this file is about it
using namespace cuda::testing;  // NOLINT: its rig

namespace {

/// Where elements lie between two pages that nobody may touch: at the first one's end, or so that
/// the second one is theirs.
enum class Edge { kBefore, kAfter };

template <class T>
class Fenced {
 public:
  Fenced(const std::vector<T>& values, Edge edge) : count_(values.size()) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t bytes = count_ * sizeof(T), room = ceil_div(bytes + 1, page) * page;
    mapped_ = room + 2 * page;
    memory_ = mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
    std::byte* const begin = static_cast<std::byte*>(memory_) + page;
    REQUIRE(mprotect(begin, room, PROT_READ | PROT_WRITE) == 0);
    data_ = reinterpret_cast<T*>(edge == Edge::kBefore ? begin : begin + room - bytes);
    std::copy(values.begin(), values.end(), data_);
  }
  ~Fenced() { munmap(memory_, mapped_); }
  Fenced(const Fenced&) = delete;
  Fenced& operator=(const Fenced&) = delete;

  T* data() const { return data_; }
  std::vector<T> values() const { return {data_, data_ + count_}; }

 private:
  size_t count_, mapped_ = 0;
  void* memory_ = nullptr;
  T* data_ = nullptr;
};

Values whole(size_t count, uint64_t key) {
  Values values = noise(count, key, 4);
  for (double& value : values) value = std::floor(value);
  return values;
}

Values noise_of_size_one(size_t count, uint64_t key) { return noise(count, key); }

/// f(rows of a tile) as the layers choose them.
template <class F>
void by_planes(size_t planes, const F& f) {
  if (planes <= 16) return f(std::integral_constant<uint32_t, 16>());
  if (planes <= 32) return f(std::integral_constant<uint32_t, 32>());
  f(std::integral_constant<uint32_t, 64>());
}

template <class T>
void forward(const ConvolutionShape& s, const T* x, const T* w, const T* bias, bool relu, T* y,
             Order order = Order::kForwards) {
  by_planes(s.out_channels, [&](auto planes) {
    walk(convolution_kernel<T, planes>(s, x, w, bias, relu, y), order);
  });
}

template <class T>
void backward_input(const ConvolutionShape& s, const T* dy, const T* w, T* dx,
                    Order order = Order::kForwards) {
  by_planes(s.in_channels, [&](auto planes) {
    for (size_t y = 0; y < std::min(s.stride, s.height); ++y) {
      for (size_t x = 0; x < std::min(s.stride, s.width); ++x) {
        walk(convolution_input_kernel<T, planes>(s, {y, x}, dy, w, dx), order);
      }
    }
  });
}

template <class T>
size_t parts_of(const ConvolutionShape& s) {
  size_t parts = 0;
  by_planes(s.out_channels, [&](auto planes) {
    parts = ConvolutionWeightKernel<T, planes>{s, nullptr, nullptr, nullptr}.parts();
  });
  return parts;
}

template <class T>
void backward_weight(const ConvolutionShape& s, const T* dy, const T* x, bool accumulate, T* dw,
                     Edge edge = Edge::kAfter, Order order = Order::kForwards) {
  using W = Wide<T>;
  const size_t weights = s.out_channels * s.patch(), parts = parts_of<T>(s);
  const Fenced<W> partial(std::vector<W>(parts * weights, std::numeric_limits<W>::quiet_NaN()),
                          edge);
  by_planes(s.out_channels, [&](auto planes) {
    using Kernel = ConvolutionWeightKernel<T, planes>;
    CHECK(parts <= Kernel::most_parts(s));
    walk(Kernel{s, x, dy, partial.data()}, order);
  });
  walk(AddSlicesKernel<T>{parts, weights, partial.data(), accumulate, dw}, order);
}

/// Operands, which are exact in T, and the host's results.
template <class T>
struct Reference {
  /// make(count, key): an operand.
  template <class Make>
  Reference(const ConvolutionShape& shape, const Make& make)
      : s(shape),
        x(as<T>(make(s.samples * s.in_size(), 1))),
        w(as<T>(make(s.out_channels * s.patch(), 2))),
        bias(as<T>(make(s.out_channels, 3))),
        dy(as<T>(make(s.samples * s.out_size(), 4))),
        dw(as<T>(make(w.size(), 5))),
        y(dy.size()),
        dx(x.size()),
        sum(wide(dw)) {
    Values columns(s.columns());
    convolution_forward(s, wide(x).data(), wide(w).data(), columns.data(), y.data());
    convolution_backward_input(s, wide(dy).data(), wide(w).data(), columns.data(), dx.data());
    convolution_backward_weight(s, wide(dy).data(), wide(x).data(), columns.data(), true,
                                sum.data());
  }
  ConvolutionShape s;
  std::vector<T> x, w, bias, dy, dw;  // operands; dw before it is added to
  Values y, dx, sum;
};

/// check(what a kernel made, what the host made in double).
template <class T, class Check>
void compare(const Reference<T>& r, Edge edge, const Check& check) {
  const ConvolutionShape& s = r.s;
  const Fenced<T> x(r.x, edge), w(r.w, edge), bias(r.bias, edge), dy(r.dy, edge), dw(r.dw, edge);
  const Fenced<T> y(as<T>(Values(r.y.size(), std::nan(""))), edge),
      dx(as<T>(Values(r.dx.size(), std::nan(""))), edge);
  forward<T>(s, x.data(), w.data(), nullptr, false, y.data());
  check(y.values(), r.y);
  Values biased = r.y;
  for (size_t i = 0; i < biased.size(); ++i) {
    biased[i] += widen(r.bias[i / s.out_pixels() % s.out_channels]);
  }
  forward<T>(s, x.data(), w.data(), bias.data(), false, y.data());
  check(y.values(), biased);
  for (double& each : biased) each = std::max(0.0, each);
  forward<T>(s, x.data(), w.data(), bias.data(), true, y.data());
  check(y.values(), biased);

  backward_input<T>(s, dy.data(), w.data(), dx.data());
  check(dx.values(), r.dx);

  backward_weight<T>(s, dy.data(), x.data(), true, dw.data(), edge);
  check(dw.values(), r.sum);
  Values alone = r.sum;
  for (size_t i = 0; i < alone.size(); ++i) alone[i] -= widen(r.dw[i]);
  backward_weight<T>(s, dy.data(), x.data(), false, dw.data(), edge);
  check(dw.values(), alone);
}

ConvolutionShape shape(size_t samples, size_t in, size_t height, size_t width, size_t out,
                       size_t kernel, size_t stride, size_t padding) {
  return {.samples = samples,
          .in_channels = in,
          .height = height,
          .width = width,
          .out_channels = out,
          .kernel = kernel,
          .stride = stride,
          .padding = padding};
}

}  // namespace

TEST_CASE(
    "cuda convolution: forward and backward are the host's, at the edges of images and tiles") {
  for (const ConvolutionShape& s :
       {shape(2, 3, 9, 7, 5, 3, 1, 1),
        shape(1, 20, 6, 11, 33, 3, 2, 1),   // 33 output and 20 input channels: more than a tile
        shape(3, 1, 5, 5, 70, 5, 1, 2),     // two tiles of channels
        shape(2, 35, 7, 8, 17, 1, 2, 0),    // input pixels that no output pixel sees
        shape(1, 2, 6, 5, 3, 2, 2, 0),      // a last column that none sees
        shape(3, 1, 3, 3, 2, 3, 2, 2),      // patches of padding only, at corners
        shape(1, 3, 8, 7, 4, 5, 2, 1),      // as many taps as the kernel has are not a stride's
        shape(2, 3, 7, 6, 4, 3, 3, 0),      //
        shape(1, 2, 3, 4, 2, 1, 1, 2),      // more padding than a tap reaches
        shape(3, 2, 1, 2, 3, 1, 3, 0),      // a stride beyond the image
        shape(1, 8, 9, 17, 16, 2, 1, 0),    // whole tiles: 128 pixels, 32 rows of patches
        shape(2, 3, 20, 22, 6, 3, 1, 1),    // pixels of several parts and tiles
        shape(1, 70, 3, 3, 2, 3, 1, 1)}) {  // two tiles of input channels; a long sum
    INFO(s.samples << " x " << s.in_channels << " x " << s.height << " x " << s.width << ", to "
                   << s.out_channels << ", kernel " << s.kernel << ", stride " << s.stride
                   << ", padding " << s.padding);
    for_each_type([&]<class T>(T) {
      const Reference<T> reference(s, whole);
      for (const Edge edge : {Edge::kBefore, Edge::kAfter}) {
        compare(reference, edge, [](const std::vector<T>& got, const Values& expected) {
          REQUIRE(wide(got) == wide(as<T>(expected)));
        });
      }
    });
  }
}

TEST_CASE("cuda convolution: no order of a block's threads changes a bit") {
  const auto check = []<class T>(T) {
    for (const size_t channels : {size_t{3}, size_t{20}, size_t{40}}) {
      const Reference<T> r(shape(2, channels, 17, 18, channels, 3, 1, 1), noise_of_size_one);
      REQUIRE(parts_of<T>(r.s) > 1);
      in_every_order<T>([&](Order order) {
        std::vector<T> y(r.dy.size()), dx(r.x.size()), dw(r.w.size());
        forward<T>(r.s, r.x.data(), r.w.data(), r.bias.data(), true, y.data(), order);
        backward_input<T>(r.s, r.dy.data(), r.w.data(), dx.data(), order);
        backward_weight<T>(r.s, r.dy.data(), r.x.data(), false, dw.data(), Edge::kAfter, order);
        y.insert(y.end(), dx.begin(), dx.end());
        y.insert(y.end(), dw.begin(), dw.end());
        return y;
      });
    }
  };
  check(float{});
  check(BFloat16Bits{});
}

TEST_CASE("cuda convolution: sums are rounded once, to the element's type") {
  for_each_type([]<class T>(T) {
    const Reference<T> reference(shape(2, 24, 6, 6, 9, 3, 1, 1), noise_of_size_one);
    compare(reference, Edge::kAfter, [](const std::vector<T>& got, const Values& expected) {
      check_close(got, expected, unit<T>() + 1e-5);
    });
  });
}

TEST_CASE("cuda convolution: a NaN stays one through ReLU, where it is seen") {
  const ConvolutionShape s = shape(1, 2, 5, 5, 2, 3, 1, 1);
  const auto check = [&]<class T>(T) {
    Values image = whole(s.in_size(), 1);
    image[25 + 12] = std::nan("");  // the middle of the second channel
    const auto x = as<T>(image), w = as<T>(whole(s.out_channels * s.patch(), 2)),
               bias = as<T>(whole(s.out_channels, 3));
    std::vector<T> y(s.out_size());
    forward<T>(s, x.data(), w.data(), bias.data(), true, y.data());
    for (size_t i = 0; i < y.size(); ++i) {
      const size_t row = i % 25 / 5, column = i % 5;
      const bool sees = row >= 1 && row <= 3 && column >= 1 && column <= 3;
      REQUIRE(std::isnan(static_cast<double>(widen(y[i]))) == sees);
    }
  };
  check(float{});
  check(BFloat16Bits{});
}

TEST_CASE("cuda convolution: an infinity makes no NaN of the zeros that fill tiles") {
  const ConvolutionShape s = shape(1, 2, 5, 5, 2, 1, 1, 0);
  const auto check = []<class T>(T, const ConvolutionShape& of) {
    const double infinity = std::numeric_limits<double>::infinity();
    const std::vector<T> x = as<T>(Values(of.in_size(), 2));
    Values weights(of.out_channels * of.patch(), 1), gradients(of.out_size(), 1);
    weights[0] = gradients[0] = infinity;
    const std::vector<T> w = as<T>(weights), dy = as<T>(gradients);
    std::vector<T> y(of.out_size()), dx(x.size()), dw(w.size());
    forward<T>(of, x.data(), w.data(), nullptr, false, y.data());
    backward_input<T>(of, as<T>(Values(y.size(), 1)).data(), w.data(), dx.data());
    backward_weight<T>(of, dy.data(), x.data(), false, dw.data());
    for (size_t i = 0; i < 25; ++i) {
      REQUIRE(widen(y[i]) == infinity);
      REQUIRE(widen(y[25 + i]) == 4);
      REQUIRE(widen(dx[i]) == infinity);
      REQUIRE(widen(dx[25 + i]) == 2);
    }
    CHECK(wide(dw) == Values{infinity, infinity, 50, 50});
  };
  check(float{}, s);
  check(BFloat16Bits{}, s);
}

TEST_CASE("cuda convolution: an infinity inside of an image stays where it is") {
  // Taps are a part of a tile's rows, and all that there could be are inside around these pixels.
  const ConvolutionShape s = shape(1, 1, 20, 20, 1, 3, 1, 1);
  const auto with_infinity_at = [&](size_t row) {
    Values values(s.in_size(), 1);
    values[row * 20 + row] = std::numeric_limits<double>::infinity();
    return as<float>(values);
  };
  const std::vector<float> x = with_infinity_at(3), dy = with_infinity_at(16);
  const std::vector<float> w = as<float>(Values(s.patch(), 1));
  std::vector<float> y(s.out_size()), dx(s.in_size());
  forward<float>(s, x.data(), w.data(), nullptr, false, y.data());
  backward_input<float>(s, dy.data(), w.data(), dx.data());
  for (const std::vector<float>& found : {y, dx}) {
    CHECK(std::ranges::count_if(found, [](float v) { return std::isinf(v); }) == 9);
    CHECK(std::ranges::none_of(found, [](float v) { return std::isnan(v); }));
  }
}

TEST_CASE("cuda convolution: of no samples the weight's gradient is nothing") {
  const ConvolutionShape s = shape(0, 2, 5, 5, 2, 3, 1, 1);
  CHECK(parts_of<float>(s) == 0);
  std::vector<float> dw(s.out_channels * s.patch(), 5);
  forward<float>(s, nullptr, dw.data(), nullptr, false, nullptr);
  backward_input<float>(s, nullptr, dw.data(), nullptr);
  backward_weight<float>(s, nullptr, nullptr, true, dw.data());
  CHECK(dw == std::vector<float>(dw.size(), 5));
  backward_weight<float>(s, nullptr, nullptr, false, dw.data());
  CHECK(dw == std::vector<float>(dw.size(), 0));
}

TEST_CASE("cuda convolution: the weight's gradient is cut into parts by its shape") {
  const auto parts = [](const ConvolutionShape& s) {
    return ConvolutionWeightKernel<float, 64>{s, nullptr, nullptr, nullptr}.parts();
  };
  CHECK(parts(shape(1, 3, 16, 16, 64, 3, 1, 1)) == 1);      // 256 pixels
  CHECK(parts(shape(256, 3, 16, 16, 64, 3, 1, 1)) == 128);  // of 512 pixels
  CHECK(parts(shape(1024, 3, 32, 32, 64, 3, 1, 1)) == 512);
  CHECK(parts(shape(1024, 512, 32, 32, 1024, 3, 1, 1)) == 1);  // 1,152 tiles make blocks enough
}

}  // namespace rondo::trainer::cuda_convolution_test
