// Every lesson through the program: the symptom shows, the commands can be repeated, and
// TROUBLESHOOTING.md has a section for each. And the table of knobs names only flags that exist.
#include "trainer/lessons.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/harness/catch.hpp"
#include "tests/harness/rank_group.hpp"

namespace rondo::trainer::lessons_test {

using rondo::testing::ProgramResult;
using rondo::testing::run_program;
using rondo::testing::TempDirectory;
using Words = std::vector<std::string>;

namespace {

ProgramResult run(const Words& flags, const std::string& folder) {
  Words words = {RONDO_TRAIN};
  words.insert(words.end(), flags.begin(), flags.end());
  Words environment = {"RANK",        "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
                       "MASTER_ADDR", "MASTER_PORT"};
  environment.push_back("TMPDIR=" + folder);
  return run_program(words, environment, std::chrono::seconds{240});
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  REQUIRE(file.good());
  return {std::istreambuf_iterator<char>(file), {}};
}

Words lesson_names() {
  const TempDirectory folder;
  const ProgramResult list = run({"--lesson", "list"}, folder.path());
  REQUIRE(list.exit_code == 0);
  Words names;
  for (const std::string& line : lines_of(list.out))
    names.push_back(line.substr(0, line.find(' ')));
  return names;
}

bool is_flag_character(char c) { return (c >= 'a' && c <= 'z') || c == '-'; }

/// Every `--flag` in a text.
std::set<std::string> flags_in(const std::string& text) {
  std::set<std::string> flags;
  for (size_t at = 0; (at = text.find("--", at)) != std::string::npos;) {
    const auto end = std::find_if_not(text.begin() + static_cast<std::ptrdiff_t>(at), text.end(),
                                      is_flag_character);
    std::string flag(text.begin() + static_cast<std::ptrdiff_t>(at), end);
    at += flag.size();
    // No rule of a table, nor the end of an option that another is described by.
    if (flag.find_first_not_of('-') == 2) flags.insert(flag);
  }
  return flags;
}

/// What stands between this heading and the next of the same kind.
std::string section(const std::string& document, const std::string& heading) {
  const size_t begin = document.find("\n" + heading + "\n");
  if (begin == std::string::npos) return {};
  const size_t end = document.find("\n## ", begin + heading.size() + 1);
  return document.substr(begin + heading.size() + 2, end - begin - heading.size() - 2);
}

const std::string kTroubleshooting = RONDO_TRAINER_FOLDER "/TROUBLESHOOTING.md";

}  // namespace

TEST_CASE("every lesson shows its symptom, and says what to look at first and where to read on") {
  const Words names = lesson_names();
  CHECK(names == Words{"same-data", "no-set-epoch", "uneven-inputs", "no-buckets", "no-overlap",
                       "straggler", "local-batch-norm", "wrong-learning-rate", "star"});
  const std::string document = read_text(kTroubleshooting);
  for (const std::string& name : names) {
    const TempDirectory folder;  // for temporary files, of which none is left
    const ProgramResult result = run({"--lesson", name}, folder.path());
    INFO(name << ": " << result.out << result.err);
    CHECK(!result.timed_out);
    CHECK(result.exit_code == 0);
    CHECK(result.out.find("Look first: ") != std::string::npos);
    CHECK(result.out.find("section '" + name + "'") != std::string::npos);
    CHECK(section(document, "## " + name).find("--lesson " + name) != std::string::npos);
    // At least two commands, and nothing left behind.
    size_t commands = 0;
    for (const std::string& line : lines_of(result.out)) {
      if (line.find("  rondo-train ") == 0) ++commands;
    }
    CHECK(commands >= 2);
    CHECK(std::filesystem::is_empty(folder.path()));
  }
}

TEST_CASE("a lesson says so where the machine was too busy to show its times") {
  const auto run = [](double exposed_ms) {
    LessonRun made{};
    made.json = {{"summary", {{"exposed_comm_ms", exposed_ms}}}};
    return made;
  };
  size_t judging = 0;
  for (const Lesson& lesson : lessons()) {
    INFO(lesson.name);
    CHECK(not_judged(lesson, {run(2), run(4)}).empty());
    judging += not_judged(lesson, {run(4), run(2)}).empty() ? 0 : 1;
  }
  CHECK(judging == 3);  // no-buckets, no-overlap, star
}

TEST_CASE("a lesson's command can be repeated as it is printed") {
  const TempDirectory folder;
  const std::string kept = folder.path() + "/new/folder";
  const ProgramResult lesson =
      run({"--lesson", "uneven-inputs", "--lesson-folder", kept}, folder.path());
  INFO(lesson.out << lesson.err);
  REQUIRE(lesson.exit_code == 0);
  CHECK(lesson.out.find("stay in " + kept) != std::string::npos);
  std::vector<ProgramResult> results;
  for (const std::string& line : lines_of(lesson.out)) {
    const std::string program = "  rondo-train ";
    if (line.find(program) != 0) continue;
    const std::string command = RONDO_TRAIN " " + line.substr(program.size());
    results.push_back(run_program({"sh", "-c", command}, {}, std::chrono::seconds{60}));
  }
  REQUIRE(results.size() == 2);
  CHECK(results[0].exit_code == 0);
  CHECK(results[1].exit_code != 0);
  CHECK(results[1].err.find("uneven inputs") != std::string::npos);
}

TEST_CASE("a lesson that nobody knows, with settings, or among ranks is refused") {
  const TempDirectory folder;
  const auto refused = [&](const Words& words, const std::string& named) {
    const ProgramResult result = run(words, folder.path());
    INFO(result.err);
    CHECK(result.exit_code != 0);
    CHECK(result.err.find(named) != std::string::npos);
  };
  refused({"--lesson", "patience"}, "straggler");
  refused({"--lesson", "star", "--ranks", "8"}, "--ranks");
  refused({"--lesson-folder", folder.path()}, "--lesson");
  refused({"--lesson", "star", "--lesson-folder", "/proc/none"}, "/proc/none");
  refused({"--break", "everything"}, "same-data");
  const ProgramResult nested =
      run_program({RONDO_RUN, "-n", "2", "--", RONDO_TRAIN, "--lesson", "star"});
  CHECK(nested.exit_code != 0);
  CHECK(nested.err.find("without a launcher") != std::string::npos);
}

TEST_CASE("the documents name flags that exist, and the knobs' table all of its group") {
  const TempDirectory folder;
  const ProgramResult help = run({"--help"}, folder.path());
  REQUIRE(help.exit_code == 0);
  const std::set<std::string> there = flags_in(help.out);
  REQUIRE(there.contains("--bucket-cap-mb"));
  const std::string knobs = section(read_text(RONDO_TRAINER_FOLDER "/README.md"), "## Knobs");
  const std::set<std::string> named = flags_in(knobs);
  CHECK(named.size() > 20);
  for (const std::string& flag : named) {
    INFO("README, Knobs: " << flag);
    CHECK(there.contains(flag));
  }
  for (const char* flag :
       {"--ranks",         "--strategy",     "--threads",      "--bucket-cap-mb",
        "--no-overlap",    "--average",      "--join",         "--no-broadcast-buffers",
        "--compress",      "--tied-rows",    "--reproducible", "--pace",
        "--accum",         "--sampler-tail", "--drop-last",    "--sync-batch-norm",
        "--no-split-tied", "--layer-drop",   "--break",        "--lesson"}) {
    INFO("README, Knobs lacks " << flag);
    CHECK(named.contains(flag));
  }
  for (const std::string& flag : flags_in(read_text(kTroubleshooting))) {
    INFO("TROUBLESHOOTING: " << flag);
    CHECK((there.contains(flag) || flag == "--no-prefix"));
  }
}

}  // namespace rondo::trainer::lessons_test
