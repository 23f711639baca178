// Starting ranks for `--ranks N` without a launcher.
#pragma once

#include <string>

#include "rondo/status.hpp"

namespace rondo::bench {

/// A fresh directory, only this user's, removed with all it holds at the end.
class TemporaryDirectory {
 public:
  static Result<TemporaryDirectory> create();
  TemporaryDirectory(TemporaryDirectory&& other) noexcept;
  TemporaryDirectory& operator=(TemporaryDirectory&&) = delete;
  ~TemporaryDirectory();
  const std::string& path() const { return path_; }

 private:
  explicit TemporaryDirectory(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

/// Becomes rondo-run, which lies beside this program and runs it `ranks` times with the same
/// arguments, behind `collective` where that is given. Returns only when that fails.
Status start_ranks(int ranks, char** argv, const std::string& collective = {});

}  // namespace rondo::bench
