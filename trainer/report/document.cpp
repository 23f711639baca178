// See document.hpp. Each call is one write(): the new step, and then the rest anew, over the old one.
#include "trainer/report/document.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "trainer/files/disk.hpp"

namespace rondo::trainer {
namespace {

constexpr char kFlag[] = "--json";

std::string compact(const Document::Json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

Result<Document> Document::open(const std::string& path, const Json& config,
                                const std::string& error) {
  Document document;
  if (path.empty()) return document;
  document.output_ = RONDO_TRY(TextOutput::open(kFlag, path));
  // With room for why the run ended, if that is that the disk is full.
  document.ending_ = "\"error\": " + compact(error) + std::string(path.size() + 100, ' ');
  // Not cut before it is written: a program stopped in between would leave nothing. Blanks cover what
  // is longer, and are cut then.
  if (!document.output_.is_stream()) {
    Result<std::string> old = read_text_file(path);
    if (old.ok()) document.shown_ = std::move(old).value();
  }
  document.write("{\"program\": \"rondo-train\",\n\"config\": " + compact(config) +
                 ",\n\"steps\": [");
  document.cut();
  RONDO_TRY(document.failure_);
  return document;
}

bool Document::must_stay(const std::string& path) {
  std::error_code none;
  if (!std::filesystem::is_regular_file(path, none)) return std::filesystem::exists(path, none);
  std::ifstream file(path);
  if (file.peek() == std::ifstream::traits_type::eof()) return false;
  const Json document = Json::parse(file, nullptr, false);
  return !document.is_object() || !document.contains("error") ||
         document.value("steps", Json::array({0})) != Json::array();
}

Status Document::check(const std::string& path) {
  struct stat there = {};
  // A pipe's reader would take the end of this for the end of the document.
  if (stat(path.c_str(), &there) != 0 || !S_ISFIFO(there.st_mode)) {
    return TextOutput::open(kFlag, path).status();
  }
  if (access(path.c_str(), W_OK) == 0) return {};
  return {Code::kSystem, "cannot write --json '" + path + "': " + std::strerror(errno)};
}

std::string Document::rest() const {
  const std::string validations =
      validations_.empty() ? "" : ",\n\"validation\": [" + validations_ + "]";
  return "\n]" + validations + ",\n" + ending_ + "}\n";
}

/// `step`: what is added to the part that stays. False: it could not be written, and the document is
/// what it was before.
bool Document::write(const std::string& step) {
  if (output_.is_stream()) {
    kept_ += step;
    return true;
  }
  const std::string next = rest();
  std::string text = step + next;
  text.resize(std::max(text.size(), shown_.size()), ' ');
  const Status written = output_.write_at(steps_end_, text);
  if (written.ok()) {
    steps_end_ += static_cast<off_t>(step.size());
    shown_ = next;
    return true;
  }
  // The disk is full, perhaps after a part; what was there before has its place.
  (void)output_.write_at(steps_end_, shown_);
  (void)output_.cut(steps_end_ + static_cast<off_t>(shown_.size()));
  if (failure_.ok()) failure_ = written;
  return false;
}

void Document::add_step(const Json& step) {
  if (!output_.is_open() || !failure_.ok()) return;
  any_steps_ = write((any_steps_ ? ",\n" : "\n") + compact(step)) || any_steps_;
}

void Document::add_validation(const Json& record) {
  if (!output_.is_open() || !failure_.ok()) return;
  validations_ += (validations_.empty() ? "\n" : ",\n") + compact(record);
  write("");
}

Status Document::end(const std::string& key, const Json& value) {
  // Where steps are missing, only an error can end it.
  if (!output_.is_open() || (!failure_.ok() && key != "error")) return failure_;
  ending_ = compact(key) + ": " + compact(value);
  if (output_.is_stream()) {
    failure_ = std::exchange(output_, {}).write(kept_ + rest());
  } else if (write("")) {
    cut();
  }
  return failure_;
}

/// What was there may have been longer.
void Document::cut() {
  if (output_.is_stream()) return;
  const Status status = output_.cut(steps_end_ + static_cast<off_t>(shown_.size()));
  if (failure_.ok()) failure_ = status;
}

}  // namespace rondo::trainer
