// See device_weights.hpp.
#include "trainer/optim/cuda/device_weights.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "trainer/layers/cuda/launch.hpp"
#include "trainer/optim/cuda/device_compression.hpp"
#include "trainer/optim/cuda/flat.hpp"

namespace rondo::trainer {
namespace {

using Squares = cuda::SumOfSquaresKernel<float>;
constexpr size_t kStepsAhead = 2;  // how many the host has enqueued at most

template <class T>
DdpOptions device_ddp_options(const typename DeviceWeights<T>::WeightParts& parts) {
  DdpOptions options = ddp_options(parts.options);
  options.type = cuda::kTypeOf<T>;
  options.average = DdpOptions::Average::kNone;
  options.hook = nullptr;  // the host's
  options.rows = DdpOptions::Rows::kWhole;
  options.stream = parts.device.stream();
  options.host = &parts.host;
  return options;
}

size_t moments_of(const OptimizerOptions& options) {
  if (std::holds_alternative<AdamWOptions>(options)) return 2;
  return std::get<SgdOptions>(options).momentum != 0 ? 1 : 0;
}

}  // namespace

template <class T>
Result<DeviceWeights<T>> DeviceWeights<T>::create(const WeightParts& parts) {
  std::vector<DdpTensor> buffers = tensors_of(parts.model.buffers());
  for (DdpTensor& buffer : buffers) buffer.type = DataType::kFloat32;
  DdpOptions options = device_ddp_options<T>(parts);
  std::shared_ptr<DeviceCompression> compression;
  if (parts.options.wire_type() != options.type) {
    compression = std::make_shared<DeviceCompression>(parts.device, parts.options.wire_type());
    options.hook = compression;
  }
  DistributedDataParallel ddp = RONDO_TRY(DistributedDataParallel::create(
      parts.communicator, tensors_of(parts.model.parameters()), std::move(buffers), options));
  if (compression) compression->prepare(ddp);
  DeviceWeights made(parts, std::move(ddp));
  RONDO_TRY(parts.device.status());
  return made;
}

template <class T>
DeviceWeights<T>::DeviceWeights(const WeightParts& parts, DistributedDataParallel ddp)
    : device_(parts.device),
      model_(parts.model),
      communicator_(parts.communicator),
      host_(parts.host),
      optimizer_(optimizer_options(parts.options)),
      max_norm_(parts.options.clip),
      averages_ranks_(parts.options.average_over == "ranks"),
      travels_in_half_(parts.options.wire_type() == DataType::kFloat16),
      full_terms_(static_cast<double>(parts.options.batch * parts.options.accum *
                                      parts.model.loss_terms()) *
                  parts.communicator.size()),
      ddp_(std::move(ddp)),
      state_(parts.device, 1),
      pinned_values_(parts.device, kStepsAhead) {
  size_t own = 0;
  for (const DdpRange& range : ddp_.own_ranges()) {
    own_.push_back({.range = range, .begin = own});
    own += range.count();
  }
  map_decays();
  if (kOwnMasters) masters_ = DeviceArray<float>(device_, own);
  for (size_t m = 0; m < moments_of(optimizer_); ++m) moments_.emplace_back(device_, own);
  if (examines()) {
    partial_ = DeviceArray<double>(device_, own_.size() * Squares::kBlocks);
    squares_ = DeviceArray<double>(device_, 1);
  }
  std::vector<T*> values, gradients;
  for (size_t t = 0; t < ddp_.tensors().size(); ++t) {
    values.push_back(ddp_.template parameter<T>(t));
    gradients.push_back(ddp_.template gradient<T>(t));
  }
  std::vector<float*> buffers;
  for (size_t b = 0; b < ddp_.buffers().size(); ++b) {
    buffers.push_back(static_cast<float*>(ddp_.buffer(b)));
  }
  model_.bind(values, gradients, buffers);
}

template <class T>
void DeviceWeights<T>::map_decays() {
  constexpr size_t kUnit = cuda::DecayMap::kUnit;
  std::vector<uint8_t> units(cuda::ceil_div(ddp_.parameter_elements(), kUnit));
  for (size_t t = 0; t < ddp_.tensors().size(); ++t) {
    if (!model_.parameters()[t].decays) continue;
    RONDO_CHECK(ddp_.offset(t) % kUnit == 0);
    std::fill_n(units.begin() + static_cast<ptrdiff_t>(ddp_.offset(t) / kUnit),
                cuda::ceil_div(ddp_.tensors()[t].count(), kUnit), uint8_t{1});
  }
  decays_ = DeviceArray<uint8_t>(device_, units.size());
  device_.copy(decays_.data(), units.data(), units.size());
  device_.note(device_.wait());  // before the host's memory goes
}

template <class T>
size_t DeviceWeights<T>::place_of(size_t element) const {
  const auto after = std::upper_bound(
      own_.begin(), own_.end(), element,
      [](size_t wanted, const OwnPlace& place) { return wanted < place.range.begin; });
  return after[-1].begin + (element - after[-1].range.begin);
}

template <class T>
float* DeviceWeights<T>::masters(size_t element) {
  if constexpr (kOwnMasters) {
    return masters_.data() + place_of(element);
  } else {
    return parameters() + element;
  }
}

/// copy(device, host, count) for all that this rank owns of parameters and the optimizer's state.
template <class T>
template <class Copy>
void DeviceWeights<T>::for_own_pieces(Weights<float>& mirror, const Copy& copy) {
  const auto state = mirror.optimizer().state();
  for (size_t t = 0; t < ddp_.tensors().size(); ++t) {
    const size_t here = ddp_.offset(t), there = mirror.ddp().offset(t);
    for (const OwnPlace& place : own_) {
      const size_t begin = std::max(place.range.begin, here);
      const size_t end = std::min(place.range.end, here + ddp_.tensors()[t].count());
      if (begin >= end) continue;
      copy(masters(begin), mirror.ddp().template parameter<float>(t) + (begin - here), end - begin);
      for (size_t m = 0; m < moments_.size(); ++m) {
        copy(moments_[m].data() + place_of(begin), state[m].second + there + (begin - here),
             end - begin);
      }
    }
  }
}

template <class T>
Status DeviceWeights<T>::upload(Weights<float>& mirror) {
  RONDO_TRY(ddp_.replicate());  // before buffers are copied, which may be each rank's own
  // A copy from memory that is not pinned waits for the stream in the call, and may keep all threads
  // from CUDA meanwhile: other ranks' too, for which the broadcasts wait.
  RONDO_TRY(device_.await_all());
  // All parameters, so that those of other ranks are there, too.
  std::vector<std::vector<T>> rounded;
  for (size_t t = 0; t < ddp_.tensors().size(); ++t) {
    const size_t count = ddp_.tensors()[t].count();
    const float* from = mirror.ddp().template parameter<float>(t);
    std::vector<T>& to = rounded.emplace_back(count);
    for (size_t i = 0; i < count; ++i) to[i] = cuda::narrow<T>(from[i]);
    device_.copy(ddp_.template parameter<T>(t), to.data(), count * sizeof(T));
  }
  for (size_t b = 0; b < ddp_.buffers().size(); ++b) {
    device_.copy(ddp_.buffer(b), mirror.ddp().buffer(b), ddp_.buffers()[b].count() * sizeof(float));
  }
  for_own_pieces(mirror, [&](float* device, const float* host, size_t count) {
    device_.copy(device, host, count * sizeof(float));
  });
  const uint64_t steps = mirror.optimizer().steps();
  device_.copy(&state_.data()->steps, &steps, sizeof steps);
  LossScalerState scaler;
  if (mirror.scaler()) scaler = mirror.scaler()->state();
  device_.copy(&state_.data()->scaler, &scaler, sizeof scaler);
  clear_gradients();
  return device_.wait();  // before the host's memory goes
}

template <class T>
Status DeviceWeights<T>::download(Weights<float>& mirror) {
  const size_t elements = mirror.ddp().parameter_elements();
  if (ddp_.is_sharded()) {  // what others own is zero until it is added
    std::memset(mirror.ddp().parameters(), 0, elements * sizeof(float));
    for (const auto& [name, values] : mirror.optimizer().state()) {
      std::memset(values, 0, elements * sizeof(float));
    }
  }
  for_own_pieces(mirror, [&](const float* device, float* host, size_t count) {
    device_.copy(host, device, count * sizeof(float));
  });
  for (size_t b = 0; b < ddp_.buffers().size(); ++b) {
    device_.copy(mirror.ddp().buffer(b), ddp_.buffer(b), ddp_.buffers()[b].count() * sizeof(float));
  }
  uint64_t steps = 0;
  device_.copy(&steps, &state_.data()->steps, sizeof steps);
  LossScalerState scaler;
  device_.copy(&scaler, &state_.data()->scaler, sizeof scaler);
  RONDO_TRY(device_.wait());
  mirror.optimizer().set_steps(steps);
  if (mirror.scaler()) RONDO_TRY(mirror.scaler()->restore(scaler));
  if (!ddp_.is_sharded()) return {};
  const auto add = [&](void* values) {
    return host_.all_reduce(values, values, elements, DataType::kFloat32);
  };
  RONDO_TRY(add(mirror.ddp().parameters()));
  for (const auto& [name, values] : mirror.optimizer().state()) RONDO_TRY(add(values));
  return {};
}

template <class T>
void DeviceWeights<T>::begin_step(double rate, const StepTerms& terms) {
  cuda::StepValues* const values = pinned_values_.data() + begun_++ % kStepsAhead;
  *values = {.rate = rate, .factor = terms.gradient_factor};
  if (averages_ranks_) {  // each rank's mean; without terms it computes nothing
    const double divisor = static_cast<double>(terms.own) * communicator_.size();
    values->loss_factor = terms.own == 0 ? 0 : static_cast<float>(1 / divisor);
  } else {
    // What halves hold is the mean's gradient times the scale, as in PyTorch: a sum would overflow.
    if (travels_in_half_) values->loss_factor = static_cast<float>(1 / full_terms_);
    values->factor /= (static_cast<double>(terms.all) * static_cast<double>(values->loss_factor));
  }
  device_.copy(&state_.data()->values, values, sizeof *values);
}

template <class T>
LossFactors DeviceWeights<T>::loss_factors() const {
  return {
      .of_step = averages_ranks_ || travels_in_half_ ? &state_.data()->values.loss_factor : nullptr,
      .scale = kScales ? &state_.data()->scaler.scale : nullptr};
}

template <class T>
void DeviceWeights<T>::begin_update() {
  const auto* const adamw = std::get_if<AdamWOptions>(&optimizer_);
  cuda::launch(device_, "beginning of the update",
               cuda::BeginUpdateKernel<float>{.adamw = adamw != nullptr ? *adamw : AdamWOptions(),
                                              .squares = squares_.data(),
                                              .max_norm = max_norm_,
                                              .scales = kScales,
                                              .state = state_.data()});
  ++updates_;
}

/// Tensors that were used and follow each other are one pass, with what lies between them: zeros.
template <class T>
void DeviceWeights<T>::update_bucket(size_t bucket) {
  const DdpRange own = ddp_.own_range(bucket);
  DdpRange run{};
  bool follows = false;
  for (const DdpBucket::Piece& piece : ddp_.layout()[bucket].pieces) {
    if (!ddp_.used(piece.tensor)) {
      follows = false;
      continue;
    }
    const size_t offset = ddp_.offset(piece.tensor);
    if (!follows) {
      update_range(run);
      run.begin = std::max(own.begin, offset + piece.begin);
      follows = true;
    }
    run.end = std::min(own.end, offset + piece.end);
  }
  update_range(run);
}

template <class T>
void DeviceWeights<T>::update_range(const DdpRange& range) {
  if (range.begin >= range.end) return;
  const size_t begin = range.begin, at = place_of(begin), count = range.end - begin;
  const auto* const factors = &state_.data()->factors;
  const cuda::DecayMap decay{.units = decays_.data(), .first = begin};
  if (const auto* adamw = std::get_if<AdamWOptions>(&optimizer_)) {
    return cuda::launch(device_, "AdamW",
                        cuda::AdamWKernel<T>{.factors = factors,
                                             .decay = decay,
                                             .first_weight = static_cast<float>(1 - adamw->beta1),
                                             .second_keep = static_cast<float>(adamw->beta2),
                                             .second_weight = static_cast<float>(1 - adamw->beta2),
                                             .epsilon = static_cast<float>(adamw->epsilon),
                                             .count = count,
                                             .gradients = gradients() + begin,
                                             .mean = moments_[0].data() + at,
                                             .square = moments_[1].data() + at,
                                             .masters = masters(begin),
                                             .parameters = parameters() + begin});
  }
  const auto& sgd = std::get<SgdOptions>(optimizer_);
  cuda::launch(device_, "SGD",
               cuda::SgdKernel<T>{.factors = factors,
                                  .decay = decay,
                                  .momentum = static_cast<float>(sgd.momentum),
                                  .weight_decay = static_cast<float>(sgd.weight_decay),
                                  .count = count,
                                  .gradients = gradients() + begin,
                                  .velocity = moments_.empty() ? nullptr : moments_[0].data() + at,
                                  .masters = masters(begin),
                                  .parameters = parameters() + begin});
}

/// Not finite if a gradient is not. With shards each rank adds what it owns: the same bits
/// everywhere.
template <class T>
Status DeviceWeights<T>::find_squares() {
  for (size_t r = 0; r < own_.size(); ++r) {
    cuda::launch(device_, "sum of squares",
                 cuda::SumOfSquaresKernel<T>{.count = own_[r].range.count(),
                                             .values = gradients() + own_[r].range.begin,
                                             .partial = partial_.data() + r * Squares::kBlocks});
  }
  device_.clear(squares_.data(), sizeof(double));
  cuda::launch(device_, "sum of squares",
               cuda::AddRowsKernel{
                   .count = partial_.count(), .values = partial_.data(), .sum = squares_.data()});
  if (ddp_.is_sharded()) {
    CallOptions call;
    call.stream = device_.stream();
    RONDO_TRY(communicator_.all_reduce(squares_.data(), squares_.data(), 1, DataType::kFloat64,
                                       ReduceOp::kSum, call));
  }
  return {};
}

template <class T>
Status DeviceWeights<T>::update() {
  if (examines()) RONDO_TRY(find_squares());
  begin_update();
  for (size_t b = ddp_.layout().size(); b-- > 0;) {
    update_bucket(b);
    ddp_.gather_parameters(b);
  }
  end_update();
  return device_.status();
}

/// The optimizer has cleared what it used; with shards what others own is left. That is cleared while
/// parameters travel.
template <class T>
void DeviceWeights<T>::end_update() {
  if (ddp_.is_sharded()) clear_gradients();
}

template <class T>
void DeviceWeights<T>::clear_gradients() {
  device_.clear(ddp_.gradients(), ddp_.gradient_elements() * sizeof(T));
}

template class DeviceWeights<float>;
template class DeviceWeights<cuda::BFloat16Bits>;
template class DeviceWeights<cuda::Float16Bits>;

}  // namespace rondo::trainer
