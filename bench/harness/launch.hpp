// Starting ranks as processes of this same program, for `--ranks N` without a launcher. It restarts
// nothing and prefixes nothing: that is rondo-run's work.
#pragma once

#include <optional>
#include <string>

#include "rondo/status.hpp"

namespace rondo::bench {

/// Rank and world size as rondo-run or torchrun set them; nothing when neither variable is there.
struct Place {
  int rank, size, local_rank, local_size;
};
Result<std::optional<Place>> place_from_environment();

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

/// Runs this program `ranks` times with the same arguments, RANK etc. and RONDO_RENDEZVOUS set;
/// only rank 0's stdout is kept. When one fails, the others are given ten seconds to notice and are
/// then killed. Returns the first failure's exit code, or 0. None of them outlives this process.
Result<int> start_ranks(int ranks, char** argv);

}  // namespace rondo::bench
