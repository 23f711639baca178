// What is read as training data, and what is refused.
#include "trainer/data/corpus.hpp"

#include <unistd.h>

#include <filesystem>

#include "tests/harness/catch.hpp"
#include "tests/harness/contains.hpp"
#include "tests/harness/rank_group.hpp"
#include "tests/trainer/files.hpp"

using namespace rondo;
using namespace rondo::trainer;
using namespace rondo::trainer::testing;
using rondo::testing::contains;
namespace fs = std::filesystem;

namespace {

std::string text_of(const Corpus& corpus) { return {corpus.bytes.begin(), corpus.bytes.end()}; }

/// What loading says, which must be an error.
std::string error_of(const std::string& path, size_t least = 1) {
  const Status status = load_corpus(path, least).status();
  CHECK(status.code() == Code::kDataError);
  return status.message();
}

}  // namespace

TEST_CASE("corpus: a folder's text files, in bytewise order of their paths") {
  const rondo::testing::TempDirectory folder;
  const fs::path root = folder.path();
  write_file(root / "b.txt", "B");
  write_file(root / "Z.txt", "Z");
  write_file(root / "a/deep/x", "X");
  write_file(root / "a.txt", "A");
  write_file(root / "empty", "");
  write_file(root / ".hidden/secret", "hidden");
  write_file(root / ".dotfile", "hidden");
  write_file(root / "out/CMakeCache.txt", "built");
  write_file(root / "out/deep/log", "built");
  write_file(root / "program", std::string("\x7f"
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
  write_file(root / "build/a", "A");
  write_file(root / "builders/b", "B");
  write_file(root / "deep/buildings/c", "C");
  const Result<Corpus> users = load_corpus(folder.path(), 1);
  REQUIRE(users.ok());
  CHECK(text_of(users.value()) == "ABC");

  write_file(root / "include/rondo/rondo.hpp", "R");
  const Result<Corpus> project = load_corpus(folder.path(), 1);
  REQUIRE(project.ok());
  CHECK(text_of(project.value()) == "CR");
}

TEST_CASE("corpus: a file is taken as it is, however large its pieces") {
  const rondo::testing::TempDirectory folder;
  const std::string path = folder.path() + "/binary";
  std::string content;
  for (size_t i = 0; i < (3u << 20) + 5; ++i) content.push_back(static_cast<char>(i * 7));
  write_file(path, content);
  const Result<Corpus> corpus = load_corpus(path, 1);
  REQUIRE(corpus.ok());
  CHECK(text_of(corpus.value()) == content);
  CHECK(corpus.value().samples(16) == content.size() - 16);
}

TEST_CASE("corpus: refusals name the path and the reason") {
  const rondo::testing::TempDirectory folder;
  const std::string missing = folder.path() + "/missing", file = folder.path() + "/short";
  CHECK_THAT(error_of(missing), contains(missing) && contains("No such file"));
  CHECK_THAT(error_of(folder.path()), contains("holds 0 bytes"));
  write_file(file, "sixteen bytes...");
  CHECK_THAT(error_of(file, 17), contains("holds 16 bytes"));
  CHECK(load_corpus(file, 16).ok());
  CHECK_THAT(error_of("/dev/zero"), contains("neither a regular file nor a folder"));
  // A regular file that opens and then fails: nothing is mapped at address 0.
  CHECK_THAT(error_of("/proc/self/mem"), contains("cannot be read"));
  CHECK(!error_of("").empty());
}

TEST_CASE("corpus: files without permission are an error, not a gap") {
  if (geteuid() == 0) return;  // root may read everything
  const rondo::testing::TempDirectory folder;
  write_file(folder.path() + "/readable", "text");
  write_file(folder.path() + "/closed", "text");
  fs::permissions(folder.path() + "/closed", fs::perms::none);
  CHECK_THAT(error_of(folder.path()), contains("closed") && contains("cannot be opened"));
}

TEST_CASE("corpus: the default is one fixed text beside the program, wherever it is started") {
  const Result<std::string> text = default_text();
  REQUIRE(text.ok());
  CHECK(fs::is_regular_file(text.value()));
  const Result<Corpus> corpus = load_corpus(text.value(), 10000);
  REQUIRE(corpus.ok());
  CHECK_THAT(text_of(corpus.value()), contains("Apache License"));

  const fs::path before = fs::current_path();
  fs::current_path("/");
  CHECK(default_text().value() == text.value());
  fs::current_path(before);
}
