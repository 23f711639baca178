// See weights.hpp.
#include "trainer/weights.hpp"

#include <cmath>
#include <utility>

#include "kernels/half.hpp"
#include "trainer/optim/clip.hpp"
#include "trainer/setup.hpp"

namespace rondo::trainer {
namespace {

std::vector<DdpTensor> tensors_of(const std::vector<Parameter>& parameters) {
  std::vector<DdpTensor> tensors;
  for (const Parameter& p : parameters) {
    tensors.push_back(
        {.name = p.name, .shape = p.shape, .may_skip = p.may_skip, .adds_to = p.adds_to});
  }
  return tensors;
}

}  // namespace

template <class T>
Result<Weights<T>> Weights<T>::create(Model<T>& model, Communicator& communicator,
                                      const Options& options) {
  Result<DistributedDataParallel> ddp =
      DistributedDataParallel::create(communicator, tensors_of(model.parameters()),
                                      tensors_of(model.buffers()), ddp_options(options));
  RONDO_RETURN_IF_ERROR(ddp.status());
  return Weights(model, std::move(ddp).value(), options);
}

template <class T>
Weights<T>::Weights(Model<T>& model, DistributedDataParallel ddp, const Options& options)
    : model_(model),
      ddp_(std::move(ddp)),
      optimizer_(make_optimizer<T>(optimizer_options(options), ddp_.parameter_elements())),
      dtype_(options.dtype) {
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
  RONDO_RETURN_IF_ERROR(ddp_.replicate());
  round_copy();
  return {};
}

/// What computes is what the wire and a device of that type would hold.
template <class T>
void Weights<T>::round_copy() {
  const T* from = static_cast<const T*>(ddp_.parameters());
  const bool half = dtype_ == "fp16";
  for (size_t i = 0; i < copy_.count(); ++i) {
    const auto value = static_cast<float>(from[i]);
    copy_.data()[i] =
        static_cast<T>(half ? kernels::float_from_half(kernels::half_from_float(value))
                            : kernels::float_from_bfloat16(kernels::bfloat16_from_float(value)));
  }
}

template <class T>
typename Weights<T>::Update Weights<T>::update(double rate, double max_norm) {
  T* gradients = static_cast<T*>(ddp_.gradients());
  const size_t count = ddp_.parameter_elements();
  Update done{.made = true, .norm = 0};
  if (scaler_) {
    const T scale_back = T{1} / loss_scale();  // a power of two: exact
    done.made = scaler_->update(all_finite(gradients, count));
    if (!done.made) return done;
    scale(gradients, count, scale_back);
  }
  if (max_norm > 0) {
    std::vector<GradientView<T>> views;
    for (const size_t t : parameters()) {
      views.push_back({gradients + ddp_.offset(t), ddp_.tensors()[t].count()});
    }
    done.norm = std::sqrt(squared_norm<T>(views));
    const double coefficient = clip_coefficient(done.norm, max_norm);
    if (coefficient < 1) scale(gradients, count, static_cast<T>(coefficient));
  }
  optimizer_->begin_step(rate);
  for (const size_t t : parameters()) {
    if (!ddp_.used(t)) continue;
    optimizer_->update(ddp_.offset(t), ddp_.offset(t) + ddp_.tensors()[t].count(),
                       model_.parameters()[t].decays, gradients,
                       static_cast<T*>(ddp_.parameters()));
  }
  round_copy();
  return done;
}

template class Weights<float>;
template class Weights<double>;

}  // namespace rondo::trainer
