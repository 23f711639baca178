// What a process does to itself before, or instead of, training: the right BLAS kernels, more ranks,
// a lesson.
#pragma once

#include "rondo/status.hpp"
#include "trainer/cli/options.hpp"

namespace rondo::trainer {

/// Executes this program's file with these arguments; ps shows the process under the file's name.
/// Returns only if that failed.
void become_this_program(char** argv);

/// Debian's OpenBLAS picks Haswell kernels on newer CPUs with AVX-512, at about half their speed,
/// unless OPENBLAS_CORETYPE is set before the library is loaded: sets it and executes this program
/// anew. Does nothing where the CPU lacks AVX-512 or the variable is set already, so it happens at
/// most once. Call first in main().
void prefer_fast_blas(char** argv);

/// Whether `options.ranks` asks for ranks that are not started yet. An error if it contradicts
/// the launcher.
Result<bool> must_launch(const TrainOptions& options);

/// Becomes `python3 trainer/lessons/lesson.py` of the project that this program, or the current
/// directory, lies in, for options.lesson. Returns only if that failed, or under a launcher.
Status teach(const TrainOptions& options);

/// Becomes `rondo-run -n options.ranks -- this program and its arguments`; rondo-run is the one beside
/// this program. Returns only if that failed.
Status launch(const TrainOptions& options, char** argv);

}  // namespace rondo::trainer
