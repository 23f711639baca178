// PowerSGD as a communication hook: each matrix travels as two thin ones of `rank` columns, whose
// product approximates it; what the approximation lacks is added to the next step's gradient.
// Vogels, Karimireddy, Jaggi: "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
// Optimization", NeurIPS 2019, algorithms 1 and 2, warm start included. Two collectives a bucket,
// of which the second depends on the first:
//
//   M = factor x gradient + error      rows x columns; the columns' factors Q of the last step
//   P = sum over ranks of M Q          all-reduce 1, with the tensors that are not compressed
//   P = orthonormal columns of P
//   Q = sum over ranks of M^T P        all-reduce 2
//   gradient = P Q^T                   error = M - P (this rank's M^T P)^T
//
// Vectors, small matrices and types other than float travel whole.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <rondo/rondo.hpp>
#include <utility>
#include <vector>

class PowerSgdHook : public rondo::CommunicationHook {
 public:
  explicit PowerSgdHook(size_t rank = 2) : rank_(rank) {}
  std::string name() const override { return "powersgd-" + std::to_string(rank_); }

  size_t collectives(const rondo::GradientBucket& bucket) const override {
    const auto is_matrix = [this](const Part& part) { return compresses(part); };
    const bool any = std::any_of(bucket.parts.begin(), bucket.parts.end(), is_matrix);
    return bucket.type == rondo::DataType::kFloat32 && any ? 2 : 1;
  }

  rondo::Work start(rondo::Communicator& ranks, const rondo::GradientBucket& bucket) override {
    if (collectives(bucket) == 1) {
      rondo::CallOptions scaled;
      scaled.factor = bucket.factor;
      return ranks.all_reduce_async(bucket.data, bucket.data, bucket.count, bucket.type,
                                    rondo::ReduceOp::kMulSum, scaled);
    }
    std::vector<float>& wire = first_[bucket.index];
    wire.clear();
    for (const Part& part : bucket.parts) {
      const auto* gradient = static_cast<float*>(part.data);
      const auto factor = static_cast<float>(bucket.factor);
      if (!compresses(part)) {
        for (size_t i = 0; i < part.end - part.begin; ++i) wire.push_back(factor * gradient[i]);
        continue;
      }
      LowRank& m = matrix(part);
      for (size_t i = 0; i < m.values.size(); ++i) m.values[i] += factor * gradient[i];
      multiply(m.values.data(), m.rows, m.columns, m.q, wire);
    }
    return ranks.all_reduce_async(wire.data(), wire.data(), wire.size(), bucket.type);
  }

  rondo::Work next(rondo::Communicator& ranks, const rondo::GradientBucket& bucket,
                   size_t /*stage*/) override {
    std::vector<float>& wire = second_[bucket.index];
    wire.clear();
    float* from = first_[bucket.index].data();
    for (const Part& part : bucket.parts) {
      if (!compresses(part)) {
        from += part.end - part.begin;
        continue;
      }
      LowRank& m = matrix(part);
      m.p.assign(from, from + m.rows * rank_);
      from += m.p.size();
      orthonormalize(m.p, m.rows);
      m.own_q.assign(m.columns * rank_, 0);
      for (size_t r = 0; r < m.rows; ++r) {
        for (size_t c = 0; c < m.columns; ++c) {
          for (size_t k = 0; k < rank_; ++k) {
            m.own_q[c * rank_ + k] += m.values[r * m.columns + c] * m.p[r * rank_ + k];
          }
        }
      }
      wire.insert(wire.end(), m.own_q.begin(), m.own_q.end());
    }
    return ranks.all_reduce_async(wire.data(), wire.data(), wire.size(), bucket.type);
  }

