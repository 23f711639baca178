// The optimizer's state in tensor files: whole tensors, or the pieces that ranks with shards
// (ZeRO-1) own, each rank's in a file of its own. Read back by whoever owns what now: any number of
// files for any number of ranks. Knows no folders and talks to no other rank.
//
// A whole tensor is named ARRAY.TENSOR and has the tensor's shape; a piece is ARRAY.TENSOR@FIRST,
// one dimension, beginning at the tensor's element FIRST.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "rondo/ddp.hpp"
#include "trainer/files/tensor_file.hpp"

namespace rondo::trainer {

/// Where one of the optimizer's arrays lies in memory, numbered as the flat parameters are.
struct StateStorage {
  std::string name;
  const void* data;
};

/// What this rank writes: whole tensors without shards, else pieces of its own ranges. Borrows.
std::vector<TensorView> state_views(const DistributedDataParallel& ddp, DataType type,
                                    std::span<const StateStorage> arrays);

/// The state that some files hold together.
class StateReader {
 public:
  /// Borrows the files. kDataError, naming file and tensor: something is missing, there twice, or
  /// of another type or shape than this model's.
  static Result<StateReader> open(const DistributedDataParallel& ddp, DataType type,
                                  std::span<const std::string> arrays,
                                  std::span<const TensorFile> files);

  /// Elements [begin, begin + count) of the flat array `array`, an index into `arrays`; padding is
  /// zeros.
  void read(size_t array, size_t begin, size_t count, void* to) const;

 private:
  struct FlatPiece {
    size_t begin, count;  // in the flat array
    const std::byte* data;
  };
  using Pieces = std::vector<FlatPiece>;  // ascending

  size_t element_bytes_ = 0;
  std::vector<Pieces> arrays_;
};

}  // namespace rondo::trainer
