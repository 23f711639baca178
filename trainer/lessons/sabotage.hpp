// --break: mistakes made on purpose, so that a lesson can show their symptoms. Without that flag
// everything here does what it should. A step knows only what it is given: listeners and factors.
#pragma once

#include <chrono>
#include <functional>
#include <thread>
#include <utility>

#include "rondo/communicator.hpp"
#include "trainer/cli/options.hpp"
#include "trainer/models/model.hpp"

namespace rondo::trainer {

/// The rank whose share of the data `rank` reads.
inline uint64_t rank_that_reads(const TrainOptions& options, uint64_t rank) {
  return options.sabotage == "same-data" ? 0 : rank;
}

/// The epoch that set_epoch() gets.
inline uint64_t order_of_epoch(const TrainOptions& options, uint64_t epoch) {
  return options.sabotage == "no-set-epoch" ? 0 : epoch;
}

/// Whether samples are drawn in another order than the data's.
inline bool shuffles(const TrainOptions& options) { return options.sabotage != "unshuffled"; }

/// What gradients are multiplied by. Those that are summed over N ranks and not divided by N are N
/// times their mean. With SGD that acts like N times the learning rate; AdamW divides each gradient by
/// its own size, so its losses hardly change.
inline double gradient_factor(const TrainOptions& options, int ranks) {
  return options.sabotage == "sum" ? ranks : 1;
}

/// Calls `read` before the first layer of the fifth forward pass.
class LoneReader : public ForwardListener {
 public:
  LoneReader(int first_layer, std::function<void()> read, ForwardListener& next)
      : first_layer_(first_layer), read_(std::move(read)), next_(next) {}

  void forward_begins(int layer) override {
    if (read_ && layer == first_layer_ && ++passes_ == 5) read_();
    next_.forward_begins(layer);
  }

 private:
  const int first_layer_;
  const std::function<void()> read_;
  ForwardListener& next_;
  int passes_ = 0;
};

/// Delays the first layer of each forward pass on the last rank, as a slow disk, a hot core or a
/// neighbour's job would. It sleeps, so that on a machine with few cores it delays nobody else.
/// `settle` is called before: the rank is to have nothing left that it does meanwhile.
class Straggler : public ForwardListener {
 public:
  Straggler(bool lags, int first_layer, std::function<void()> settle, ForwardListener& next)
      : lags_(lags), first_layer_(first_layer), settle_(std::move(settle)), next_(next) {}

  void forward_begins(int layer) override {
    if (lags_ && layer == first_layer_) {
      if (settle_) settle_();
      std::this_thread::sleep_for(std::chrono::milliseconds{200});
    }
    next_.forward_begins(layer);
  }

 private:
  const bool lags_;
  const int first_layer_;
  const std::function<void()> settle_;
  ForwardListener& next_;
};

/// What forward passes go through on their way to `next`. `communicator`: the host's, of all ranks.
class BrokenForward : public ForwardListener {
 public:
  BrokenForward(const TrainOptions& options, Communicator& communicator, size_t layers,
                std::function<void()> settle, ForwardListener& next)
      : reader_(static_cast<int>(layers) - 1,
                options.sabotage == "lone-read" && communicator.rank() == 0
                    ? [&communicator] { read_loss(communicator); }
                    : std::function<void()>(),
                next),
        straggler_(
            options.sabotage == "straggler" && communicator.rank() + 1 == communicator.size(),
            static_cast<int>(layers) - 1, std::move(settle), reader_) {}

  void forward_begins(int layer) override { straggler_.forward_begins(layer); }

 private:
  /// An all-reduce that no other rank makes: the run ends with it.
  static void read_loss(Communicator& communicator) {
    double loss = 0;
    (void)communicator.all_reduce(&loss, &loss, 1, DataType::kFloat64);
  }

  LoneReader reader_;
  Straggler straggler_;
};

}  // namespace rondo::trainer
