// A training run's state on disk, so that it can go on exactly where it was. What one rank does:
// who that is, and what the others do meanwhile, is the caller's. A folder of checkpoints is one
// run's; two that save into the same folder at once are not supported.
//
//   DIR/latest                             "step-00000012\n", replaced last
//   DIR/step-00000012/model.safetensors
//                     optimizer.safetensors
//                     state.json
//   DIR/.step-00000014.tmp.4711/           one that is being written, or was when its writer died
//
// Both tensor files carry the hash of state.json in their metadata, and a checksum of their own:
// flipped bits are found, and files of different checkpoints are not taken together.
#pragma once

#include <span>
#include <string>

#include "rondo/status.hpp"
#include "trainer/checkpoint_state.hpp"
#include "trainer/files/tensor_file.hpp"

namespace rondo::trainer {

/// Saves DIR/step-STEP, points `latest` to it, and then removes older ones, so that with this one
/// the `keep` newest of those up to STEP are left (those of later steps, of another run's history,
/// are nobody's to remove). Creates DIR. Where it fails or dies at any moment, what `latest` named
/// before can still be loaded; what it left behind is removed by the next save. keep >= 1.
Status save_checkpoint(const std::string& folder, const CheckpointState& state,
                       std::span<const TensorView> model, std::span<const TensorView> optimizer,
                       int keep = 2);

struct LoadedCheckpoint {
  std::string folder;  // DIR/step-...
  CheckpointState state;
  TensorFile model, optimizer;
};

/// The one that `latest` names, everything checked; never silently another. kDataError otherwise:
/// the message names the file and what is wrong with it, and the newest checkpoint in DIR that is
/// intact.
Result<LoadedCheckpoint> load_checkpoint(const std::string& folder);

/// Whether DIR/latest exists: there is something to load.
bool has_checkpoint(const std::string& folder);

}  // namespace rondo::trainer
