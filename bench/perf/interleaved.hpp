// Timing many contenders in turns: round after round, each has one short batch. Whatever the
// machine does for seconds at a time, it does to all of them.
#pragma once

#include <string>
#include <vector>

#include "bench/backends/rondo.hpp"
#include "bench/harness/measure.hpp"

namespace rondo::bench {

/// Two buffers of each kind of memory. Owns them.
class BothMemories {
 public:
  explicit BothMemories(size_t bytes);
  ~BothMemories();
  BothMemories(const BothMemories&) = delete;
  BothMemories& operator=(const BothMemories&) = delete;

  bool ok() const;
  const Buffers& of(bool library) const { return library ? library_ : plain_; }

 private:
  Buffers plain_, library_;
};

struct Contender {
  Shape shape;
  Algorithm algorithm;
  bool library;
  int block;                  // of those that are compared with each other
  size_t iterations = 0;      // of a batch
  std::vector<double> times;  // us per operation on the slowest rank, of every round
  double time_us = 0;         // from settle()
};

struct Rounds {
  size_t rounds = 11;
  double batch_us = 300;
  std::string progress;  // shown on a terminal, by the rank that has it
};

/// Fills in `times`. Out of place, without checks.
Status time_interleaved(RondoBackend& backend, const BothMemories& memory, const Rounds& how,
                        std::vector<Contender>& contenders);

/// What each contender takes while nothing disturbs it. Of contenders that stand beside each other
/// with the same `block` the same few rounds count, those that were fastest for all of them
/// together, and of these the median. (Each one's own median, or quartile, falls on different sides
/// for contenders that are to be compared, on a machine that is slow half of the time.) REQUIRES:
/// timed.
void settle(std::vector<Contender>& contenders);

/// The algorithms that are possible for the shape here, kAuto not among them.
std::vector<Algorithm> algorithms_for(RondoBackend& backend, const Shape& shape, bool library);

}  // namespace rondo::bench
