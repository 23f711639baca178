// The MPI that the program was compiled with, as a Backend.
#pragma once

#include <memory>

#include "bench/harness/backend.hpp"

namespace rondo::bench {

/// Uses MPI_COMM_WORLD. REQUIRES: MPI_Init before and MPI_Finalize after its lifetime.
std::unique_ptr<Backend> make_mpi_backend();

}  // namespace rondo::bench
