// rondo-train's main(), but for how its ranks come to be: as processes (main.cpp), or as threads in a
// test's program.
#pragma once

#include <atomic>
#include <functional>

#include "rondo/status.hpp"
#include "trainer/cli/options.hpp"

namespace rondo::trainer {

/// Trains, on all ranks or as one of them. `is_left_out`: as train()'s.
using TrainRanks = std::function<Status(const TrainOptions& options, bool& is_left_out)>;

/// Sets messages up, reads the options, trains, or does what --lesson and --scaling want instead.
/// Returns the exit code.
int run_program(int argc, char** argv, const TrainRanks& train_ranks);

/// From here on the first Ctrl-C, or SIGTERM as schedulers send it before they end a job, sets what
/// this returns, which ends the run after a step, and a Ctrl-C after that ends the program. SIGTERM
/// may come twice: timeout(1), and schedulers, send it to the launcher and to its ranks. Not where a
/// parent ignores them, as Ctrl-C for commands in a shell script's background.
const std::atomic<bool>& end_run_at_interrupt();

}  // namespace rondo::trainer
