// A training run's state on disk, so that it can go on exactly where it was. What one rank does:
// who that is, and what the others do meanwhile, is the caller's. A folder of checkpoints is one
// run's; that no second saves into it at the same time is folder_lock.hpp's.
//
//   DIR/latest                             "step-00000012\n", replaced last
//   DIR/step-00000012/model.safetensors
//                     optimizer.safetensors      or, of N ranks with shards (ZeRO-1),
//                     optimizer-0.safetensors    one for each: to optimizer-(N-1).safetensors
//                     state.json
//   DIR/.step-00000014.tmp.4711/           one that is being written, or was when its writer died
//   DIR/.lock                              held by the process that saves, which it names
//
// All tensor files carry the hash of state.json in their metadata, and a checksum of their own:
// flipped bits are found, and files of different checkpoints are not taken together.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "rondo/status.hpp"
#include "trainer/checkpoint/checkpoint_state.hpp"
#include "trainer/files/tensor_file.hpp"

namespace rondo::trainer {

/// Saves DIR/step-STEP, points `latest` to it, and then removes older ones, so that with this one
/// the `keep` newest of those up to STEP are left (those of later steps, of another run's history,
/// are nobody's to remove). Creates DIR. Where it fails or dies at any moment, what `latest` named
/// before can still be loaded, or, of the first save, nothing or the whole; what it left behind is
/// removed by the next save. keep >= 1.
Status save_checkpoint(const std::string& folder, const CheckpointState& state,
                       std::span<const TensorView> model, std::span<const TensorView> optimizer,
                       int keep = 2);

/// A checkpoint that is not there yet: in a hidden folder, which begin_checkpoint() makes and
/// commit_checkpoint() gives its name. Values, so that one rank can tell the others.
struct PendingCheckpoint {
  std::string folder;  // DIR
  uint64_t step = 0;
  std::string temporary;   // the hidden folder
  std::string state_hash;  // of state.json
};

/// save_checkpoint() in three parts, for an optimizer's state in shards. One rank begins, with the
/// number of shards; every rank writes its own; and when all have said ok, the one that began
/// commits, or else abandons. Until the commit nothing that could be loaded has changed. All ranks
/// must see the same DIR: kSystem, saying so, where the hidden folder is not there.
Result<PendingCheckpoint> begin_checkpoint(const std::string& folder, const CheckpointState& state,
                                           std::span<const TensorView> model, uint64_t shards);
Status write_shard(const PendingCheckpoint& pending, uint64_t shard,
                   std::span<const TensorView> optimizer);
Status commit_checkpoint(const PendingCheckpoint& pending, int keep = 2);
Status abandon_checkpoint(const PendingCheckpoint& pending);

struct LoadedCheckpoint {
  std::string folder;  // DIR/step-...
  CheckpointState state;
  TensorFile model;
  std::vector<TensorFile> optimizer;  // one, or of every shard
};

/// The one that `latest` names, or without `latest` the only one, everything checked; never
/// silently another. kDataError otherwise: the message names the file and what is wrong with it,
/// and the newest checkpoint in DIR that is intact.
Result<LoadedCheckpoint> load_checkpoint(const std::string& folder);

/// Whether DIR/latest or any step's folder is there: nothing of it is overwritten then.
bool has_checkpoint(const std::string& folder);

}  // namespace rondo::trainer
