// Stochastic gradient descent with momentum, over flat storage: velocity = momentum * velocity +
// gradient, parameter -= rate * velocity (the form PyTorch uses). Knows no tensors and no ranks.
#pragma once

#include <cstddef>
#include <vector>

namespace rondo::trainer {

template <class T>
class Sgd {
 public:
  Sgd(size_t count, double momentum) : momentum_(static_cast<T>(momentum)), velocity_(count) {}

  void step(const T* gradients, double rate, T* parameters) {
    const T r = static_cast<T>(rate);
    T* velocity = velocity_.data();
    for (size_t i = 0; i < velocity_.size(); ++i) {
      velocity[i] = momentum_ * velocity[i] + gradients[i];
      parameters[i] -= r * velocity[i];
    }
  }

 private:
  const T momentum_;
  std::vector<T> velocity_;
};

}  // namespace rondo::trainer
