// See strategy.hpp.
#include "trainer/examples/strategy.hpp"

namespace rondo::trainer {

std::string refused_by_strategy(const TrainOptions& o) {
  if (o.strategy != "dp") return {};
  const TrainOptions plain;  // as if no flag had been given
  struct Refusal {
    bool asked_for;
    const char* flag;
    const char* why;
  };
  const Refusal refusals[] = {
      {!o.checkpoint_dir.empty(), "--checkpoint-dir", "it only serves to be compared with"},
      {o.join, "--join", "rank 0 reads all data, so no rank runs out of it before others"},
      {o.data.find("{rank}") != std::string::npos, "{rank} in --data", "rank 0 reads all data"},
      {o.accum != plain.accum, "--accum", "DataParallel has no no_sync()"},
      {o.algorithm != plain.algorithm, "--algorithm", "all goes by the star"},
      {o.bucket_cap_mb != plain.bucket_cap_mb, "--bucket-cap-mb", "it has no buckets"},
      {o.no_overlap, "--no-overlap", "it never overlaps"},
      {o.average != plain.average, "--average", "it has one loss, that of the global batch"},
      {o.compress != plain.compress, "--compress", "it has no communication hooks"},
      {o.dtype == "bf16" || o.dtype == "fp16", "--dtype bf16 or fp16", "use fp32 or fp64"},
      {o.tied_rows != plain.tied_rows, "--tied-rows", "gradients travel whole"},
      {o.sync_batch_norm, "--sync-batch-norm", "replicas know only rank 0"},
      {o.no_broadcast_buffers, "--no-broadcast-buffers", "buffers are replicated in every step"},
      {o.zero != plain.zero, "--zero", "rank 0 alone has the optimizer's state"},
      {o.control_steps != plain.control_steps, "--control-steps", "nothing of it is overlapped"},
      {o.layer_drop > 0, "--layer-drop", "it does not know which parameters were used"},
      {o.sabotage != plain.sabotage, "--break", "that breaks the ddp strategy"},
  };
  for (const Refusal& refusal : refusals) {
    if (!refusal.asked_for) continue;
    return std::string("--strategy dp does not go with ") + refusal.flag + ": " + refusal.why;
  }
  return {};
}

}  // namespace rondo::trainer
