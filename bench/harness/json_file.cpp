// A plain file is written under another name and renamed, so that no reader sees half of it.
#include "bench/harness/json_file.hpp"

#include <spdlog/spdlog.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

namespace rondo::bench {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kBetween{1};

bool write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  return !file.fail();
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
  return {};
}

bool JsonFile::wants_interim() const { return plain_ && Clock::now() - written_ >= kBetween; }

bool JsonFile::write(const nlohmann::json& document) {
  if (path_.empty()) return true;
  written_ = Clock::now();
  const std::string text =
      document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  const std::string beside = path_ + ".part";
  if (plain_ && write_text(beside, text) && std::rename(beside.c_str(), path_.c_str()) == 0) {
    return true;
  }
  // The folder may be unwritable although the file is writable.
  if (write_text(path_, text)) return true;
  spdlog::error("cannot write {}: {}", path_, std::strerror(errno));
  return false;
}

}  // namespace rondo::bench
