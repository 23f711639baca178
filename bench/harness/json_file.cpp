// A plain file is written under another name and renamed, so that no reader sees half of it.
#include "bench/harness/json_file.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

namespace rondo::bench {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kBetween{1};

/// False, and errno: it is not, or not wholly, written.
bool write_text(std::ofstream file, const std::string& text) {
  if (!file) return false;
  file << text;
  file.close();
  return !file.fail();
}

bool has_results(const nlohmann::json& document) {
  const auto results = document.find("results");
  return results == document.end() || !results->empty();
}

/// Whether there is anything but a run that has failed before its first result.
bool holds_anything(const std::string& path) {
  std::ifstream file(path);
  if (file.peek() == std::ifstream::traits_type::eof()) return false;
  const auto document = nlohmann::json::parse(file, nullptr, false);
  return !document.is_object() || has_results(document);
}

}  // namespace

Status JsonFile::open() {
  if (path_.empty()) return {};
  if (!std::ofstream(path_, std::ios::app)) {
    return {Code::kSystem, "cannot write --json '" + path_ + "': " + std::strerror(errno)};
  }
  std::error_code error;
  plain_ = std::filesystem::is_regular_file(path_, error);
  if (plain_) path_ = std::filesystem::canonical(path_, error).string();
  keeps_ = plain_ && holds_anything(path_);
  return {};
}

bool JsonFile::wants_interim() const { return plain_ && Clock::now() - written_ >= kBetween; }

Status JsonFile::write(const nlohmann::json& document) {
  if (path_.empty() || (keeps_ && !has_results(document))) return {};
  written_ = Clock::now();
  const std::string text =
      document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  const auto failed = [&](int error) {
    return Status(Code::kSystem, "cannot write --json '" + path_ + "': " + std::strerror(error));
  };
  const std::string beside = path_ + ".part";
  if (std::ofstream file(plain_ ? beside : ""); file) {
    const bool whole = write_text(std::move(file), text);
    const int error = errno;
    if (whole && std::rename(beside.c_str(), path_.c_str()) == 0) return {};
    std::remove(beside.c_str());
    if (!whole) return failed(error);
  }
  // The folder may be unwritable although the file is writable.
  return write_text(std::ofstream(path_), text) ? Status() : failed(errno);
}

}  // namespace rondo::bench
