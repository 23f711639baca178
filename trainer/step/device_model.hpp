// A model on a device as a run sees it, which knows only host memory: what it is called, and an
// evaluation, which waits for the device.
#pragma once

#include <vector>

#include "trainer/base/device.hpp"
#include "trainer/models/model.hpp"

namespace rondo::trainer {

/// One thread. Borrows both. Its parameters are those that `model` is bound to.
template <class T>
class DeviceModel : public Model<float> {
 public:
  DeviceModel(Device& device, Model<T>& model) : device_(device), model_(model), sum_(device, 1) {}

  const std::vector<Parameter>& parameters() const override { return model_.parameters(); }
  const std::vector<Parameter>& buffers() const override { return model_.buffers(); }
  const std::vector<std::string>& layers() const override { return model_.layers(); }
  size_t loss_terms() const override { return model_.loss_terms(); }
  size_t classes() const override { return model_.classes(); }
  double gemm_operations() const override { return model_.gemm_operations(); }
  size_t activation_bytes() const override { return model_.activation_bytes(); }

  const float* probabilities() const override { return nullptr; }  // they are on the device
  /// It is bound to device memory already (DeviceWeights).
  void bind(const std::vector<float*>& /*parameters*/, const std::vector<float*>& /*gradients*/,
            const std::vector<float*>& /*buffers*/) override {}

  void take(const Batch& batch, const Pass& pass) override { model_.take(batch, pass); }
  Status forward(const Batch& batch, const Pass& pass, double* loss) override {
    device_.clear(sum_.data(), sum_.bytes());
    RONDO_TRY(model_.forward(batch, pass, sum_.data()));
    return add_sum(loss);
  }
  Status count_correct(const Batch& batch, double* correct) override {
    device_.clear(sum_.data(), sum_.bytes());
    RONDO_TRY(model_.count_correct(batch, sum_.data()));
    return add_sum(correct);
  }
  Status backward(const Batch& /*batch*/, const Pass& /*pass*/, double /*scale*/,
                  bool /*accumulate*/, BackwardListener& /*listener*/) override {
    return {Code::kUnavailable, "backward of a model on a device is a DeviceStep's"};
  }

 private:
  Status add_sum(double* to) {
    double sum = 0;
    device_.copy(&sum, sum_.data(), sizeof sum);
    RONDO_TRY(device_.wait());
    *to += sum;
    return {};
  }

  Device& device_;
  Model<T>& model_;
  DeviceArray<double> sum_;
};

}  // namespace rondo::trainer