  void finish(const rondo::GradientBucket& bucket) override {
    if (collectives(bucket) == 1) return;
    const float* first = first_[bucket.index].data();
    const float* second = second_[bucket.index].data();
    for (const Part& part : bucket.parts) {
      auto* gradient = static_cast<float*>(part.data);
      if (!compresses(part)) {
        std::copy(first, first + (part.end - part.begin), gradient);
        first += part.end - part.begin;
        continue;
      }
      LowRank& m = matrix(part);
      first += m.p.size();
      for (size_t r = 0; r < m.rows; ++r) {
        for (size_t c = 0; c < m.columns; ++c) {
          const float* p = &m.p[r * rank_];
          gradient[r * m.columns + c] = dot(p, second + c * rank_);
          m.values[r * m.columns + c] -= dot(p, &m.own_q[c * rank_]);
        }
      }
      // Of zeros there is nothing to start from.
      const float* end = second + m.q.size();
      if (std::any_of(second, end, [](float q) { return q != 0; })) m.q.assign(second, end);
      second = end;
    }
  }

 private:
  using Part = rondo::GradientBucket::BucketPart;
  struct LowRank {
    size_t rows, columns;
    std::vector<float> values;       // M in a step; between two steps the error
    std::vector<float> q, p, own_q;  // by rows, `rank` columns
  };

  static size_t columns_of(const Part& part) {
    size_t columns = 1;
    for (const size_t extent : part.shape.subspan(1)) columns *= extent;
    return columns;
  }
  bool compresses(const Part& part) const {
    const size_t columns = columns_of(part), rows = (part.end - part.begin) / columns;
    return part.shape.size() > 1 && (rows + columns) * rank_ < rows * columns;
  }

  /// All ranks begin with the same pseudo-random columns (splitmix64).
  LowRank& matrix(const Part& part) {
    LowRank& m = matrices_[{part.tensor, part.begin}];
    if (m.values.size() == part.end - part.begin) return m;
    m = {.rows = 0, .columns = columns_of(part), .values = {}, .q = {}, .p = {}, .own_q = {}};
    m.rows = (part.end - part.begin) / m.columns;
    m.values.assign(part.end - part.begin, 0);
    for (size_t i = 0; i < m.columns * rank_; ++i) {
      uint64_t bits = (part.tensor << 40) + (i + 1) * 0x9e3779b97f4a7c15;
      bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9;
      bits = (bits ^ bits >> 27) * 0x94d049bb133111eb;
      m.q.push_back(static_cast<float>((bits ^ bits >> 31) >> 40) * 0x1p-23f - 1);
    }
    return m;
  }

  float dot(const float* a, const float* b) const {
    float sum = 0;
    for (size_t k = 0; k < rank_; ++k) sum += a[k] * b[k];
    return sum;
  }

  /// Appends the rows x columns matrix times q.
  void multiply(const float* m, size_t rows, size_t columns, const std::vector<float>& q,
                std::vector<float>& to) const {
    for (size_t r = 0; r < rows; ++r) {
      const size_t begin = to.size();
      to.resize(begin + rank_);
      for (size_t c = 0; c < columns; ++c) {
        for (size_t k = 0; k < rank_; ++k) to[begin + k] += m[r * columns + c] * q[c * rank_ + k];
      }
    }
  }

  /// Gram-Schmidt on the columns; the same bits on every rank. A column that is a combination of
  /// those before becomes zeros.
  void orthonormalize(std::vector<float>& p, size_t rows) const {
    const auto product = [&](size_t a, size_t b) {
      double sum = 0;
      for (size_t r = 0; r < rows; ++r) sum += double{p[r * rank_ + a]} * p[r * rank_ + b];
      return sum;
    };
    for (size_t k = 0; k < rank_; ++k) {
      const double before = std::sqrt(product(k, k));
      for (size_t j = 0; j < k; ++j) {
        const double part = product(j, k);
        for (size_t r = 0; r < rows; ++r) {
          p[r * rank_ + k] -= static_cast<float>(part * p[r * rank_ + j]);
        }
      }
      const double norm = std::sqrt(product(k, k));
      const double scale = norm > 1e-6 * before ? 1 / norm : 0;
      for (size_t r = 0; r < rows; ++r) {
        p[r * rank_ + k] = static_cast<float>(scale * p[r * rank_ + k]);
      }
    }
  }

  const size_t rank_;
  std::map<std::pair<size_t, size_t>, LowRank> matrices_;  // by tensor and first element
  std::map<size_t, std::vector<float>> first_, second_;    // by bucket: what travels
};
