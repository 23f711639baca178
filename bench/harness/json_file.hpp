// The file of --json: a valid document at every moment of a run, however the run ends.
#pragma once

#include <chrono>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "rondo/status.hpp"

namespace rondo::bench {

/// Replaces the file as a whole. Used by one thread.
class JsonFile {
 public:
  /// An empty `path` means no file: all calls do nothing.
  explicit JsonFile(std::string path) : path_(std::move(path)) {}

  /// ok if the file can be written. Keeps its contents, which only a document with results replaces, if
  /// they are more than a document without.
  Status open();
  /// Whether to write an unfinished document now: about once a second, and only to a plain file.
  bool wants_interim() const;
  /// After a failure, as on a full disk, a plain file is as before, if its folder can be written.
  Status write(const nlohmann::json& document);

 private:
  std::string path_;
  bool keeps_ = false;  // a document without results is not written
  bool plain_ = false;  // a file that can be replaced, unlike a pipe
  std::chrono::steady_clock::time_point written_{};
};

}  // namespace rondo::bench
