// Which samples belong to which step and rank: a pure function of (seed, epoch, position, rank), in
// constant memory. The global order does not depend on how many ranks share it, so N ranks with
// batch B see what one rank with batch N*B sees. Knows no data and reads none.
#pragma once

#include <cstdint>

namespace rondo::trainer {

/// A bijection of [0, size) chosen by `key`, in constant memory: a Feistel network over the next
/// power of four, walked until it lands inside (Black and Rogaway 2002). A table would need 8 bytes
/// per sample on every rank.
class Permutation {
 public:
  /// REQUIRES: 1 <= size <= 2^62.
  Permutation(uint64_t size, uint64_t key);
  /// REQUIRES: i < size.
  uint64_t operator()(uint64_t i) const;

 private:
  uint64_t size_, key_, half_mask_;
  int half_bits_;
};

/// One rank's samples of an epoch, as torch.utils.data.DistributedSampler chooses them: all samples
/// in one order, chosen by seed and epoch, the same on every rank; rank r has entries r, r + N,
/// r + 2N, ... The order is rondo's Permutation, not the one of torch's generator.
///
/// Progress is counted in global samples, so that an epoch can go on with another number of ranks:
/// what is left is then cut anew, behind what was consumed.
///
/// Thread-compatible; holds a few numbers.
class DistributedSampler {
 public:
  /// What happens to samples that N ranks cannot share equally.
  enum class Tail {
    kPad,   // the order begins again from its front, so that every rank has as many (torch's
            // default): some samples count twice
    kDrop,  // left out, other ones in each epoch (torch's drop_last)
    kKeep,  // the first ranks have one more: for evaluation, where each sample must count once
  };
  struct Options {
    uint64_t samples;  // at most 2^62
    uint64_t ranks = 1, rank = 0;
    bool shuffle = true;  // else in the data's order
    uint64_t seed = 0;
    Tail tail = Tail::kPad;
  };

  /// At the beginning of epoch 0. REQUIRES: rank < ranks, the same other options on every rank.
  explicit DistributedSampler(const Options& options);

  /// Turns to an epoch of which `consumed` samples are behind all ranks together. Without it every
  /// epoch would have the order of the first.
  void set_epoch(uint64_t epoch, uint64_t consumed = 0);
  uint64_t epoch() const { return epoch_; }

  /// This rank's samples that are left, and the least and the most that any rank has left.
  uint64_t size() const;
  uint64_t least() const { return left() / options_.ranks; }
  uint64_t most() const;
  /// Position in the data of this rank's i-th sample that is left. REQUIRES: i < size().
  uint64_t index(uint64_t i) const;

  /// What to hand to set_epoch() once every rank is through `count` more of its samples. Padding is
  /// not counted.
  uint64_t consumed_after(uint64_t count) const;

 private:
  uint64_t left() const { return options_.samples - consumed_; }  // on all ranks, without padding

  Options options_;
  uint64_t epoch_ = 0, consumed_ = 0;
};

}  // namespace rondo::trainer
