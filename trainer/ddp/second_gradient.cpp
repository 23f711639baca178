// See second_gradient.hpp.
#include "trainer/ddp/second_gradient.hpp"

#include <algorithm>
#include <numeric>

namespace rondo::ddp {

SecondGradient::SecondGradient(Communicator& communicator, const DdpTensor& tensor,
                               const DdpOptions& options, void* gradient)
    : communicator_(communicator),
      options_(options),
      rows_(tensor.shape[0]),
      width_(tensor.count() / tensor.shape[0]),
      gradient_(gradient),
      counts_(static_cast<size_t>(communicator.size())) {}

void SecondGradient::begin() {
  named_ = false;
  touched_.clear();
  count_work_.clear();
  index_work_.clear();
}

void SecondGradient::touch(std::span<const int32_t> rows) {
  named_ = true;
  touched_.insert(touched_.end(), rows.begin(), rows.end());
}

void SecondGradient::exchange_counts() {
  if (options_.rows == DdpOptions::Rows::kWhole) return;
  std::sort(touched_.begin(), touched_.end());
  touched_.erase(std::unique(touched_.begin(), touched_.end()), touched_.end());
  count_ = named_ ? touched_.size() : kUnknown;
  count_work_.push_back(
      communicator_.all_gather_async(&count_, counts_.data(), 1, DataType::kUint64));
}

bool SecondGradient::fewer_bytes() const {
  if (std::find(counts_.begin(), counts_.end(), kUnknown) != counts_.end()) return false;
  if (options_.rows == DdpOptions::Rows::kTouched) return true;
  const uint64_t rows = std::accumulate(counts_.begin(), counts_.end(), uint64_t{0});
  const size_t row_bytes = width_ * size_of(options_.type) + sizeof(int32_t);
  const size_t element_bytes =
      options_.hook ? options_.hook->wire_bytes(options_.type) : size_of(options_.type);
  // An all-gather moves every rank's rows once, an all-reduce the whole tensor twice.
  return rows * row_bytes < 2 * rows_ * width_ * element_bytes;
}

template <class T>
void SecondGradient::pack(double factor) {
  values_.resize(touched_.size() * width_ * sizeof(T));
  T* to = reinterpret_cast<T*>(values_.data());
  for (const int32_t row : touched_) {
    const T* from = static_cast<const T*>(gradient_) + static_cast<size_t>(row) * width_;
    to = std::transform(from, from + width_, to,
                        [f = static_cast<T>(factor)](T value) { return value * f; });
  }
}

bool SecondGradient::must_travel_whole() {
  whole_ = count_work_.empty() || !count_work_[0].wait().ok() || !fewer_bytes();
  return whole_;
}

void SecondGradient::settle() {
  for (Work& work : count_work_) (void)work.wait();
  for (Work& work : index_work_) (void)work.wait();
}

Work SecondGradient::start(double factor) {
  row_counts_.assign(counts_.begin(), counts_.end());
  elements_ = row_counts_;
  for (size_t& count : elements_) count *= width_;
  const uint64_t rows = std::accumulate(counts_.begin(), counts_.end(), uint64_t{0});
  options_.type == DataType::kFloat64 ? pack<double>(factor) : pack<float>(factor);
  all_touched_.resize(rows);
  all_values_.resize(rows * width_ * size_of(options_.type));
  index_work_.push_back(communicator_.all_gather_v_async(touched_.data(), all_touched_.data(),
                                                         row_counts_, {}, DataType::kInt32));
  return communicator_.all_gather_v_async(values_.data(), all_values_.data(), elements_, {},
                                          options_.type);
}

template <class T>
void SecondGradient::add(T* base, const DdpRange& range) const {
  // `values` are those of elements [begin, end) of the tensor.
  const auto add_within = [&](const T* values, size_t begin, size_t end) {
    const size_t last = std::min(end, range.end);
    for (size_t i = std::max(begin, range.begin); i < last; ++i) base[i] += values[i - begin];
  };
  if (whole_) return add_within(static_cast<const T*>(gradient_), 0, rows_ * width_);
  const T* values = reinterpret_cast<const T*>(all_values_.data());
  for (const int32_t row : all_touched_) {
    const size_t begin = static_cast<size_t>(row) * width_;
    add_within(values, begin, begin + width_);
    values += width_;
  }
}

Status SecondGradient::add_to(void* base, std::span<const DdpRange> ranges) {
  if (!index_work_.empty()) RONDO_TRY(index_work_[0].wait());
  for (const DdpRange& range : ranges) {
    if (options_.type == DataType::kFloat64) {
      add(static_cast<double*>(base), range);
    } else {
      add(static_cast<float*>(base), range);
    }
  }
  return {};
}

}  // namespace rondo::ddp
