// See teach.hpp.
#include "trainer/teach.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "rondo/communicator.hpp"
#include "trainer/lesson_data.hpp"
#include "trainer/lessons.hpp"

namespace rondo::trainer {
namespace {

void say(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

std::string names() {
  std::string all;
  for (const Lesson& lesson : lessons())
    all += (all.empty() ? "" : ", ") + std::string(lesson.name);
  return all;
}

/// Where a lesson's data and results lie: the user's folder, or one that goes when this does.
class Workplace {
 public:
  /// Empty `folder`: one of its own.
  static Result<Workplace> create(const std::string& folder, const std::string& lesson) {
    namespace fs = std::filesystem;
    std::error_code error;
    if (!folder.empty()) {
      fs::create_directories(folder, error);
      const std::string path = fs::absolute(folder, error).string();
      if (fs::is_directory(path, error)) return Workplace(path, true);
      return Status(Code::kSystem, "cannot make --lesson-folder '" + folder + "'");
    }
    std::string path = fs::temp_directory_path(error) / ("rondo-lesson-" + lesson + "-XXXXXX");
    if (!error && mkdtemp(path.data()) != nullptr) return Workplace(path, false);
    return Status(Code::kSystem,
                  "cannot make a folder '" + path + "' for the lesson: " + std::strerror(errno));
  }
  ~Workplace() {
    std::error_code ignored;
    if (!keeps_ && !path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  Workplace(Workplace&& other) noexcept
      : path_(std::exchange(other.path_, {})), keeps_(other.keeps_) {}
  Workplace& operator=(Workplace&&) = delete;

  const std::string& path() const { return path_; }
  bool keeps() const { return keeps_; }
  void keep() { keeps_ = true; }

 private:
  Workplace(std::string path, bool keeps) : path_(std::move(path)), keeps_(keeps) {}

  std::string path_;
  bool keeps_;
};

/// Breaks at spaces; later lines begin with `indent`.
std::string wrapped(const std::string& text, const std::string& indent, size_t width = 96) {
  std::string lines, line;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    if (!line.empty() && indent.size() + line.size() + 1 + word.size() > width) {
      lines += line + "\n" + indent;
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
    at = end + 1;
  }
  return lines + line;
}

/// A row per figure, a column per run; texts that are too long for a column below the row.
std::string table(const Lesson& lesson, const std::vector<LessonRun>& runs) {
  constexpr size_t kColumn = 20, kFirst = 36;
  std::string text = fmt::format("{:<{}}", "", kFirst), rest;
  for (const Lesson::Variant& variant : lesson.variants) {
    text += fmt::format("| {:<{}}", variant.name, kColumn);
  }
  text += "\n";
  for (const Lesson::Figure& figure : lesson.figures) {
    text += fmt::format("{:<{}}", figure.name, kFirst);
    for (size_t r = 0; r < runs.size(); ++r) {
      std::string value = figure.of(runs[r]);
      if (value.size() > kColumn) {
        rest += fmt::format("{}, {}:\n  {}\n", figure.name, lesson.variants[r].name,
                            wrapped(value, "  "));
        value = "see below";
      }
      text += fmt::format("| {:<{}}", value, kColumn);
    }
    text += "\n";
  }
  return text + rest;
}

Result<std::vector<LessonRun>> run_all(const Lesson& lesson, const std::string& folder) {
  std::vector<LessonRun> runs;
  for (size_t v = 0; v < lesson.variants.size(); ++v) {
    std::vector<std::string> flags = lesson.common;
    const auto& own = lesson.variants[v].flags;
    flags.insert(flags.end(), own.begin(), own.end());
    Result<LessonRun> run = run_for_lesson(flags, folder, fmt::format("run{}", v));
    RONDO_RETURN_IF_ERROR(run.status());
    runs.push_back(std::move(run).value());
    say(fmt::format("{}:\n  {}\n", lesson.variants[v].name, runs.back().command));
  }
  return runs;
}

}  // namespace

Status teach(const std::string& name, const std::string& folder) {
  if (name == "list") {
    for (const Lesson& lesson : lessons())
      say(fmt::format("{:<20} {}\n", lesson.name, lesson.broken));
    return {};
  }
  const auto found = std::find_if(lessons().begin(), lessons().end(),
                                  [&](const Lesson& lesson) { return lesson.name == name; });
  if (found == lessons().end()) {
    return Status(Code::kInvalidArgument,
                  "--lesson '" + name + "' is unknown: use list, or one of " + names());
  }
  const Result<std::optional<Place>> place = place_from_launcher();
  RONDO_RETURN_IF_ERROR(place.status());
  if (place.value() && place.value()->world_size > 1) {
    return Status(Code::kInvalidArgument,
                  "--lesson starts ranks of its own: run it without a launcher");
  }
  Result<Workplace> place_of_work = Workplace::create(folder, name);
  RONDO_RETURN_IF_ERROR(place_of_work.status());
  Workplace& work = place_of_work.value();
  RONDO_RETURN_IF_ERROR(write_lesson_data(work.path()));
  say(fmt::format("Lesson {}: {}\n\n", name, wrapped(found->broken, "")));
  const Result<std::vector<LessonRun>> runs = run_all(*found, work.path());
  RONDO_RETURN_IF_ERROR(runs.status());
  say("\n" + table(*found, runs.value()) + "\n");
  if (!found->shows(runs.value())) {
    work.keep();
    return Status(Code::kInvalidArgument, "the symptom of '" + name +
                                              "' did not show: the numbers above and " +
                                              work.path() + " say what happened instead");
  }
  const std::string doubt = not_judged(*found, runs.value());
  if (!doubt.empty()) say(wrapped(doubt, "") + "\n");
  say(fmt::format("Look first: {}\n", wrapped(found->look_first, "            ")));
  say(fmt::format("More: trainer/TROUBLESHOOTING.md, section '{}'. {}\n", name,
                  work.keeps() ? "Data and results stay in " + work.path()
                               : "With --lesson-folder DIR the commands can be repeated"));
  return {};
}

}  // namespace rondo::trainer
