// What is read as training data, and what is refused.
#include "trainer/data/corpus.hpp"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/harness/catch.hpp"
#include "tests/harness/rank_group.hpp"

using namespace rondo;
using namespace rondo::trainer;
namespace fs = std::filesystem;

namespace {

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

std::string text_of(const Corpus& corpus) { return {corpus.bytes.begin(), corpus.bytes.end()}; }

Status error_of(const std::string& path, size_t least = 1) {
  return load_corpus(path, least).status();
}

}  // namespace

TEST_CASE("corpus: a folder's text files, in bytewise order of their paths") {
  const rondo::testing::TempDirectory folder;
  const fs::path root = folder.path();
  write(root / "b.txt", "B");
  write(root / "Z.txt", "Z");
  write(root / "a/deep/x", "X");
  write(root / "a.txt", "A");
  write(root / "empty", "");
  write(root / ".hidden/secret", "hidden");
  write(root / ".dotfile", "hidden");
  write(root / "out/CMakeCache.txt", "built");
  write(root / "out/deep/log", "built");
  write(root / "program", std::string("\x7f"
                                      "ELF\0binary",
                                      11));
  fs::create_symlink("/etc/passwd", root / "link");
  fs::create_directory_symlink(root, root / "loop");
  const Result<Corpus> corpus = load_corpus(folder.path(), 1);
  REQUIRE(corpus.ok());
  CHECK(text_of(corpus.value()) == "ZAXB");  // Z.txt, a.txt, a/deep/x ('.' < '/'), b.txt
  CHECK(corpus.value().files == 5);
}

TEST_CASE("corpus: a folder named build* is skipped where this project builds, and nowhere else") {
  const rondo::testing::TempDirectory folder;
  const fs::path root = folder.path();
  write(root / "build/a", "A");
  write(root / "builders/b", "B");
  write(root / "deep/buildings/c", "C");
  const Result<Corpus> users = load_corpus(folder.path(), 1);
  REQUIRE(users.ok());
  CHECK(text_of(users.value()) == "ABC");

  write(root / "include/rondo/rondo.hpp", "R");
  const Result<Corpus> project = load_corpus(folder.path(), 1);
  REQUIRE(project.ok());
  CHECK(text_of(project.value()) == "CR");
}

TEST_CASE("corpus: a file is taken as it is, however large its pieces") {
  const rondo::testing::TempDirectory folder;
  const std::string path = folder.path() + "/binary";
  std::string content;
  for (size_t i = 0; i < (3u << 20) + 5; ++i) content.push_back(static_cast<char>(i * 7));
  write(path, content);
  const Result<Corpus> corpus = load_corpus(path, 1);
  REQUIRE(corpus.ok());
  CHECK(text_of(corpus.value()) == content);
  CHECK(corpus.value().samples(16) == content.size() - 16);
}

TEST_CASE("corpus: refusals name the path and the reason") {
  const rondo::testing::TempDirectory folder;
  const std::string missing = folder.path() + "/missing";
  const Status not_there = error_of(missing);
  CHECK(not_there.code() == Code::kDataError);
  CHECK(not_there.message().find(missing) != std::string::npos);
  CHECK(not_there.message().find("No such file") != std::string::npos);

  CHECK(error_of(folder.path()).message().find("holds 0 bytes") != std::string::npos);
  write(folder.path() + "/short", "sixteen bytes...");
  const Status too_short = error_of(folder.path() + "/short", 17);
  CHECK(too_short.code() == Code::kDataError);
  CHECK(too_short.message().find("holds 16 bytes") != std::string::npos);
  CHECK(load_corpus(folder.path() + "/short", 16).ok());

  CHECK(error_of("/dev/zero").message().find("neither a regular file nor a folder") !=
        std::string::npos);
  // A regular file that opens and then fails: nothing is mapped at address 0.
  CHECK(error_of("/proc/self/mem").message().find("cannot be read") != std::string::npos);
  CHECK(error_of("").code() == Code::kDataError);
}

TEST_CASE("corpus: files without permission are an error, not a gap") {
  if (geteuid() == 0) return;  // root may read everything
  const rondo::testing::TempDirectory folder;
  write(folder.path() + "/readable", "text");
  write(folder.path() + "/closed", "text");
  fs::permissions(folder.path() + "/closed", fs::perms::none);
  const Status status = error_of(folder.path());
  CHECK(status.message().find("closed") != std::string::npos);
  CHECK(status.message().find("cannot be opened") != std::string::npos);
}

TEST_CASE("corpus: the default is one fixed text beside the program, wherever it is started") {
  const Result<std::string> text = default_text();
  REQUIRE(text.ok());
  CHECK(fs::is_regular_file(text.value()));
  const Result<Corpus> corpus = load_corpus(text.value(), 10000);
  REQUIRE(corpus.ok());
  CHECK(text_of(corpus.value()).find("Apache License") != std::string::npos);

  const fs::path before = fs::current_path();
  fs::current_path("/");
  CHECK(default_text().value() == text.value());
  fs::current_path(before);
}
