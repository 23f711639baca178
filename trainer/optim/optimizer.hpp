// What turns gradients into new parameters. An optimizer sees flat storage, in which element i of
// every array belongs to parameter element i; it knows no tensors, no ranks and no schedule.
//
// Steps are counted for all parameters together. PyTorch counts each parameter's own: AdamW's bias
// correction of a parameter that some steps leave out (Parameter::may_skip) is therefore that of
// the global step here, which is the nearer to 1.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/device_code.hpp"
#include "trainer/optim/simd.hpp"

namespace rondo::trainer {

/// As torch.optim.SGD, dampening 0: weight decay is part of the gradient; velocity = momentum *
/// velocity + gradient, parameter -= rate * velocity. Without momentum there is no velocity.
struct SgdOptions {
  double momentum = 0.9;
  double weight_decay = 0;
};

/// As torch.optim.AdamW (Kingma and Ba 2015; Loshchilov and Hutter 2019): weight decay is apart
/// from the gradient.
struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;
};

/// Of step `step`, counted from 1, at this learning rate, where weights decay.
template <class T>
RONDO_DEVICE simd::AdamWFactors<T> adamw_factors(const AdamWOptions& options, uint64_t step,
                                                 double rate) {
  using std::pow;
  using std::sqrt;
  const auto power = static_cast<double>(step);
  const double first_correction = 1 - pow(options.beta1, power);
  const double second_correction = 1 - pow(options.beta2, power);
  return {.keep = static_cast<T>(1 - rate * options.weight_decay),
          .first_weight = static_cast<T>(1 - options.beta1),
          .second_keep = static_cast<T>(options.beta2),
          .second_weight = static_cast<T>(1 - options.beta2),
          .second_correction_root = static_cast<T>(sqrt(second_correction)),
          .epsilon = static_cast<T>(options.epsilon),
          .step_size = static_cast<T>(rate / first_correction)};
}

using OptimizerOptions = std::variant<SgdOptions, AdamWOptions>;

/// One thread at a time. T is float or double.
template <class T>
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  /// Begins the next step, with this learning rate.
  virtual void begin_step(double rate) = 0;
  /// Updates elements [begin, end) of storage whose element 0 the pointers name. A step's ranges
  /// may be any, in any order, each element at most once; the bits do not depend on how they are
  /// cut. Leaves zeros as gradients: to clear them now costs next to nothing, and the next step can
  /// add to them at once. What no range covers stays as it is, its state too. REQUIRES:
  /// begin_step().
  virtual void update(size_t begin, size_t end, bool decays, T* gradients, T* parameters) = 0;
  /// The arrays that go into a checkpoint, `count` elements each, by PyTorch's names. Zeros at the
  /// start. Owned by the optimizer; to restore, write into them.
  virtual std::vector<std::pair<std::string, T*>> state() = 0;

  /// How many steps have begun.
  uint64_t steps() const { return steps_; }
  void set_steps(uint64_t steps) { steps_ = steps; }

 protected:
  uint64_t steps_ = 0;
};

/// Throws std::bad_alloc.
template <class T>
std::unique_ptr<Optimizer<T>> make_optimizer(const OptimizerOptions& options, size_t count);

}  // namespace rondo::trainer
