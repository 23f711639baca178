// See launch.hpp.
#include "trainer/cli/launch.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "rondo/communicator.hpp"

namespace rondo::trainer {
namespace {

namespace fs = std::filesystem;

bool has_avx512() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

Result<std::string> own_file() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  if (error) return Status(Code::kSystem, "cannot find this program's file: " + error.message());
  return self.native();
}

/// The lessons' script: of the tree in which the current directory is, else of that in which this
/// program is. Empty: of neither.
std::string find_lessons() {
  std::error_code ignored;
  const fs::path starts[] = {fs::current_path(ignored),
                             fs::read_symlink("/proc/self/exe", ignored).parent_path()};
  for (const fs::path& start : starts) {
    for (fs::path folder = start; folder.has_relative_path(); folder = folder.parent_path()) {
      const fs::path script = folder / "trainer/lessons/lesson.py";
      if (fs::is_regular_file(script, ignored)) return script.native();
    }
  }
  return {};
}

/// Returns only if it failed. `what`: about the program, for the error.
Status become(std::vector<std::string> words, const char* what) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  execvp(words[0].c_str(), pointers.data());
  return Status(Code::kSystem,
                "cannot start '" + words[0] + "', " + what + ": " + std::strerror(errno));
}

}  // namespace

void become_this_program(char** argv) {
  // By its name: ps calls a process by the last part of the path.
  const auto self = own_file();
  if (self.ok()) execv(self->c_str(), argv);
  execv("/proc/self/exe", argv);  // its file has been replaced
}

void prefer_fast_blas(char** argv) {
  if (!has_avx512() || std::getenv("OPENBLAS_CORETYPE") != nullptr) return;
  setenv("OPENBLAS_CORETYPE", "SKYLAKEX", 0);
  become_this_program(argv);
  // Without /proc the program is merely slower.
}

Result<bool> must_launch(const TrainOptions& options) {
  auto place = RONDO_TRY(place_from_launcher());
  if (!place) return options.ranks != 0;
  // A launcher's only rank, as in an interactive Slurm step, may still start others.
  if (place->world_size == 1 && options.ranks > 1) return true;
  if (options.ranks == 0 || options.ranks == place->world_size) return false;
  return Status(Code::kInvalidArgument, "--ranks " + std::to_string(options.ranks) +
                                            " contradicts the launcher, which has "
                                            "started " +
                                            std::to_string(place->world_size) +
                                            " ranks: leave --ranks out under a launcher");
}

Status launch(const TrainOptions& options, char** argv) {
  const std::string self = RONDO_TRY(own_file());
  const std::string launcher = fs::path(self).parent_path() / "rondo-run";

  // Rank 0 alone reports, in JSON: its lines stay as they are. Ranks that wander between CPUs reach
  // the end of a step apart, and every all-reduce waits for the last.
  std::vector<std::string> words = {launcher, "--no-prefix", "--bind",
                                    "share",  "-n",          std::to_string(options.ranks)};
  if (options.elastic) words.emplace_back("--elastic");
  words.insert(words.end(), {"--", self});
  for (char** argument = argv + 1; *argument != nullptr; ++argument) words.push_back(*argument);
  return become(std::move(words), "which starts the ranks");
}

Status teach(const TrainOptions& options) {
  const std::optional<Place> place = RONDO_TRY(place_from_launcher());
  if (place && place->world_size > 1) {
    return Status(Code::kInvalidArgument,
                  "--lesson starts ranks of its own: run it without a launcher");
  }
  const std::string self = RONDO_TRY(own_file());
  const std::string script = find_lessons();
  if (script.empty()) {
    return Status(Code::kInvalidArgument,
                  "--lesson needs rondo's sources, whose trainer/lessons/lesson.py it runs: start "
                  "it in their folder");
  }
  std::vector<std::string> words = {"python3", "-B", script, options.lesson, "--program", self};
  if (options.on_gpu()) words.insert(words.end(), {"--device", options.device});
  if (!options.lesson_folder.empty()) {
    words.insert(words.end(), {"--folder", options.lesson_folder});
  }
  return become(std::move(words), "which runs the lesson");
}

}  // namespace rondo::trainer
