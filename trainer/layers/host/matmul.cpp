// See matmul.hpp. Empty sums are settled here, because BLAS implementations differ about them.
#include "trainer/layers/host/matmul.hpp"

#include <cblas.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <vector>

namespace rondo::trainer {
namespace {

template <class T>
CBLAS_TRANSPOSE transposition(const Matrix<T>& matrix) {
  return matrix.transposed ? CblasTrans : CblasNoTrans;
}

void gemm(const Product<float>& p) {
  cblas_sgemm(CblasRowMajor, transposition(p.a), transposition(p.b), static_cast<blasint>(p.m),
              static_cast<blasint>(p.n), static_cast<blasint>(p.k), p.alpha, p.a.data,
              static_cast<blasint>(p.a.stride), p.b.data, static_cast<blasint>(p.b.stride), p.beta,
              p.c.data, static_cast<blasint>(p.c.stride));
}

void gemm(const Product<double>& p) {
  cblas_dgemm(CblasRowMajor, transposition(p.a), transposition(p.b), static_cast<blasint>(p.m),
              static_cast<blasint>(p.n), static_cast<blasint>(p.k), p.alpha, p.a.data,
              static_cast<blasint>(p.a.stride), p.b.data, static_cast<blasint>(p.b.stride), p.beta,
              p.c.data, static_cast<blasint>(p.c.stride));
}

/// c = beta c.
template <class T>
void scale(const Product<T>& p) {
  for (size_t i = 0; i < p.m; ++i) {
    T* row = p.c.data + i * p.c.stride;
    for (size_t j = 0; j < p.n; ++j) row[j] = p.beta == T{0} ? T{0} : p.beta * row[j];
  }
}

}  // namespace

template <class T>
void multiply(const Product<T>& product) {
  if (product.m == 0 || product.n == 0) return;
  if (product.k == 0) return scale(product);
  gemm(product);
}

template <class T>
void multiply_forward(const LinearShape& shape, const T* x, const T* w, T* y) {
  multiply<T>({.m = shape.rows,
               .n = shape.out,
               .k = shape.in,
               .a = {x, shape.in},
               .b = {.data = w, .stride = shape.in, .transposed = true},
               .c = {y, shape.y_stride()}});
}

template <class T>
void multiply_input_gradient(const LinearShape& shape, const T* dy, const T* w, T* dx) {
  multiply<T>({.m = shape.rows,
               .n = shape.in,
               .k = shape.out,
               .a = {dy, shape.y_stride()},
               .b = {w, shape.in},
               .c = {dx, shape.in}});
}

template <class T>
void multiply_weight_gradient(const LinearShape& shape, const WeightPanel& panel, const T* dy,
                              const T* x, T* dw, bool accumulate) {
  multiply<T>({.m = panel.count,
               .n = shape.in,
               .k = shape.rows,
               .a = {.data = dy + panel.first, .stride = shape.y_stride(), .transposed = true},
               .b = {x, shape.in},
               .beta = accumulate ? T{1} : T{0},
               .c = {dw + panel.first * shape.in, shape.in}});
}

template <class T>
void multiply_weight_gradient(const LinearShape& shape, const T* dy, const T* x, T* dw,
                              bool accumulate) {
  multiply_weight_gradient(shape, {.first = 0, .count = shape.out}, dy, x, dw, accumulate);
}

Status set_matmul_threads(int threads) {
  // Of each thread: OpenBLAS's BUFFER_SIZE, a stack, and room for the factors below.
  constexpr size_t kWorkMib = 128 + 16;
  const size_t mib = kWorkMib * static_cast<size_t>(threads);
  void* const trial =
      mmap(nullptr, mib << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (trial == MAP_FAILED) {
    return Status(
        Code::kResourceExhausted,
        fmt::format("matrix products with --compute-threads {} need {} MiB of address space: {}. "
                    "Raise the limit (ulimit -v), or use fewer threads",
                    threads, mib, std::strerror(errno)));
  }
  munmap(trial, mib << 20);
  openblas_set_num_threads(threads);
  // Large enough that every thread takes its work memory now. OpenBLAS keeps it.
  constexpr size_t kExtent = 192;
  const std::vector<float> factor(kExtent * kExtent);
  std::vector<float> product(factor.size());
  multiply<float>({.m = kExtent,
                   .n = kExtent,
                   .k = kExtent,
                   .a = {factor.data(), kExtent},
                   .b = {factor.data(), kExtent},
                   .c = {product.data(), kExtent}});
  return {};
}
const char* matmul_core() { return openblas_get_corename(); }

template void multiply(const Product<float>&);
template void multiply(const Product<double>&);
template void multiply_forward(const LinearShape&, const float*, const float*, float*);
template void multiply_forward(const LinearShape&, const double*, const double*, double*);
template void multiply_input_gradient(const LinearShape&, const float*, const float*, float*);
template void multiply_input_gradient(const LinearShape&, const double*, const double*, double*);
template void multiply_weight_gradient(const LinearShape&, const WeightPanel&, const float*,
                                       const float*, float*, bool);
template void multiply_weight_gradient(const LinearShape&, const WeightPanel&, const double*,
                                       const double*, double*, bool);
template void multiply_weight_gradient(const LinearShape&, const float*, const float*, float*,
                                       bool);
template void multiply_weight_gradient(const LinearShape&, const double*, const double*, double*,
                                       bool);

}  // namespace rondo::trainer
