// A loop whose parameters and gradients already lie somewhere, as in any framework: they are
// registered where they are. The gradients are those of the mean of a rank's samples, and the
// batches of the ranks differ in size; the result is that of one rank with all samples. Start it with
// `rondo-run -n 4 -- ./own_tensors` or, to send less (powersgd_hook.hpp), `./own_tensors powersgd`.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <powersgd_hook.hpp>
#include <rondo/rondo.hpp>
#include <string>
#include <vector>

using namespace rondo;

namespace {

constexpr size_t kIn = 32, kHidden = 64, kOut = 8, kBatch = 60, kSteps = 300;  // kBatch: all ranks'
constexpr float kRate = 0.1f;

/// What a framework would own.
struct Tensor {
  std::string name;
  std::vector<size_t> shape;
  std::vector<float> value, gradient;
};

/// In [-1, 1), a function of where it is.
float noise(size_t a, size_t b) {
  uint64_t bits = (a * 0x9e3779b97f4a7c15) ^ (b + 1) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ bits >> 29) * 0x94d049bb133111eb;
  return static_cast<float>((bits ^ bits >> 31) >> 40) * 0x1p-23f - 1;
}

/// y = second tanh(first x): fitted to another such network.
struct Network {
  Tensor second{"second", {kOut, kHidden}, {}, {}}, first{"first", {kHidden, kIn}, {}, {}};
  std::vector<float> x, h, y;

  explicit Network(size_t seed) : x(kIn), h(kHidden), y(kOut) {
    for (Tensor* tensor : {&second, &first}) {
      const size_t count = tensor->shape[0] * tensor->shape[1];
      tensor->gradient.resize(count);
      for (size_t i = 0; i < count; ++i) {
        tensor->value.push_back(noise(seed + count, i) / std::sqrt(float(tensor->shape[1])));
      }
    }
  }

  void forward(size_t sample) {
    for (size_t i = 0; i < kIn; ++i) x[i] = noise(sample, i);
    for (size_t j = 0; j < kHidden; ++j) {
      float sum = 0;
      for (size_t i = 0; i < kIn; ++i) sum += first.value[j * kIn + i] * x[i];
      h[j] = std::tanh(sum);
    }
    for (size_t k = 0; k < kOut; ++k) {
      y[k] = 0;
      for (size_t j = 0; j < kHidden; ++j) y[k] += second.value[k * kHidden + j] * h[j];
    }
  }

  /// Adds the gradients of weight x |y - wanted|^2 / 2, and returns that without the weight.
  double backward(const std::vector<float>& wanted, float weight) {
    std::vector<float> dh(kHidden);
    double loss = 0;
    for (size_t k = 0; k < kOut; ++k) {
      const float error = y[k] - wanted[k];
      loss += double{error} * error / 2;
      for (size_t j = 0; j < kHidden; ++j) {
        second.gradient[k * kHidden + j] += weight * error * h[j];
        dh[j] += error * second.value[k * kHidden + j];
      }
    }
    for (size_t j = 0; j < kHidden; ++j) {
      const float d = weight * dh[j] * (1 - h[j] * h[j]);
      for (size_t i = 0; i < kIn; ++i) first.gradient[j * kIn + i] += d * x[i];
    }
    return loss;
  }
};

Status run(bool compress) {
  Communicator world = RONDO_TRY(Communicator::create());
  const auto rank = static_cast<size_t>(world.rank()), ranks = static_cast<size_t>(world.size());
  Network network(1 + rank), teacher(99);  // replicate() makes all ranks' equal
  std::vector<DdpTensor> tensors;
  for (Tensor* tensor : {&network.second, &network.first}) {  // as backward finishes them
    tensors.push_back({.name = tensor->name,
                       .shape = tensor->shape,
                       .data = tensor->value.data(),
                       .gradient = tensor->gradient.data()});
  }
  DdpOptions options{.bucket_cap_mb = 0};
  if (compress) options.hook = std::make_shared<PowerSgdHook>(2);
  auto ddp = RONDO_TRY(DistributedDataParallel::create(world, tensors, {}, options));
  RONDO_TRY(ddp.replicate());

  // Rank r takes samples in proportion to r + 1.
  const size_t shares = ranks * (ranks + 1) / 2;
  const size_t begin = kBatch * (rank * (rank + 1) / 2) / shares;
  const size_t end = kBatch * ((rank + 1) * (rank + 2) / 2) / shares;
  const uint64_t sent_before = world.stats().bytes_sent;
  for (size_t step = 0; step < kSteps; ++step) {
    RONDO_TRY(ddp.begin({.loss_terms = end - begin}));
    for (Tensor* tensor : {&network.second, &network.first}) {
      tensor->gradient.assign(tensor->gradient.size(), 0);
    }
    double loss = 0;
    for (size_t sample = begin; sample < end; ++sample) {
      teacher.forward(step * kBatch + sample);
      network.forward(step * kBatch + sample);
      loss += network.backward(teacher.y, 1 / static_cast<float>(end - begin));
    }
    for (size_t t = 0; t < tensors.size(); ++t) ddp.gradient_ready(t);
    RONDO_TRY(ddp.finish());
    for (Tensor* tensor : {&network.second, &network.first}) {
      for (size_t i = 0; i < tensor->value.size(); ++i) {
        tensor->value[i] -= kRate * tensor->gradient[i];
      }
    }
    RONDO_TRY(world.all_reduce(&loss, &loss, 1, DataType::kFloat64));
    if (rank == 0) std::printf("{\"step\": %zu, \"loss\": %.9g}\n", step + 1, loss / kBatch);
  }
  if (rank == 0) {
    const double bytes = static_cast<double>(world.stats().bytes_sent - sent_before);
    std::printf("{\"bytes_sent_per_step\": %.9g}\n", bytes / kSteps);
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  const Status status = run(argc > 1 && std::strcmp(argv[1], "powersgd") == 0);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.to_string().c_str());
  return status.ok() ? 0 : 1;
}
