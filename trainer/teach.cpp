// See teach.hpp.
#include "trainer/teach.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

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

Result<std::string> make_folder(const std::string& name) {
  std::error_code error;
  const std::filesystem::path temporary = std::filesystem::temp_directory_path(error);
  std::string path = temporary.string() + "/rondo-lesson-" + name + "-XXXXXX";
  if (!error && mkdtemp(path.data()) != nullptr) return path;
  return Status(Code::kSystem,
                "cannot make a folder '" + path + "' for the lesson: " + std::strerror(errno));
}

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

Status teach(const std::string& name) {
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
  const Result<std::string> folder = make_folder(name);
  RONDO_RETURN_IF_ERROR(folder.status());
  RONDO_RETURN_IF_ERROR(write_lesson_data(folder.value()));
  say(fmt::format("Lesson {}: {}\n\n", name, wrapped(found->broken, "")));
  const Result<std::vector<LessonRun>> runs = run_all(*found, folder.value());
  RONDO_RETURN_IF_ERROR(runs.status());
  say("\n" + table(*found, runs.value()) + "\n");
  if (!found->shows(runs.value())) {
    return Status(Code::kInvalidArgument, "the symptom of '" + name +
                                              "' did not show: the numbers above and " +
                                              folder.value() + " say what happened instead");
  }
  say(fmt::format("Look first: {}\n", wrapped(found->look_first, "            ")));
  say(fmt::format("More: trainer/TROUBLESHOOTING.md, section '{}'. Data and results stay in {}\n",
                  name, folder.value()));
  return {};
}

}  // namespace rondo::trainer
