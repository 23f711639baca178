// fork, exec, wait. Between fork and exec only async-signal-safe calls are made.
#include "bench/harness/launch.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

namespace rondo::bench {
namespace {

std::string errno_text(const std::string& what) { return what + ": " + std::strerror(errno); }

Result<int> number_of(const char* variable) {
  const char* text = std::getenv(variable);
  int value = 0;
  const char* end = text == nullptr ? nullptr : text + std::strlen(text);
  if (text == nullptr || std::from_chars(text, end, value).ptr != end || text == end) {
    return Status(Code::kInvalidArgument,
                  std::string(variable) + " is '" + (text ? text : "(unset)") +
                      "', not a number: RANK and WORLD_SIZE are set together by a launcher");
  }
  return value;
}

/// Ours come first: of two settings of one variable getenv finds the first.
std::vector<std::string> environment_of(int rank, int ranks, const std::string& directory) {
  const std::string number = std::to_string(rank), total = std::to_string(ranks);
  std::vector<std::string> environment = {"RANK=" + number, "LOCAL_RANK=" + number,
                                          "WORLD_SIZE=" + total, "LOCAL_WORLD_SIZE=" + total,
                                          "RONDO_RENDEZVOUS=" + directory};
  for (char** variable = environ; *variable != nullptr; ++variable)
    environment.emplace_back(*variable);
  return environment;
}

pid_t start(int rank, int ranks, char** argv, const std::string& directory) {
  std::vector<std::string> environment = environment_of(rank, ranks, directory);
  std::vector<char*> variables;
  for (std::string& setting : environment) variables.push_back(setting.data());
  variables.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // the parent died before the line above
  if (rank != 0) {
    const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (nowhere < 0 || dup2(nowhere, STDOUT_FILENO) < 0) _exit(127);
  }
  execve("/proc/self/exe", argv, variables.data());
  _exit(127);
}

int exit_code_of(int wait_status) {
  return WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status);
}

/// Waits for all children; the first failure's exit code, or 0.
int wait_for(std::vector<pid_t> children) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kGrace = std::chrono::seconds(10);
  int first_failure = 0;
  Clock::time_point failed_at;
  size_t left = children.size();
  while (left > 0) {
    int wait_status = 0;
    const pid_t ended = waitpid(-1, &wait_status, first_failure == 0 ? 0 : WNOHANG);
    if (ended < 0 && errno == EINTR) continue;
    if (ended < 0) break;
    if (ended == 0) {
      if (Clock::now() - failed_at > kGrace) {
        for (pid_t child : children) {
          if (child > 0) kill(child, SIGKILL);
        }
      }
      usleep(10'000);
      continue;
    }
    for (pid_t& child : children) {
      if (child != ended) continue;
      child = 0;
      --left;
    }
    if (first_failure == 0 && exit_code_of(wait_status) != 0) {
      first_failure = exit_code_of(wait_status);
      failed_at = Clock::now();
    }
  }
  return first_failure;
}

}  // namespace

Result<std::optional<Place>> place_from_environment() {
  if (std::getenv("RANK") == nullptr && std::getenv("WORLD_SIZE") == nullptr) {
    return std::optional<Place>();
  }
  auto rank = number_of("RANK");
  if (!rank.ok()) return rank.status();
  auto size = number_of("WORLD_SIZE");
  if (!size.ok()) return size.status();
  Place place{.rank = *rank, .size = *size, .local_rank = *rank, .local_size = *size};
  if (auto local = number_of("LOCAL_RANK"); local.ok()) place.local_rank = *local;
  if (auto local = number_of("LOCAL_WORLD_SIZE"); local.ok()) place.local_size = *local;
  return std::optional<Place>(place);
}

Result<TemporaryDirectory> TemporaryDirectory::create() {
  std::error_code error;
  std::string path = (std::filesystem::temp_directory_path(error) / "rondo-perf-XXXXXX").string();
  if (error || mkdtemp(path.data()) == nullptr) {
    return Status(Code::kSystem, errno_text("cannot make a temporary directory like " + path));
  }
  return TemporaryDirectory(path);
}

TemporaryDirectory::TemporaryDirectory(TemporaryDirectory&& other) noexcept
    : path_(std::exchange(other.path_, {})) {}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

Result<int> start_ranks(int ranks, char** argv) {
  auto directory = TemporaryDirectory::create();
  if (!directory.ok()) return directory.status();
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = start(rank, ranks, argv, directory->path());
    if (child < 0) {
      const std::string message = errno_text("cannot start rank " + std::to_string(rank));
      for (pid_t started : children) kill(started, SIGKILL);
      wait_for(children);
      return Status(Code::kSystem, message);
    }
    children.push_back(child);
  }
  return wait_for(std::move(children));
}

}  // namespace rondo::bench
