// Starting ranks for `--ranks N` without a launcher.
#pragma once

#include <string>

#include "rondo/status.hpp"

namespace rondo::bench {

/// A new directory, accessible by this user only; removed with its contents at the end.
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

/// Replaces this process by rondo-run from this program's folder, which runs this program `ranks`
/// times with the same arguments, after `collective` if given. Returns only on failure.
Status start_ranks(int ranks, char** argv, const std::string& collective = {});

}  // namespace rondo::bench
