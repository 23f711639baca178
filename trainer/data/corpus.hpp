// The training data: bytes of a file, or of all text files of a folder one after the other. Refuses
// to guess: what cannot be read is an error, because ranks that silently read different data would
// train on nonsense.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rondo/status.hpp"

namespace rondo::trainer {

struct Corpus {
  std::string path;
  size_t files;
  std::vector<uint8_t> bytes;

  /// Positions at which `context` bytes and one to predict can be read.
  size_t samples(size_t context) const {
    return bytes.size() > context ? bytes.size() - context : 0;
  }
};

/// A file is taken as it is. In a folder: regular files, recursively, in bytewise order of their
/// paths, without hidden entries, symbolic links, build folders (those that hold a CMakeCache.txt,
/// and build* in this project's own folder) and binaries (a zero byte in the first 8 KiB).
/// kDataError: missing, unreadable, neither file nor folder, or fewer than `least_bytes` in all.
Result<Corpus> load_corpus(const std::string& path, size_t least_bytes);

/// The file to train on where no data are named: a fixed text that is installed, or built, with this
/// program, at a fixed place beside it. Never a folder. kDataError when it is not there.
Result<std::string> default_text();

}  // namespace rondo::trainer
