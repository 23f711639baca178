// The MPI launchers that are installed, for tests of programs under them. A launcher that is not here
// is named and left out. RONDO_TEST_MPIRUNS: more of them, separated by colons.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "tests/harness/catch.hpp"
#include "tests/harness/rank_group.hpp"

namespace rondo {

using testing::run_program;

/// What may not be there: a test can itself run under a launcher.
inline const std::vector<std::string> kNoLauncher = {"RANK",
                                                     "WORLD_SIZE",
                                                     "RONDO_RENDEZVOUS",
                                                     "OMPI_COMM_WORLD_RANK",
                                                     "PMI_RANK",
                                                     "PMIX_RANK",
                                                     "PALS_RANKID",
                                                     "SLURM_PROCID",
                                                     "OMPI_ALLOW_RUN_AS_ROOT=1",
                                                     "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"};

struct Mpirun {
  std::string path;
  bool is_open_mpi;
};

inline bool is_program(const std::string& path) { return access(path.c_str(), X_OK) == 0; }

/// The launchers of this machine: those in PATH, those that scripts/compare has installed, those in
/// RONDO_TEST_MPIRUNS.
inline std::vector<Mpirun> find_mpiruns() {
  std::vector<std::string> candidates;
  const auto add_parts = [&](const char* list, const std::string& tail) {
    std::istringstream parts(list == nullptr ? "" : list);
    for (std::string part; std::getline(parts, part, ':');) candidates.push_back(part + tail);
  };
  for (const char* name : {"/mpirun", "/mpirun.openmpi", "/mpirun.mpich", "/mpiexec.hydra"}) {
    add_parts(std::getenv("PATH"), name);
  }
  const char* home = std::getenv("HOME");
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const std::string venv =
      (cache != nullptr ? std::string(cache)
                        : std::string(home == nullptr ? "" : home) + "/.cache") +
      "/rondo/compare-venv";
  for (const char* name : {"/openmpi", "/mpich"}) candidates.push_back(venv + name + "/bin/mpirun");
  add_parts(std::getenv("RONDO_TEST_MPIRUNS"), "");

  std::vector<Mpirun> found;
  std::vector<std::filesystem::path> seen;
  for (const std::string& path : candidates) {
    if (!is_program(path)) continue;
    const auto real = std::filesystem::canonical(path);
    if (std::find(seen.begin(), seen.end(), real) != seen.end()) continue;
    seen.push_back(real);
    const std::string version = run_program({path, "--version"}, kNoLauncher).out;
    const bool is_open_mpi = version.find("Open MPI") != std::string::npos ||
                             version.find("OpenRTE") != std::string::npos;
    if (is_open_mpi || version.find("HYDRA") != std::string::npos) {
      found.push_back({path, is_open_mpi});
    }
  }
  return found;
}

inline const std::vector<Mpirun>& mpiruns() {
  static const std::vector<Mpirun> found = find_mpiruns();
  for (const bool open_mpi : {true, false}) {
    const bool there = std::any_of(found.begin(), found.end(), [&](const Mpirun& mpirun) {
      return mpirun.is_open_mpi == open_mpi;
    });
    if (!there) WARN("no mpirun of " << (open_mpi ? "Open MPI" : "MPICH") << " here: not tested");
  }
  return found;
}

}  // namespace rondo
