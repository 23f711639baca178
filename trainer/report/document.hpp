// The file of --json. At every moment it is a whole document: a program that is stopped from
// outside, as a rank whose neighbour has failed often is, leaves the steps that it has made and the
// error that it was stopped. Knows no fields of a step.
#pragma once

#include <sys/types.h>

#include <nlohmann/json.hpp>
#include <string>

#include "rondo/status.hpp"

namespace rondo::trainer {

/// One thread. Without a file, as after default construction, every call does nothing.
class Document {
 public:
  using Json = nlohmann::ordered_json;

  Document() = default;
  /// Replaces what is at `path` by a run of no steps and this error, which stands until end(). No
  /// file for an empty path.
  static Result<Document> open(const std::string& path, const Json& config,
                               const std::string& error);
  /// Whether there is a file that is more than the document of a run without a step.
  static bool holds_steps(const std::string& path);
  /// Whether that file can be written.
  static Status check(const std::string& path);
  ~Document();
  Document(Document&& other) noexcept;
  Document& operator=(Document&& other) noexcept;

  void add_step(const Json& step);
  void add_validation(const Json& record);
  /// Replaces the error by `key` and `value`. The first failure of any call.
  Status end(const std::string& key, const Json& value);

 private:
  void write(const std::string& step);
  void cut();
  std::string rest() const;

  std::string path_;
  int fd_ = -1;
  off_t covers_ = 0;     // bytes of another document that the first write() has to cover
  off_t steps_end_ = 0;  // where the next step goes
  bool any_steps_ = false;
  std::string validations_;  // of the rest: separated by commas
  std::string ending_;       // its last entry
  Status failure_;
};

}  // namespace rondo::trainer
