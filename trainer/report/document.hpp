// The file of --json. At every moment it is a whole document: a program that is stopped from
// outside, as a rank whose neighbour has failed often is, leaves the steps that it has made and the
// error that it was stopped; one whose disk is full, those that it could write. What is no file, as
// a pipe, gets the document at the end. Knows no fields of a step.
#pragma once

#include <sys/types.h>

#include <nlohmann/json.hpp>
#include <string>

#include "rondo/status.hpp"
#include "trainer/files/text_output.hpp"

namespace rondo::trainer {

/// One thread. Without a file, as after default construction, every call does nothing.
class Document {
 public:
  using Json = nlohmann::ordered_json;

  Document() = default;
  /// Replaces what is at `path` by a run of no steps and this error, which stands until end(). A
  /// stream is opened, and written by end(). No file for an empty path.
  static Result<Document> open(const std::string& path, const Json& config,
                               const std::string& error);
  /// Whether what is there is more than the document of a run without a step, or no file.
  static bool must_stay(const std::string& path);
  /// Whether that can be written; whether a pipe has a reader only open() finds out.
  static Status check(const std::string& path);

  /// Whether it is a regular file, which gets every step at once.
  bool is_file() const { return output_.is_open() && !output_.is_stream(); }
  void add_step(const Json& step);
  void add_validation(const Json& record);
  /// The first failure of any call.
  const Status& failure() const { return failure_; }
  /// Replaces the error by `key` and `value`. Returns failure(), after which only an "error" can end it.
  Status end(const std::string& key, const Json& value);

 private:
  bool write(const std::string& step);
  void cut();
  std::string rest() const;

  TextOutput output_;
  std::string kept_;     // of a stream: all before the rest
  off_t steps_end_ = 0;  // of a file: where the next step goes
  std::string shown_;    // what is there, which the next write() covers
  bool any_steps_ = false;
  std::string validations_;  // of the rest: separated by commas
  std::string ending_;       // its last entry
  Status failure_;
};

}  // namespace rondo::trainer
