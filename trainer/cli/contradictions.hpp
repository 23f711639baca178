// Which flags of rondo-train do not go together. Knows no bounds of a single flag: those are
// options.cpp's.
#pragma once

#include <string>

#include "trainer/cli/options.hpp"

namespace CLI {
class App;
}

namespace rondo::trainer {

/// Why these flags, all parsed and filled in, do not go together; empty: they do.
std::string contradiction(const CLI::App& app, const TrainOptions& options);

}  // namespace rondo::trainer
