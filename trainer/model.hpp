// What the training loop knows of a model: named parameters, a forward and a backward pass. Models
// know no ranks, no buckets and no optimizer; the loop knows no layers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace rondo::trainer {

/// One parameter tensor.
struct Parameter {
  std::string name;
  size_t count;
  double init_bound;  // starts uniform in [-init_bound, init_bound)
};

/// Samples of one pass. Borrowed.
struct Batch {
  size_t size;             // samples, 0 allowed
  const uint8_t* inputs;   // [size x context]
  const uint8_t* targets;  // [size]
};

/// What a backward pass tells while it runs, in a fixed order that is the same on every rank and in
/// every step.
class BackwardListener {
 public:
  virtual ~BackwardListener() = default;
  /// The pass turns to this layer (an index into Model::layers()).
  virtual void layer_begins(int layer) = 0;
  /// This gradient (an index into Model::parameters()) is final: nothing of the pass will touch it
  /// again.
  virtual void gradient_ready(int parameter) = 0;
};

/// One thread at a time. T is float or double.
template <class T>
class Model {
 public:
  virtual ~Model() = default;

  /// In the order in which backward finishes their gradients; never changes.
  virtual const std::vector<Parameter>& parameters() const = 0;
  /// Names, in the order in which backward visits them.
  virtual const std::vector<std::string>& layers() const = 0;

  /// Where each parameter and its gradient live, in the order of parameters(). Borrowed; call
  /// before the passes.
  virtual void bind(const std::vector<T*>& parameters, const std::vector<T*>& gradients) = 0;

  /// The sum over the batch of each sample's loss; keeps what backward needs. REQUIRES: bind().
  virtual double forward(const Batch& batch) = 0;
  /// Writes scale * d(loss sum)/d(parameter), or adds it when `accumulate`. REQUIRES: the same
  /// batch was just forwarded.
  virtual void backward(const Batch& batch, T scale, bool accumulate,
                        BackwardListener& listener) = 0;
};

/// Fills one parameter: a pure function of the seed and the parameter's index, the same for every T
/// up to rounding.
template <class T>
void initialise(const Parameter& parameter, int index, uint64_t seed, T* values);

}  // namespace rondo::trainer
