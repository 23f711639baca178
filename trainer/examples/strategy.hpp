// Which flags --strategy dp cannot follow. Pure; the strategy itself is strategy_dp.hpp.
#pragma once

#include <string>

#include "trainer/cli/options.hpp"

namespace rondo::trainer {

/// Why not, naming the flag; empty: it can, or the strategy is ddp.
std::string refused_by_strategy(const TrainOptions& options);

}  // namespace rondo::trainer
