// See attention.hpp. Every product reads and writes heads where they lie, by the strides of qkv and
// y. Each comes in two parts: keys before a block of queries, which all of these see, are BLAS's;
// the block's own keys, of which each query sees one more than the query before, are
// causal_product's.
#include "trainer/layers/host/attention.hpp"

#include <algorithm>
#include <cmath>

#include "trainer/layers/host/causal_product.hpp"
#include "trainer/layers/host/matmul.hpp"
#include "trainer/layers/host/softmax.hpp"

namespace rondo::trainer {
namespace {

constexpr size_t kBlock = 64;  // queries: scores of a long context stay in the caches

/// Queries first .. first + rows, and all keys that one of them sees.
struct QueryBlock {
  size_t first, rows, offset;  // offset: of its probabilities among the head's

  size_t keys() const { return first + rows; }
  size_t count() const { return rows * keys(); }
  CausalBlock causal() const { return {.rows = rows, .first = first, .width = keys()}; }
};

size_t block_count(size_t context) { return (context + kBlock - 1) / kBlock; }

QueryBlock block_of(size_t context, size_t index) {
  const size_t first = index * kBlock;
  // All blocks before this one are whole: kBlock rows of kBlock, 2 kBlock, ... keys.
  return {.first = first,
          .rows = std::min(kBlock, context - first),
          .offset = kBlock * kBlock * (index * (index + 1) / 2)};
}

/// One head of one sample: where its matrices begin in qkv, in y, and among the probabilities.
struct Head {
  size_t q, k, v, y, probabilities;
};

Head head_of(const AttentionShape& shape, size_t sample, size_t head) {
  const size_t column = head * shape.head_size();
  const size_t q = sample * shape.context * 3 * shape.width + column;
  return {.q = q,
          .k = q + shape.width,
          .v = q + 2 * shape.width,
          .y = sample * shape.context * shape.width + column,
          .probabilities = (sample * shape.heads + head) * probabilities_per_head(shape.context)};
}

/// scores[rows x keys] = alpha a b^T, of the block's queries a and all keys b; what a query does
/// not see is left as it is. scratch: [size x rows].
template <class T>
void multiply_pairs(const QueryBlock& block, size_t size, T alpha, const Matrix<const T>& a,
                    const Matrix<const T>& b, T* scratch, T* scores) {
  multiply<T>({.m = block.rows,
               .n = block.first,
               .k = size,
               .alpha = alpha,
               .a = a,
               .b = {.data = b.data, .stride = b.stride, .transposed = true},
               .c = {scores, block.keys()}});
  const CausalProducts<T>& kernels = causal_products_kernels<T>();
  kernels.transpose(block.rows, size, b.data + block.first * b.stride, b.stride, scratch);
  kernels.multiply({.causal = Causal::kResult,
                    .m = block.rows,
                    .n = block.rows,
                    .k = size,
                    .alpha = alpha,
                    .a = a.data,
                    .a_row = a.stride,
                    .a_column = 1,
                    .b = scratch,
                    .b_row = block.rows,
                    .c = scores + block.first,
                    .c_row = block.keys()});
}

/// to[rows x size] = weights[rows x keys] b: for the block's queries, sums over the keys.
template <class T>
void sum_keys(const QueryBlock& block, size_t size, const T* weights, const Matrix<const T>& b,
              const Matrix<T>& to) {
  if (block.first > 0) {
    multiply<T>({.m = block.rows,
                 .n = size,
                 .k = block.first,
                 .a = {weights, block.keys()},
                 .b = b,
                 .c = to});
  }
  causal_products_kernels<T>().multiply({.causal = Causal::kTerms,
                                         .m = block.rows,
                                         .n = size,
                                         .k = block.rows,
                                         .a = weights + block.first,
                                         .a_row = block.keys(),
                                         .a_column = 1,
                                         .b = b.data + block.first * b.stride,
                                         .b_row = b.stride,
                                         .accumulate = block.first > 0,
                                         .c = to.data,
                                         .c_row = to.stride});
}

/// to[keys x size] = weights[rows x keys]^T b, or +=: for all keys, sums over the block's queries.
template <class T>
void sum_queries(const QueryBlock& block, size_t size, const T* weights, const Matrix<const T>& b,
                 bool accumulate, const Matrix<T>& to) {
  multiply<T>({.m = block.first,
               .n = size,
               .k = block.rows,
               .a = {.data = weights, .stride = block.keys(), .transposed = true},
               .b = b,
               .beta = accumulate ? T{1} : T{0},
               .c = to});
  causal_products_kernels<T>().multiply({.causal = Causal::kReturn,
                                         .m = block.rows,
                                         .n = size,
                                         .k = block.rows,
                                         .a = weights + block.first,
                                         .a_row = 1,
                                         .a_column = block.keys(),
                                         .b = b.data,
                                         .b_row = b.stride,
                                         .accumulate = accumulate,
                                         .c = to.data + block.first * to.stride,
                                         .c_row = to.stride});
}

template <class T>
T score_scale(const AttentionShape& shape) {
  return static_cast<T>(1 / std::sqrt(static_cast<double>(shape.head_size())));
}

/// In place on what belongs to each pair of a query of the block and a key that it sees.
template <class T>
void drop_pairs(const Dropout& dropout, const AttentionShape& shape, size_t sample, size_t head,
                const QueryBlock& block, T* values) {
  const uint64_t key = dropout.key(sample);
  for (size_t r = 0; r < block.rows; ++r) {
    const size_t query = block.first + r;
    drop(dropout.probability, key, (head * shape.context + query) * shape.context, query + 1,
         values + r * block.keys());
  }
}

/// The probabilities after dropout: in `scratch`, or themselves.
template <class T>
const T* dropped(const Dropout& dropout, const AttentionShape& shape, size_t sample, size_t head,
                 const QueryBlock& block, const T* probabilities, T* scratch) {
  if (dropout.probability == 0) return probabilities;
  std::copy_n(probabilities, block.count(), scratch);
  drop_pairs(dropout, shape, sample, head, block, scratch);
  return scratch;
}

template <class T>
void forward_head(const AttentionForward<T>& pass, size_t sample, size_t head) {
  const AttentionShape& shape = pass.shape;
  const Head at = head_of(shape, sample, head);
  const size_t stride = 3 * shape.width, size = shape.head_size();
  for (size_t i = 0; i < block_count(shape.context); ++i) {
    const QueryBlock block = block_of(shape.context, i);
    T* probabilities = pass.probabilities + at.probabilities + block.offset;
    multiply_pairs<T>(block, size, score_scale<T>(shape),
                      {pass.qkv + at.q + block.first * stride, stride}, {pass.qkv + at.k, stride},
                      pass.scratch, probabilities);
    softmax_kernels<T>().causal_forward(block.causal(), probabilities);
    const T* weights =
        dropped(pass.dropout, shape, sample, head, block, probabilities, pass.scratch);
    sum_keys<T>(block, size, weights, {pass.qkv + at.v, stride},
                {pass.y + at.y + block.first * shape.width, shape.width});
  }
}

/// From the last block to the first: the last one sees all keys and writes their gradients, the
/// others add to them.
template <class T>
void backward_head(const AttentionBackward<T>& pass, size_t sample, size_t head) {
  const AttentionShape& shape = pass.shape;
  const Head at = head_of(shape, sample, head);
  const size_t stride = 3 * shape.width, size = shape.head_size();
  const size_t blocks = block_count(shape.context);
  for (size_t i = blocks; i-- > 0;) {
    const QueryBlock block = block_of(shape.context, i);
    const bool accumulate = i + 1 < blocks;
    const T* probabilities = pass.probabilities + at.probabilities + block.offset;
    const Matrix<const T> dy = {pass.dy + at.y + block.first * shape.width, shape.width};
    T* gradient = pass.scratch;  // of the probabilities, then of the scores
    T* scratch = pass.scratch + block.count();
    const T* weights = dropped(pass.dropout, shape, sample, head, block, probabilities, scratch);
    sum_queries<T>(block, size, weights, dy, accumulate, {pass.dqkv + at.v, stride});
    multiply_pairs<T>(block, size, T{1}, dy, {pass.qkv + at.v, stride}, scratch, gradient);
    if (pass.dropout.probability > 0) {
      drop_pairs(pass.dropout, shape, sample, head, block, gradient);
    }
    softmax_kernels<T>().causal_backward(block.causal(), score_scale<T>(shape), probabilities,
                                         gradient);
    sum_keys<T>(block, size, gradient, {pass.qkv + at.k, stride},
                {pass.dqkv + at.q + block.first * stride, stride});
    sum_queries<T>(block, size, gradient, {pass.qkv + at.q + block.first * stride, stride},
                   accumulate, {pass.dqkv + at.k, stride});
  }
}

}  // namespace

size_t probabilities_per_head(size_t context) {
  const QueryBlock last = block_of(context, block_count(context) - 1);
  return last.offset + last.count();
}

size_t attention_scratch(const AttentionShape& shape) {
  const size_t rows = std::min(kBlock, shape.context);
  return rows * (shape.context + std::max(shape.context, shape.head_size()));
}

template <class T>
void attention_forward(const AttentionForward<T>& pass) {
  for (size_t s = 0; s < pass.shape.samples; ++s) {
    for (size_t h = 0; h < pass.shape.heads; ++h) forward_head(pass, s, h);
  }
}

template <class T>
void attention_backward(const AttentionBackward<T>& pass) {
  for (size_t s = 0; s < pass.shape.samples; ++s) {
    for (size_t h = 0; h < pass.shape.heads; ++h) backward_head(pass, s, h);
  }
}

double attention_operations(const AttentionShape& shape) {
  constexpr double kProducts = 6;  // two forward, four backward
  const size_t pairs = shape.context * (shape.context + 1) / 2;
  return kProducts * 2 * static_cast<double>(pairs * shape.width);
}

template void attention_forward(const AttentionForward<float>&);
template void attention_forward(const AttentionForward<double>&);
template void attention_backward(const AttentionBackward<float>&);
template void attention_backward(const AttentionBackward<double>&);

}  // namespace rondo::trainer
