// What the training loop knows of a model: named parameters, a forward and a backward pass. Models
// know no ranks, no buckets and no optimizer; the loop knows no layers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "rondo/status.hpp"
#include "trainer/base/batch.hpp"
#include "trainer/base/random.hpp"
#include "trainer/layers/operands.hpp"

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
  LossFactors loss_factors{};           // beside backward's scale; on a device only
  bool taken = false;                   // the model has the batch already, by take()

  void forward_begins(size_t layer) const {
    if (listener != nullptr) listener->forward_begins(static_cast<int>(layer));
  }
  uint64_t key() const { return pass_key(seed, step); }
};

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

/// The type of a model's buffers. Running statistics want more than two bytes.
template <class T>
using BufferElement = std::conditional_t<sizeof(T) == 2, float, T>;

/// One thread at a time. Parameters, gradients, buffers, losses and what the model keeps lie in one
/// memory: the host's, where T is float or double and every call returns when it is done, or a
/// device's, where calls only enqueue. Batches are always the host's, and may be reused when
/// backward, or forward without one, has returned.
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
                    const std::vector<BufferElement<T>*>& buffers) = 0;

  /// Copies to the model what forward() reads of the batch, which then leaves that out (Pass::taken):
  /// on a device forward may be captured in a graph, which cannot know the next batch.
  virtual void take(const Batch& batch, const Pass& pass) = 0;
  /// Adds the sum of the batch's loss terms to *loss; keeps what backward needs. REQUIRES: bind().
  virtual Status forward(const Batch& batch, const Pass& pass, double* loss) = 0;
  /// What the last forward pass expected, the softmax of the logits: [size x loss_terms()] rows of
  /// classes() numbers, without gaps on the host, each beginning at a multiple of 128 bytes on a
  /// device. REQUIRES: the pass did not train (on a device, whose training pass leaves the logits'
  /// gradient), or no backward pass since (on the host).
  virtual const T* probabilities() const = 0;
  /// Adds to *correct how many of the batch's targets were the likeliest class; the first of several
  /// that are equally likely counts, and none where that is not finite. REQUIRES: the same batch was
  /// just forwarded in a pass that does not train.
  virtual Status count_correct(const Batch& batch, double* correct) = 0;
  /// Writes scale * d(loss sum)/d(parameter), or adds it when `accumulate`. REQUIRES: the same
  /// batch was just forwarded in a training pass.
  virtual Status backward(const Batch& batch, const Pass& pass, double scale, bool accumulate,
                          BackwardListener& listener) = 0;
};

/// Fills one parameter: a pure function of the seed and the parameter's index, the same for every T
/// up to rounding.
template <class T>
void initialise(const Parameter& parameter, int index, uint64_t seed, T* values);

}  // namespace rondo::trainer
