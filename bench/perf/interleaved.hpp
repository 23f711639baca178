// Times many contenders in turn: in every round each has one short batch, so that a phase of the
// machine affects all of them.
#pragma once

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "bench/backends/both_memories.hpp"
#include "bench/backends/rondo.hpp"
#include "bench/harness/measure.hpp"

namespace rondo::bench {

struct Contender {
  CallShape shape;
  Algorithm algorithm;
  bool library;
  int block;                  // contenders with the same block are compared
  size_t iterations = 0;      // of a batch
  std::vector<double> times;  // us per operation on the slowest rank, of every round
  double time_us = 0;         // from settle()
};

struct Rounds {
  size_t rounds = 11;
  double batch_us = 300;
  double total_us = INFINITY;  // there are fewer rounds where all would take longer, at least five
  std::string progress;        // shown on a terminal, by the rank that has it
  // Told after the first round, on every rank: how many there are, and how long they take.
  std::function<void(size_t rounds, double seconds)> planned{};
};

/// Fills `times`. Out of place, without checks. Returns the number of rounds.
Result<size_t> time_interleaved(RondoBackend& backend, const BothMemories& memory,
                                const Rounds& how, std::vector<Contender>& contenders);

/// Sets time_us to each contender's undisturbed time. Contenders with the same `block`, which are
/// compared with each other, use the same few rounds, those that were fastest for all of them
/// together, and the median of these. (Each one's own median or quartile would fall into different
/// phases on a machine that is slow half of the time.) REQUIRES: timed.
void settle(std::vector<Contender>& contenders);

/// The algorithms that are possible for the shape here, without kAuto.
std::vector<Algorithm> algorithms_for(RondoBackend& backend, const CallShape& shape, bool library);

}  // namespace rondo::bench
