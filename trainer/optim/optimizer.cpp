// Stochastic gradient descent with momentum, and Adam with decoupled weight decay. See
// optimizer.hpp.
#include "trainer/optim/optimizer.hpp"

#include "trainer/optim/simd.hpp"
#include "trainer/optim/state_array.hpp"

namespace rondo::trainer {
namespace {

template <class T>
class Sgd : public Optimizer<T> {
 public:
  Sgd(const SgdOptions& options, size_t count)
      : options_(options), velocity_(options.momentum != 0 ? count : 0) {}

  void begin_step(double rate) override {
    ++this->steps_;
    rate_ = rate;
  }

  // PyTorch's velocity starts as the first gradient; momentum * 0 + gradient is the same.
  void update(size_t begin, size_t end, bool decays, T* gradients, T* parameters) override {
    if (begin >= end) return;
    T* velocity = velocity_.data();
    const simd::SgdFactors<T> factors = {
        .momentum = static_cast<T>(options_.momentum),
        .weight_decay = static_cast<T>(decays ? options_.weight_decay : 0),
        .rate = static_cast<T>(rate_)};
    simd::flat_kernels<T>().sgd(factors, end - begin, gradients + begin,
                                velocity == nullptr ? nullptr : velocity + begin,
                                parameters + begin);
  }

  std::vector<std::pair<std::string, T*>> state() override {
    if (options_.momentum == 0) return {};
    return {{"momentum", velocity_.data()}};
  }

 private:
  const SgdOptions options_;
  double rate_ = 0;
  StateArray<T> velocity_;
};

template <class T>
class AdamW : public Optimizer<T> {
 public:
  AdamW(const AdamWOptions& options, size_t count)
      : options_(options), mean_(count), square_(count) {}

  void begin_step(double rate) override {
    factors_ = adamw_factors<T>(options_, ++this->steps_, rate);
  }

  void update(size_t begin, size_t end, bool decays, T* gradients, T* parameters) override {
    if (begin >= end) return;
    simd::AdamWFactors<T> factors = factors_;
    if (!decays) factors.keep = 1;
    simd::flat_kernels<T>().adamw(factors, end - begin, gradients + begin, mean_.data() + begin,
                                  square_.data() + begin, parameters + begin);
  }

  std::vector<std::pair<std::string, T*>> state() override {
    return {{"exp_avg", mean_.data()}, {"exp_avg_sq", square_.data()}};
  }

 private:
  const AdamWOptions options_;
  simd::AdamWFactors<T> factors_{};
  StateArray<T> mean_, square_;
};

}  // namespace

template <class T>
std::unique_ptr<Optimizer<T>> make_optimizer(const OptimizerOptions& options, size_t count) {
  if (const auto* adamw = std::get_if<AdamWOptions>(&options)) {
    return std::make_unique<AdamW<T>>(*adamw, count);
  }
  return std::make_unique<Sgd<T>>(std::get<SgdOptions>(options), count);
}

template std::unique_ptr<Optimizer<float>> make_optimizer(const OptimizerOptions&, size_t);
template std::unique_ptr<Optimizer<double>> make_optimizer(const OptimizerOptions&, size_t);

}  // namespace rondo::trainer
