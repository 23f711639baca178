// See corpus.hpp.
#include "trainer/data/corpus.hpp"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <new>

#include "trainer/data/file.hpp"

namespace rondo::trainer {
namespace {

namespace fs = std::filesystem;

bool is_project(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / "include/rondo/rondo.hpp", ignored);
}

/// CMake's build trees, and all that this project builds. A build* of the user's own is data.
bool is_build_folder(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / "CMakeCache.txt", ignored) ||
         (folder.filename().native().starts_with("build") && is_project(folder.parent_path()));
}

/// Adds the regular files below `folder` in no particular order.
Status list_files(const fs::path& folder, std::vector<std::string>& files) {
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const fs::path& path = entries->path();
    if (path.filename().native().starts_with(".")) continue;
    const fs::file_status status = entries->symlink_status(error);
    if (error) break;
    if (fs::is_regular_file(status)) files.push_back(path.native());
    if (fs::is_directory(status) && !is_build_folder(path)) {
      RONDO_TRY(list_files(path, files));
    }
  }
  if (error) return data_error(folder.native(), "cannot be listed: " + error.message());
  return {};
}

bool looks_binary(const uint8_t* bytes, size_t size) {
  return std::memchr(bytes, 0, std::min<size_t>(size, 8192)) != nullptr;
}

Status read_folder(const std::string& path, Corpus& corpus) {
  std::vector<std::string> files;
  RONDO_TRY(list_files(path, files));
  std::sort(files.begin(), files.end());
  for (const std::string& file : files) {
    const size_t start = corpus.bytes.size();
    RONDO_TRY(append_file(file, corpus.bytes));
    const size_t size = corpus.bytes.size() - start;
    if (size > 0 && looks_binary(corpus.bytes.data() + start, size)) {
      corpus.bytes.resize(start);
    } else {
      ++corpus.files;
    }
  }
  return {};
}

}  // namespace

Result<Corpus> load_corpus(const std::string& path, size_t least_bytes) try {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (error) return data_error(path, error.message());
  Corpus corpus{.path = path, .files = 0, .bytes = {}};
  if (fs::is_directory(status)) {
    RONDO_TRY(read_folder(path, corpus));
  } else if (fs::is_regular_file(status)) {
    RONDO_TRY(append_file(path, corpus.bytes));
    corpus.files = 1;
  } else {
    return data_error(path, "is neither a regular file nor a folder");
  }
  if (corpus.bytes.size() < least_bytes) {
    return data_error(path, "holds " + std::to_string(corpus.bytes.size()) + " bytes in " +
                                std::to_string(corpus.files) + " text files, but at least " +
                                std::to_string(least_bytes) + " bytes are needed");
  }
  return corpus;
} catch (const std::bad_alloc&) {
  return Status(Code::kResourceExhausted, "data '" + path + "': does not fit into memory");
}

Result<std::string> default_text() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const fs::path text = (program.parent_path() / RONDO_DEFAULT_TEXT).lexically_normal();
  if (!error && fs::is_regular_file(text, error)) return text.native();
  return Status(Code::kDataError, "no --data given, and the default, " + text.native() +
                                      ", which is installed with this program, is not there");
}

}  // namespace rondo::trainer
