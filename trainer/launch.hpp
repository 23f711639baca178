// What has to happen to the process itself before training starts: the right BLAS kernels, and more
// ranks.
#pragma once

#include "rondo/status.hpp"
#include "trainer/options.hpp"

namespace rondo::trainer {

/// Debian's OpenBLAS picks Haswell kernels on newer CPUs with AVX-512, at about half their speed,
/// unless OPENBLAS_CORETYPE is set before the library is loaded: sets it and executes this program
/// anew. Does nothing where the CPU lacks AVX-512 or the variable is set already, so it happens at
/// most once. Call first in main().
void prefer_fast_blas(char** argv);

/// Whether `options.ranks` asks for ranks that nobody has started yet. An error if it contradicts
/// the launcher.
Result<bool> must_launch(const Options& options);

/// Becomes `rondo-run -n ranks -- this program and its arguments`; rondo-run is the one beside this
/// program. Returns only if that failed.
Status launch(int ranks, char** argv);

}  // namespace rondo::trainer
