// Training data as the loader sees it: numbered samples that fill a batch. Refuses to guess: the
// kind of data is said, not recognised, and what cannot be read, or makes no sense, is an error
// that names the path; a rank that silently read something else would train on nonsense.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "rondo/status.hpp"

namespace rondo::trainer {

/// What one sample is made of; 0: nothing of it.
struct SampleShape {
  size_t context = 0;  // tokens
  size_t targets = 0;
  size_t channels = 0, height = 0, width = 0;
  size_t classes = 0;  // tokens and targets are in [0, classes)

  size_t pixels() const { return channels * height * width; }
};

/// Where one sample goes, in the layout of Batch (model.hpp). What is null is left out.
struct Slot {
  int32_t* tokens;   // [context]
  float* images;     // [channels x height x width], in [0, 1]
  int32_t* targets;  // [targets]
};

/// Reading is thread-safe, and the same index gives the same sample always.
class Dataset {
 public:
  struct Facts {
    std::string path;  // as it was given
    uint64_t bytes;    // in all files
    size_t files;
    uint64_t samples;  // at least 1
    uint64_t hash;     // of the content, of large token files a sample: ranks compare it
    SampleShape shape;
  };

  virtual ~Dataset() = default;
  const Facts& facts() const { return facts_; }
  const SampleShape& shape() const { return facts_.shape; }
  uint64_t samples() const { return facts_.samples; }
  uint64_t hash() const { return facts_.hash; }

  /// Fills one sample. kDataError: the file changed since it was opened, can no longer be read, or has a
  /// token that is not below `classes`.
  /// REQUIRES: index < samples().
  virtual Status read(uint64_t index, const Slot& slot) const = 0;

 protected:
  explicit Dataset(Facts facts) : facts_(std::move(facts)) {}

 private:
  const Facts facts_;
};

enum class DataKind {
  kNextByte,      // bytes: `context` of them predict the next; every position is a sample
  kByteWindows,   // bytes: `context` of them, each predicts the one after it; windows lie side by
                  // side and share only a target: (bytes - 1) / context samples
  kTokenWindows,  // the same windows over llm.c's token files: see token_data.cpp
  kImages,        // pictures and labels in IDX files, as MNIST's: see image_data.cpp
};

/// Opens the data, and reads and checks them for the hash: all of them, but only a sample of a token file
/// of more than 1 MiB, whose other tokens are checked when they are read. The model needs `shape`:
/// `classes` always, `context` for bytes and tokens (at least 1); of the picture's size what is not
/// 0. kDataError, naming the path: missing, unreadable, empty, truncated, foreign, not even one
/// sample, another size than wanted, or a token or label that is not below `classes`.
Result<std::unique_ptr<Dataset>> open_dataset(DataKind kind, const std::string& path,
                                              const SampleShape& shape);

/// `path` with every "{rank}" replaced, so that each rank can have data of its own.
std::string path_for_rank(std::string path, uint64_t rank);

}  // namespace rondo::trainer
