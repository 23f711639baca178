// See second_gradient.hpp.
#include "trainer/ddp/second_gradient.hpp"

#include <algorithm>
#include <numeric>

#include "trainer/ddp/element.hpp"

namespace rondo::ddp {

SecondGradient::SecondGradient(Communicator& communicator, const DdpTensor& tensor,
                               const DdpOptions& options, void* gradient)
    : communicator_(communicator),
      options_(options),
      type_(*tensor.type),
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
  const size_t row_bytes = width_ * size_of(type_) + sizeof(int32_t);
  const size_t element_bytes = options_.hook ? options_.hook->wire_bytes(type_) : size_of(type_);
  // An all-gather moves every rank's rows once, an all-reduce the whole tensor twice.
  return rows * row_bytes < 2 * rows_ * width_ * element_bytes;
}

template <class E>
void SecondGradient::pack(double factor) {
  using Stored = typename E::Stored;
  values_.resize(touched_.size() * width_ * sizeof(Stored));
  auto* to = reinterpret_cast<Stored*>(values_.data());
  for (const int32_t row : touched_) {
    const Stored* from = static_cast<const Stored*>(gradient_) + static_cast<size_t>(row) * width_;
    to = std::transform(from, from + width_, to,
                        [f = static_cast<typename E::Folded>(factor)](Stored value) {
                          return E::narrow(E::widen(value) * f);
                        });
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
  with_element(type_, [&]<class E>(E /*type*/) { pack<E>(factor); });
  all_touched_.resize(rows);
  all_values_.resize(rows * width_ * size_of(type_));
  index_work_.push_back(communicator_.all_gather_v_async(touched_.data(), all_touched_.data(),
                                                         row_counts_, {}, DataType::kInt32));
  return communicator_.all_gather_v_async(values_.data(), all_values_.data(), elements_, {}, type_);
}

template <class E>
void SecondGradient::add(void* base, const DdpRange& range) const {
  using Stored = typename E::Stored;
  auto* const sums = static_cast<Stored*>(base);
  // `values` are those of elements [begin, end) of the tensor.
  const auto add_within = [&](const Stored* values, size_t begin, size_t end) {
    const size_t last = std::min(end, range.end);
    for (size_t i = std::max(begin, range.begin); i < last; ++i) {
      sums[i] = E::narrow(E::widen(sums[i]) + E::widen(values[i - begin]));
    }
  };
  if (whole_) return add_within(static_cast<const Stored*>(gradient_), 0, rows_ * width_);
  const auto* values = reinterpret_cast<const Stored*>(all_values_.data());
  for (const int32_t row : all_touched_) {
    const size_t begin = static_cast<size_t>(row) * width_;
    add_within(values, begin, begin + width_);
    values += width_;
  }
}

Status SecondGradient::add_to(void* base, std::span<const DdpRange> ranges) {
  if (!index_work_.empty()) RONDO_TRY(index_work_[0].wait());
  for (const DdpRange& range : ranges) {
    with_element(type_, [&]<class E>(E /*type*/) { add<E>(base, range); });
  }
  return {};
}

}  // namespace rondo::ddp
