// See document.hpp. Each call is one write(): the new step, and then the rest anew, over the old one.
#include "trainer/report/document.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

namespace rondo::trainer {
namespace {

std::string compact(const Document::Json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Status cannot_write(const std::string& path, int error) {
  return {Code::kSystem, "cannot write --json '" + path + "': " + std::strerror(error)};
}

}  // namespace

Result<Document> Document::open(const std::string& path, const Json& config,
                                const std::string& error) {
  Document document;
  if (path.empty()) return document;
  document.path_ = path;
  document.fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  document.ending_ = "\"error\": " + compact(error);
  if (document.fd_ < 0) {
    return cannot_write(path, errno);
  }
  // Not cut before it is written: a program stopped in between would leave nothing. Blanks cover what
  // is longer, and are cut then.
  struct stat old = {};
  if (fstat(document.fd_, &old) == 0 && S_ISREG(old.st_mode)) document.covers_ = old.st_size;
  document.write("{\"program\": \"rondo-train\",\n\"config\": " + compact(config) +
                 ",\n\"steps\": [");
  document.cut();
  RONDO_TRY(document.failure_);
  return document;
}

bool Document::holds_steps(const std::string& path) {
  std::error_code none;
  if (!std::filesystem::is_regular_file(path, none)) return false;
  std::ifstream file(path);
  if (file.peek() == std::ifstream::traits_type::eof()) return false;
  const Json document = Json::parse(file, nullptr, false);
  return !document.is_object() || !document.contains("error") ||
         document.value("steps", Json::array({0})) != Json::array();
}

Status Document::check(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return cannot_write(path, errno);
  close(fd);
  return {};
}

Document::~Document() {
  if (fd_ >= 0) close(fd_);
}

Document::Document(Document&& other) noexcept { *this = std::move(other); }

Document& Document::operator=(Document&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(steps_end_, other.steps_end_);
  std::swap(any_steps_, other.any_steps_);
  std::swap(validations_, other.validations_);
  std::swap(ending_, other.ending_);
  std::swap(failure_, other.failure_);
  return *this;
}

std::string Document::rest() const {
  const std::string validations =
      validations_.empty() ? "" : ",\n\"validation\": [" + validations_ + "]";
  return "\n]" + validations + ",\n" + ending_ + "}\n";
}

/// `step`: what is added to the part that stays.
void Document::write(const std::string& step) {
  if (fd_ < 0 || !failure_.ok()) return;
  std::string text = step + rest();
  text.resize(std::max(text.size(), static_cast<size_t>(std::exchange(covers_, 0))), ' ');
  ssize_t written = 0;
  do {
    written = pwrite(fd_, text.data(), text.size(), steps_end_);
  } while (written < 0 && errno == EINTR);
  if (written == static_cast<ssize_t>(text.size())) {
    steps_end_ += static_cast<off_t>(step.size());
    return;
  }
  failure_ = cannot_write(path_, written < 0 ? errno : ENOSPC);
}

void Document::add_step(const Json& step) {
  if (fd_ < 0) return;
  write((any_steps_ ? ",\n" : "\n") + compact(step));
  any_steps_ = true;
}

void Document::add_validation(const Json& record) {
  if (fd_ < 0) return;
  validations_ += (validations_.empty() ? "\n" : ",\n") + compact(record);
  write("");
}

Status Document::end(const std::string& key, const Json& value) {
  if (fd_ < 0) return failure_;
  ending_ = compact(key) + ": " + compact(value);
  write("");
  cut();
  return failure_;
}

/// What was there may have been longer. No regular file has nothing to cut.
void Document::cut() {
  if (failure_.ok() && ftruncate(fd_, steps_end_ + static_cast<off_t>(rest().size())) != 0 &&
      errno != EINVAL) {
    failure_ = cannot_write(path_, errno);
  }
}

}  // namespace rondo::trainer
