// The MPI that this file's program was compiled with, behind the harness' interface.
#pragma once

#include <memory>

#include "bench/harness/backend.hpp"

namespace rondo::bench {

/// On MPI_COMM_WORLD. REQUIRES: MPI_Init before and MPI_Finalize after its life.
std::unique_ptr<Backend> make_mpi_backend();

}  // namespace rondo::bench
