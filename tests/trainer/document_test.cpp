// The file of --json, without a run: a full disk, pipes, and what stdout goes to.
#include "trainer/report/document.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "tests/harness/catch.hpp"
#include "tests/harness/contains.hpp"
#include "tests/harness/rank_group.hpp"
#include "tests/trainer/crash.hpp"
#include "tests/trainer/files.hpp"

namespace rondo::trainer::document_test {

using namespace rondo;
using namespace rondo::trainer::testing;
using rondo::testing::contains;
using rondo::testing::TempDirectory;
using Json = Document::Json;

TEST_CASE("document: a disk that is full leaves the steps that it has, and says so") {
  const TempDirectory folder;
  const std::string path = folder.path() + "/json";
  // Each number of bytes at which a step, a validation or the end can be cut.
  const std::string full = "cannot write --json '" + path + "': No space left on device";
  for (rlim_t bytes = 320; bytes < 600; bytes += 7) {
    std::filesystem::remove(path);
    check_on_full_disk(bytes, [&] {
      Document document = Document::open(path, {{"width", 16}}, "stopped").value();
      for (int step = 1; step <= 40; ++step) {
        document.add_step({{"step", step}});
        if (step % 3 == 0) document.add_validation({{"after", step}});
      }
      const Status ended = document.end("summary", {{"steps", 40}});
      return ended.code() == Code::kSystem &&
             document.end("error", full).message() == ended.message();
    });
    const Json document = Json::parse(read_text(path), nullptr, false);
    INFO(bytes << ": " << read_text(path));
    REQUIRE(document.is_object());
    CHECK(!document.contains("summary"));
    CHECK(document["error"] == full);
    for (size_t s = 0; s < document["steps"].size(); ++s) {
      REQUIRE(document["steps"][s]["step"] == s + 1);
    }
  }
}

TEST_CASE("document: a disk that is full when it begins leaves what was there") {
  const TempDirectory folder;
  const std::string path = folder.path() + "/json";
  const std::string before = R"({"steps": "of another run"})";
  write_file(path, before);
  check_on_full_disk(60, [&] {
    return Document::open(path, {{"width", 16}}, "stopped").status().code() == Code::kSystem;
  });
  CHECK(read_text(path) == before);
}

TEST_CASE("document: a pipe gets it at the end, and without a reader there is none") {
  const TempDirectory folder;
  const std::string path = folder.path() + "/pipe";
  REQUIRE(mkfifo(path.c_str(), 0600) == 0);
  CHECK(Document::must_stay(path));
  CHECK(Document::check(path).ok());
  const Status alone = Document::open(path, {}, "stopped").status();
  CHECK(alone.code() == Code::kSystem);
  CHECK_THAT(alone.message(), contains("nobody reads"));

  const int reader = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  REQUIRE(reader >= 0);
  {
    Document document = Document::open(path, {{"width", 16}}, "stopped").value();
    document.add_step({{"step", 1}});
    document.add_validation({{"after", 1}});
    char none = 0;
    CHECK(read(reader, &none, 1) < 0);  // a writer, but nothing yet
    document.add_step({{"step", 2}});
    CHECK(document.end("summary", {{"steps", 2}}).ok());
  }
  std::string text(1000, '\0');
  text.resize(static_cast<size_t>(read(reader, text.data(), text.size())));
  close(reader);
  const Json document = Json::parse(text);
  CHECK(document["steps"].size() == 2);
  CHECK(document["validation"].size() == 1);
  CHECK(document["summary"]["steps"] == 2);
  CHECK(!document.contains("error"));
}

}  // namespace rondo::trainer::document_test
