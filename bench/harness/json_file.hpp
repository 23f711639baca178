// The file of --json: a valid document at every moment of a run, however that ends.
#pragma once

#include <chrono>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace rondo::bench {

/// Replaces the file as a whole. One thread.
class JsonFile {
 public:
  /// `path` empty: none is wanted, and all calls do nothing.
  explicit JsonFile(std::string path) : path_(std::move(path)) {}

  /// Whether it can be written; else this has been said on stderr. Leaves what is in it.
  bool open();
  /// Whether an unfinished document is due, about once a second; never for what is no plain file.
  bool wants_interim() const;
  /// False: failed, which has been said on stderr.
  bool write(const nlohmann::json& document);

 private:
  std::string path_;
  bool plain_ = false;  // a file that can be replaced, unlike a pipe
  std::chrono::steady_clock::time_point written_{};
};

}  // namespace rondo::bench
