// See lesson_run.hpp.
#include "trainer/lesson_run.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "trainer/report.hpp"

namespace rondo::trainer {
namespace {

std::string read_whole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

nlohmann::json parse_file(const std::string& path) {
  return nlohmann::json::parse(read_whole(path), nullptr, false);
}

std::string replaced(std::string text, const std::string& word, const std::string& by) {
  const size_t at = text.find(word);
  return at == std::string::npos ? text : text.replace(at, word.size(), by);
}

/// As a shell needs it.
std::string for_shell(const std::string& word) {
  if (word.find_first_of(" {}'") == std::string::npos) return word;
  return "'" + word + "'";
}

const nlohmann::json& events(const nlohmann::json& trace) {
  static const nlohmann::json kNone = nlohmann::json::array();
  return trace.contains("traceEvents") ? trace["traceEvents"] : kNone;
}

/// Waits for it; its exit code, or 128 and its signal.
Result<int> spawn_and_wait(std::vector<std::string> words, const std::string& errors) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, errors.c_str(),
                                   O_WRONLY | O_CREAT | O_TRUNC, 0600);
  pid_t child = -1;
  const int failed = posix_spawn(&child, words[0].c_str(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) {
    return Status(Code::kSystem, "cannot start '" + words[0] + "': " + std::strerror(failed));
  }
  int state = 0;
  while (waitpid(child, &state, 0) < 0) {
    if (errno != EINTR) {
      return Status(Code::kSystem, std::string("cannot wait for it: ") + std::strerror(errno));
    }
  }
  return WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
}

}  // namespace

double LessonRun::number(const std::string& pointer) const {
  const nlohmann::json::json_pointer at(pointer);
  return json.contains(at) && json[at].is_number() ? json[at].get<double>() : std::nan("");
}

double LessonRun::loss_of_step(uint64_t step) const {
  return number("/steps/" + std::to_string(step - 1) + "/loss");
}

double LessonRun::mean_loss(size_t last) const {
  if (steps() < last) return std::nan("");
  double sum = 0;
  for (size_t s = steps() - last; s < steps(); ++s) sum += loss_of_step(s + 1);
  return sum / static_cast<double>(last);
}

double LessonRun::validation_loss() const {
  const size_t records = json.contains("validation") ? json["validation"].size() : 0;
  return records == 0 ? std::nan("")
                      : number("/validation/" + std::to_string(records - 1) + "/validation_loss");
}

/// From stderr: the first rank that ends takes rank 0 with it, perhaps before its document.
std::string LessonRun::error() const {
  const std::string prefix = "rondo-train: ";
  const size_t at = said.rfind(prefix);
  if (succeeded) return "none";
  if (at == std::string::npos) return said;
  const size_t begin = at + prefix.size();
  return said.substr(begin, said.find('\n', begin) - begin);
}

size_t LessonRun::steps() const { return json.contains("steps") ? json["steps"].size() : 0; }

size_t LessonRun::buckets() const {
  const auto at = "/summary/buckets"_json_pointer;
  return json.contains(at) ? json[at].size() : 0;
}

double LessonRun::bytes_of_root() const { return number("/summary/bytes_sent_per_step_by_rank/0"); }

double LessonRun::bytes_of_others() const {
  double most = std::nan("");
  if (!json.contains("/summary/bytes_sent_per_step_by_rank"_json_pointer)) return most;
  const auto& all = json["summary"]["bytes_sent_per_step_by_rank"];
  for (size_t r = 1; r < all.size(); ++r) most = std::fmax(most, all[r].get<double>());
  return most;
}

double LessonRun::ms_per_step(int rank, const std::string& name) const {
  std::map<uint64_t, double> of_step;
  for (const auto& event : events(trace)) {
    if (event["ph"] != "X" || event["pid"] != rank || event["name"] != name) continue;
    of_step[event["args"]["step"]] += event["dur"].get<double>() / 1e3;
  }
  std::vector<double> sums;
  for (const auto& [step, ms] : of_step) sums.push_back(ms);
  return median(std::move(sums));
}

LessonRun::Starts LessonRun::bucket_starts() const {
  std::set<int> bucket_lanes;
  std::map<uint64_t, double> wait_begins;
  for (const auto& event : events(trace)) {
    if (event["pid"] != 0) continue;
    if (event["name"] == "thread_name" &&
        event["args"]["name"].get<std::string>().starts_with("bucket ")) {
      bucket_lanes.insert(event["tid"].get<int>());
    }
    if (event["name"] == "wait for all-reduces") {
      const double ts = event["ts"];
      const auto [first, added] = wait_begins.try_emplace(event["args"]["step"], ts);
      first->second = std::min(first->second, ts);
    }
  }
  Starts starts;
  for (const auto& event : events(trace)) {
    if (event["pid"] != 0 || event["name"] != "queued") continue;  // begins when it is issued
    if (!bucket_lanes.contains(event["tid"].get<int>())) continue;
    ++starts.all;
    if (event["ts"] < wait_begins[event["args"]["step"]]) ++starts.during_backward;
  }
  return starts;
}

std::string LessonRun::warnings() const {
  std::string all;
  if (!json.contains("/summary/warnings"_json_pointer)) return "none";
  for (const auto& warning : json["summary"]["warnings"]) {
    all += (all.empty() ? "" : "; ") + warning.get<std::string>();
  }
  return all.empty() ? "none" : all;
}

Result<LessonRun> run_for_lesson(const std::vector<std::string>& flags, const std::string& folder,
                                 const std::string& name) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return Status(Code::kSystem, "cannot find this program's file: " + error.message());
  const std::string base = folder + "/" + name;
  std::vector<std::string> words = {self};
  bool traces = false;
  for (const std::string& flag : flags) {
    words.push_back(replaced(replaced(flag, "{folder}", folder), "{run}", name));
    traces = traces || flag == "--trace";
  }
  words.insert(words.end(), {"--log-every", "0", "--json", base + ".json"});
  LessonRun run;
  run.command = "rondo-train";
  for (size_t w = 1; w < words.size(); ++w) run.command += " " + for_shell(words[w]);
  const Result<int> code = spawn_and_wait(words, base + ".err");
  RONDO_RETURN_IF_ERROR(code.status());
  run.succeeded = code.value() == 0;
  run.said = read_whole(base + ".err");
  run.json = parse_file(base + ".json");
  if (traces) run.trace = parse_file(base + ".trace");
  if (!run.json.is_object() && !run.succeeded) run.json = nlohmann::json::object();
  if (run.json.is_object() && !run.trace.is_discarded()) return run;
  return Status(Code::kSystem, "'" + run.command + "' left no results, but said: " + run.said);
}

}  // namespace rondo::trainer
