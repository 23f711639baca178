// What the training loop knows of a model: named parameters, a forward and a backward pass. Models
// know no ranks, no buckets and no optimizer; the loop knows no layers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rondo/status.hpp"
#include "trainer/base/random.hpp"

namespace rondo::trainer {

/// How a tensor starts.
struct Init {
  enum Distribution { kConstant, kUniform, kNormal } kind = kConstant;
  double value = 0;  // the constant; uniform in [-value, value); the standard deviation about 0
};

/// One tensor of a model: a parameter, or a buffer (what a layer keeps without a gradient).
struct Parameter {
  std::string name;           // as PyTorch would call it
  std::vector<size_t> shape;  // row-major
  Init init;
  bool decays = true;     // weight decay applies: matrices, but neither biases nor norms
  bool may_skip = false;  // some passes do not use it; listener is told skipped() then
  int adds_to = -1;       // no parameter, but a second gradient of that one (see gpt.hpp)

  size_t count() const {
    size_t product = 1;
    for (const size_t extent : shape) product *= extent;
    return product;
  }
};

/// Samples of one pass. Borrowed. What a model does not use may be null.
struct Batch {
  size_t size;             // samples, 0 allowed
  const int32_t* tokens;   // [size x context]
  const float* images;     // [size x channels x height x width], in [0, 1]
  const int32_t* targets;  // [size x loss terms per sample]
  const uint64_t* ids;     // [size] positions in the data: keys of random numbers
};

/// What a forward pass tells while it runs.
class ForwardListener {
 public:
  virtual ~ForwardListener() = default;
  /// The pass turns to this layer (an index into Model::layers()).
  virtual void forward_begins(int layer) = 0;
};

/// What a pass needs besides samples.
struct Pass {
  bool training;        // dropout, statistics of the batch; else neither
  uint64_t seed, step;  // with a sample's id and a layer's number they key every random number
  ForwardListener* listener = nullptr;  // null: nobody asks

  void forward_begins(size_t layer) const {
    if (listener != nullptr) listener->forward_begins(static_cast<int>(layer));
  }
};

/// What keys the random numbers of one sample in one layer: neither the rank nor the position in
/// the batch.
inline uint64_t random_key(const Pass& pass, uint64_t sample_id, size_t layer) {
  return mix(mix(mix(mix(pass.seed) ^ pass.step) ^ sample_id) ^ layer);
}

/// What a backward pass tells while it runs, in a fixed order that is the same on every rank and in
/// every step.
class BackwardListener {
 public:
  virtual ~BackwardListener() = default;
  /// The pass turns to this layer (an index into Model::layers()).
  virtual void layer_begins(int layer) = 0;
  /// The first `count` elements of this gradient (an index into Model::parameters()) are final:
  /// nothing of the pass will touch them again. Said once with all of them, or several times.
  virtual void gradient_ready(int parameter, size_t count) = 0;
  /// Instead: the pass did not use this parameter; its gradient was not touched.
  virtual void gradient_skipped(int parameter) = 0;
};

/// One thread at a time. T is float or double.
template <class T>
class Model {
 public:
  virtual ~Model() = default;

  /// In the order in which backward finishes their gradients; never changes. Those that add to
  /// another come last.
  virtual const std::vector<Parameter>& parameters() const = 0;
  virtual const std::vector<Parameter>& buffers() const = 0;
  /// Names, in the order in which backward visits them.
  virtual const std::vector<std::string>& layers() const = 0;
  /// How many terms a sample adds to the loss: targets per sample.
  virtual size_t loss_terms() const = 0;
  /// Among how many a term's target is.
  virtual size_t classes() const = 0;
  /// Operations of the matrix products of one forward and backward pass over one sample, a
  /// multiplication and an addition counting two.
  virtual double gemm_operations() const = 0;
  /// What the model keeps besides parameters, gradients and buffers.
  virtual size_t activation_bytes() const = 0;

  /// Where each parameter, its gradient, and each buffer live, in the order of parameters() and
  /// buffers(); no parameter where one adds to another. Borrowed; call before the passes.
  virtual void bind(const std::vector<T*>& parameters, const std::vector<T*>& gradients,
                    const std::vector<T*>& buffers) = 0;

  /// The sum of the batch's loss terms; keeps what backward needs. An error only from what the
  /// model was given to talk to other ranks with. REQUIRES: bind().
  virtual Result<double> forward(const Batch& batch, const Pass& pass) = 0;
  /// What the last forward pass expected, [size x loss_terms() x classes()]: the softmax of the
  /// logits. REQUIRES: no backward pass since, which overwrites them.
  virtual const T* probabilities() const = 0;
  /// Writes scale * d(loss sum)/d(parameter), or adds it when `accumulate`. REQUIRES: the same
  /// batch was just forwarded in a training pass.
  virtual Status backward(const Batch& batch, const Pass& pass, T scale, bool accumulate,
                          BackwardListener& listener) = 0;
};

/// Fills one parameter: a pure function of the seed and the parameter's index, the same for every T
/// up to rounding.
template <class T>
void initialise(const Parameter& parameter, int index, uint64_t seed, T* values);

}  // namespace rondo::trainer
