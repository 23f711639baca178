// The MPI launchers that are installed, for tests of programs under them. A launcher that is not here
// is named and left out. RONDO_TEST_MPIRUNS: more of them, separated by colons.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/comm/bootstrap/rondo_run_helpers.hpp"

namespace rondo {

/// What may not be there: a test can itself run under a launcher.
inline const Words kNoLauncher = {"RANK",
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

  /// Its flags for more ranks than CPUs, and for `variables` that its ranks are to get.
  Words flags(const Words& variables = {}) const {
    if (!is_open_mpi) return {};
    Words all = {"--oversubscribe", "--bind-to", "none"};
    for (const std::string& each : variables)
      all = all + Words{"-x", each.substr(0, each.find('='))};
    return all;
  }
};

/// The launchers of this machine: those in PATH, those that scripts/compare has installed, those in
/// RONDO_TEST_MPIRUNS.
inline std::vector<Mpirun> find_mpiruns() {
  const auto variable = [](const char* name, const std::string& otherwise) {
    const char* const text = std::getenv(name);
    return text != nullptr ? text : otherwise;
  };
  Words candidates;
  for (const char* name : {"/mpirun", "/mpirun.openmpi", "/mpirun.mpich", "/mpiexec.hydra"}) {
    for (const std::string& folder : split(variable("PATH", ""), ':')) {
      candidates.push_back(folder + name);
    }
  }
  const std::string cache = variable("XDG_CACHE_HOME", variable("HOME", "") + "/.cache");
  for (const char* name : {"/openmpi", "/mpich"}) {
    candidates.push_back(cache + "/rondo/compare-venv" + name + "/bin/mpirun");
  }
  candidates = candidates + split(variable("RONDO_TEST_MPIRUNS", ""), ':');

  std::vector<Mpirun> found;
  std::vector<std::filesystem::path> seen;
  for (const std::string& path : candidates) {
    if (access(path.c_str(), X_OK) != 0) continue;
    const auto real = std::filesystem::canonical(path);
    if (std::ranges::find(seen, real) != seen.end()) continue;
    seen.push_back(real);
    const std::string version = run_program({path, "--version"}, kNoLauncher).out;
    const bool is_open_mpi = contains(version, "Open MPI") || contains(version, "OpenRTE");
    if (is_open_mpi || contains(version, "HYDRA")) found.push_back({path, is_open_mpi});
  }
  return found;
}

inline const std::vector<Mpirun>& mpiruns() {
  static const std::vector<Mpirun> found = find_mpiruns();
  for (const bool open_mpi : {true, false}) {
    const bool there = std::ranges::any_of(
        found, [&](const Mpirun& mpirun) { return mpirun.is_open_mpi == open_mpi; });
    if (!there) WARN("no mpirun of " << (open_mpi ? "Open MPI" : "MPICH") << " here: not tested");
  }
  return found;
}

inline size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++found;
  return found;
}

/// So many tables of rondo-perf, each from one job, with right results.
inline void check_tables(const ProgramResult& ran, size_t tables = 1) {
  check_ended(ran, {});
  CHECK(count(ran.out, "# Out of bounds values : 0 OK") == tables);
}

inline void check_refused(const ProgramResult& ran, const Words& says) {
  INFO(ran.out << ran.err);
  CHECK(ran.exit_code != 0);
  for (const std::string& part : says) CHECK(contains(ran.out + ran.err, part));
}

}  // namespace rondo
