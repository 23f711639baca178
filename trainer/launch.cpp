// See launch.hpp.
#include "trainer/launch.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

#include "rondo/communicator.hpp"

namespace rondo::trainer {
namespace {

bool has_avx512() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

}  // namespace

void prefer_fast_blas(char** argv) {
  if (!has_avx512() || std::getenv("OPENBLAS_CORETYPE") != nullptr) return;
  setenv("OPENBLAS_CORETYPE", "SKYLAKEX", 0);
  execv("/proc/self/exe", argv);
  // Without /proc the program is merely slower.
}

Result<bool> must_launch(const Options& options) {
  auto place = place_from_launcher();
  if (!place.ok()) return place.status();
  if (!*place) return options.ranks != 0;
  // A launcher's only rank, as in an interactive Slurm step, may still start others.
  if ((*place)->world_size == 1 && options.ranks > 1) return true;
  if (options.ranks == 0 || options.ranks == (*place)->world_size) return false;
  return Status(Code::kInvalidArgument, "--ranks " + std::to_string(options.ranks) +
                                            " contradicts the launcher, which has "
                                            "started " +
                                            std::to_string((*place)->world_size) +
                                            " ranks: leave --ranks out under a launcher");
}

Status launch(int ranks, char** argv) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return Status(Code::kSystem, "cannot find this program's file: " + error.message());
  const std::string launcher = self.parent_path() / "rondo-run";

  // Rank 0 alone reports, in JSON: its lines stay as they are. Ranks that wander between CPUs reach
  // the end of a step apart, and every all-reduce waits for the last.
  std::vector<std::string> words = {launcher, "--no-prefix",         "--bind", "share",
                                    "-n",     std::to_string(ranks), "--",     self};
  for (char** argument = argv + 1; *argument != nullptr; ++argument) words.push_back(*argument);
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  execv(launcher.c_str(), pointers.data());
  return Status(Code::kSystem,
                "cannot start '" + launcher + "', which starts the ranks: " + std::strerror(errno));
}

}  // namespace rondo::trainer
