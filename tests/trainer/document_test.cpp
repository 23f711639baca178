// The file of --json, without a run: a full disk, pipes, and what stdout goes to.
#include "trainer/report/document.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/harness/catch.hpp"
#include "tests/harness/rank_group.hpp"
#include "tests/trainer/crash.hpp"

namespace rondo::trainer::document_test {

using namespace rondo;
using namespace rondo::trainer::testing;
using rondo::testing::TempDirectory;
using Json = Document::Json;

namespace {

std::string content_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// In a child, whose files cannot grow past `bytes`.
void with_little_space(rlim_t bytes, const std::function<void()>& body) {
  const int signal = signal_of_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);  // then write() fails, after a part
    const rlimit limit{bytes, bytes};
    setrlimit(RLIMIT_FSIZE, &limit);
    body();
  });
  CHECK(signal == 0);
}

void expect(bool holds) {
  if (!holds) std::abort();  // in a child
}

}  // namespace

TEST_CASE("document: a disk that is full leaves the steps that it has, and says so") {
  const TempDirectory folder;
  const std::string path = folder.path() + "/json";
  // Each number of bytes at which a step, a validation or the end can be cut.
  const std::string full = "cannot write --json '" + path + "': No space left on device";
  for (rlim_t bytes = 320; bytes < 600; bytes += 7) {
    std::filesystem::remove(path);
    with_little_space(bytes, [&] {
      Document document = Document::open(path, {{"width", 16}}, "stopped").value();
      for (int step = 1; step <= 40; ++step) {
        document.add_step({{"step", step}});
        if (step % 3 == 0) document.add_validation({{"after", step}});
      }
      const Status ended = document.end("summary", {{"steps", 40}});
      expect(ended.code() == Code::kSystem);
      expect(document.end("error", full).message() == ended.message());
    });
    const Json document = Json::parse(content_of(path), nullptr, false);
    INFO(bytes << ": " << content_of(path));
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
  std::ofstream(path) << before;
  with_little_space(60, [&] {
    const Status begun = Document::open(path, {{"width", 16}}, "stopped").status();
    expect(begun.code() == Code::kSystem);
  });
  CHECK(content_of(path) == before);
}

TEST_CASE("document: a pipe gets it at the end, and without a reader there is none") {
  const TempDirectory folder;
  const std::string path = folder.path() + "/pipe";
  REQUIRE(mkfifo(path.c_str(), 0600) == 0);
  CHECK(Document::must_stay(path));
  CHECK(Document::check(path).ok());
  const Status alone = Document::open(path, {}, "stopped").status();
  CHECK(alone.code() == Code::kSystem);
  CHECK(alone.message().find("nobody reads") != std::string::npos);

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
