// See weights.hpp.
#include "trainer/optim/weights.hpp"

#include <algorithm>
#include <utility>

#include "kernels/half.hpp"
#include "trainer/base/clock.hpp"
#include "trainer/optim/clip.hpp"
#include "trainer/optim/gradients.hpp"

namespace rondo::trainer {

std::vector<DdpTensor> tensors_of(const std::vector<Parameter>& parameters) {
  std::vector<DdpTensor> tensors;
  for (const Parameter& p : parameters) {
    tensors.push_back(
        {.name = p.name, .shape = p.shape, .may_skip = p.may_skip, .adds_to = p.adds_to});
  }
  return tensors;
}

DdpOptions ddp_options(const TrainOptions& options) {
  using Rows = DdpOptions::Rows;
  const DataType wire = options.wire_type();
  return {.type = options.type(),
          .bucket_cap_mb = options.bucket_cap_mb,
          .auto_after_steps = DdpOptions().auto_after_steps + options.control_rounds(),
          .overlap = !options.no_overlap,
          .average = options.average_over == "ranks" ? DdpOptions::Average::kRanks
                                                     : DdpOptions::Average::kLossTerms,
          .gradients = DdpOptions::Gradients::kOfSum,
          .join = options.join,
          // Those of synchronized batch norm are the same everywhere already.
          .broadcast_buffers = !options.no_broadcast_buffers && !options.sync_batch_norm,
          .rows = options.tied_rows == "whole"     ? Rows::kWhole
                  : options.tied_rows == "touched" ? Rows::kTouched
                                                   : Rows::kFewerBytes,
          .hook = wire == options.type() ? nullptr : make_compression_hook(wire).value(),
          .shard = options.zero == 1};
}

OptimizerOptions optimizer_options(const TrainOptions& options) {
  if (options.optimizer == "adamw") {
    return AdamWOptions{
        .beta1 = options.beta1, .beta2 = options.beta2, .weight_decay = options.weight_decay};
  }
  return SgdOptions{.momentum = options.momentum, .weight_decay = options.weight_decay};
}

template <class T>
Result<Weights<T>> Weights<T>::create(Model<T>& model, Communicator& communicator,
                                      const TrainOptions& options) {
  DistributedDataParallel ddp =
      RONDO_TRY(DistributedDataParallel::create(communicator, tensors_of(model.parameters()),
                                                tensors_of(model.buffers()), ddp_options(options)));
  return Weights(model, communicator, std::move(ddp), options);
}

template <class T>
Weights<T>::Weights(Model<T>& model, Communicator& communicator, DistributedDataParallel ddp,
                    const TrainOptions& options)
    : model_(model),
      communicator_(communicator),
      ddp_(std::move(ddp)),
      optimizer_(make_optimizer<T>(optimizer_options(options), ddp_.parameter_elements())),
      dtype_(options.dtype),
      bucket_updates_(ddp_.layout().size()) {
  if (dtype_ == "bf16" || dtype_ == "fp16") copy_ = Buffer<T>(ddp_.parameter_elements());
  if (dtype_ == "fp16") scaler_.emplace();
  bind();
}

template <class T>
std::vector<size_t> Weights<T>::parameters() const {
  std::vector<size_t> indices;
  for (size_t t = 0; t < ddp_.tensors().size(); ++t) {
    if (ddp_.tensors()[t].adds_to < 0) indices.push_back(t);
  }
  return indices;
}

template <class T>
void Weights<T>::bind() {
  T* values = copy_.count() > 0 ? copy_.data() : static_cast<T*>(ddp_.parameters());
  std::vector<T*> parameters, gradients, buffers;
  for (size_t t = 0; t < ddp_.tensors().size(); ++t) {
    parameters.push_back(ddp_.tensors()[t].adds_to < 0 ? values + ddp_.offset(t) : nullptr);
    gradients.push_back(ddp_.template gradient<T>(t));
  }
  for (size_t b = 0; b < ddp_.buffers().size(); ++b) {
    buffers.push_back(static_cast<T*>(ddp_.buffer(b)));
  }
  model_.bind(parameters, gradients, buffers);
}

template <class T>
void Weights<T>::initialise_parameters(uint64_t seed) {
  for (const size_t t : parameters()) {
    initialise(model_.parameters()[t], static_cast<int>(t), seed, ddp_.template parameter<T>(t));
  }
  for (size_t b = 0; b < ddp_.buffers().size(); ++b) {
    initialise(model_.buffers()[b], static_cast<int>(b), seed, static_cast<T*>(ddp_.buffer(b)));
  }
}

template <class T>
Status Weights<T>::replicate() {
  RONDO_TRY(ddp_.replicate());
  round_copy(0, ddp_.parameter_elements());
  return {};
}

/// What computes is what the wire and a device of that type would hold.
template <class T>
void Weights<T>::round_copy(size_t begin, size_t end) {
  const T* from = static_cast<const T*>(ddp_.parameters());
  const bool half = dtype_ == "fp16";
  for (size_t i = begin; i < std::min(end, copy_.count()); ++i) {
    const auto value = static_cast<float>(from[i]);
    copy_.data()[i] =
        static_cast<T>(half ? kernels::float_from_half(kernels::half_from_float(value))
                            : kernels::float_from_bfloat16(kernels::bfloat16_from_float(value)));
  }
}

template <class T>
void Weights<T>::begin_update(double rate) {
  optimizer_->begin_step(rate);
  cleared_ = false;
}

template <class T>
Result<Update> Weights<T>::update(double rate, double max_norm) {
  // 1 / loss scale is a power of two: exact.
  const GradientFacts facts =
      RONDO_TRY(examine_gradients<T>(communicator_, ddp_,
                                     {.finite = scaler_.has_value(),
                                      .norm = max_norm > 0,
                                      .unscale = 1 / static_cast<double>(loss_scale())}));
  cleared_ = false;
  if (scaler_ && !scaler_->update(facts.finite)) return Update{.made = false, .norm = 0};
  const double coefficient = max_norm > 0 ? clip_coefficient(facts.norm, max_norm) : 1;
  if (coefficient < 1) {
    for (const DdpRange& range : ddp_.own_ranges()) {
      simd::flat_kernels<T>().multiply(static_cast<T*>(ddp_.gradients()) + range.begin,
                                       range.count(), static_cast<T>(coefficient));
    }
  }
  begin_update(rate);
  for (size_t b = ddp_.layout().size(); b-- > 0;) {
    update_bucket(b);
    ddp_.gather_parameters(b);
  }
  end_update();
  return Update{.made = true, .norm = facts.norm};
}

/// The optimizer has cleared the gradients of parameters that it used, all of them without shards.
/// Second gradients, which were added to those, are left.
template <class T>
void Weights<T>::end_update() {
  under_way_ = true;
  if (ddp_.is_sharded()) return;
  T* const gradients = static_cast<T*>(ddp_.gradients());
  std::fill(gradients + ddp_.parameter_elements(), gradients + ddp_.gradient_elements(), T{0});
  cleared_ = true;
}

template <class T>
void Weights<T>::clear_gradients() {
  std::fill_n(static_cast<T*>(ddp_.gradients()), ddp_.gradient_elements(), T{0});
  cleared_ = true;
}

/// What of it is this rank's own, tensor by tensor.
template <class T>
void Weights<T>::update_bucket(size_t bucket) {
  bucket_updates_[bucket].begin_ns = now_ns();
  const DdpRange own = ddp_.own_range(bucket);
  for (const DdpBucket::Piece& piece : ddp_.layout()[bucket].pieces) {
    if (!ddp_.used(piece.tensor)) continue;
    const size_t offset = ddp_.offset(piece.tensor);
    optimizer_->update(std::max(own.begin, offset + piece.begin),
                       std::min(own.end, offset + piece.end),
                       model_.parameters()[piece.tensor].decays, static_cast<T*>(ddp_.gradients()),
                       static_cast<T*>(ddp_.parameters()));
  }
  bucket_updates_[bucket].end_ns = now_ns();
}

template <class T>
Result<bool> Weights<T>::await_parameters() {
  if (!under_way_) return false;
  under_way_ = false;
  for (size_t b = ddp_.layout().size(); b-- > 0;) {
    RONDO_TRY(ddp_.wait_parameters(b));
    const DdpBucket& bucket = ddp_.layout()[b];
    round_copy(bucket.offset, bucket.offset + bucket.count);
  }
  return true;
}

template class Weights<float>;
template class Weights<double>;

}  // namespace rondo::trainer
