// What all ranks must know of the averaged gradients before one of them moves a parameter: whether
// they are numbers, and how large they are together. Where each rank holds only its shard, they
// tell each other; the answer has the same bits either way.
#pragma once

#include "rondo/communicator.hpp"
#include "rondo/ddp.hpp"

namespace rondo::trainer {

struct GradientFacts {
  bool finite = true;  // none is infinite or NaN, before `unscale`; true where nobody asked
  double norm = 0;     // of all together, after it; 0 where nobody asked
};

struct GradientQuestions {
  bool finite, norm;
  double unscale = 1;  // what the gradients are multiplied by in between
};

/// Asks, and multiplies the own gradients. Collective, and waiting, with shards: eight bytes per
/// kNormBlock gradients travel, because a norm has to be there before the first parameter can move.
/// Nothing overlaps with that. Nothing travels where nothing is asked, or without shards.
template <class T>
Result<GradientFacts> examine_gradients(Communicator& communicator, DistributedDataParallel& ddp,
                                        const GradientQuestions& ask);

}  // namespace rondo::trainer
