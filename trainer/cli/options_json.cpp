// See options.hpp.
#include <nlohmann/json.hpp>
#include <utility>

#include "trainer/cli/options.hpp"

namespace rondo::trainer {

nlohmann::ordered_json to_json(const TrainOptions& o) {
  nlohmann::ordered_json cap = o.bucket_cap_mb;
  if (o.auto_buckets()) cap = "auto";
  return {{"model", o.model},
          {"layers", o.layers},
          {"width", o.width},
          {"heads", o.heads},
          {"context", o.context},
          {"vocabulary", o.vocabulary},
          {"classes", o.classes},
          {"dropout", o.dropout},
          {"layer_drop", o.layer_drop},
          {"split_tied", !o.no_split_tied},
          {"sync_batch_norm", o.sync_batch_norm},
          {"weights", o.weights},
          {"data", o.data},
          {"data_format", o.data_format},
          {"validation", o.validation},
          {"workers", o.workers},
          {"drop_last", o.drop_last},
          {"sampler_tail", o.sampler_tail},
          {"steps", o.steps},
          {"epochs", o.epochs},
          {"batch", o.batch},
          {"accum", o.accum},
          {"seed", o.seed},
          {"optimizer", o.optimizer},
          {"lr", o.lr},
          {"momentum", o.momentum},
          {"beta1", o.beta1},
          {"beta2", o.beta2},
          {"weight_decay", o.weight_decay},
          {"clip", o.clip},
          {"lr_scale", o.lr_scale},
          {"base_batch", o.base_batch},
          {"lr_decay", o.lr_decay},
          {"min_lr", o.min_lr},
          {"warmup", o.warmup},
          {"dtype", o.dtype},
          {"tf32", o.tf32},
          {"device", o.device},
          {"strategy", o.strategy},
          {"break", o.sabotage},
          {"algorithm", o.algorithm},
          {"compute_threads", o.compute_threads},
          {"bucket_cap_mb", std::move(cap)},
          {"overlap", !o.no_overlap},
          {"cuda_graph", !o.no_cuda_graph},
          {"average_over", o.average_over},
          {"join", o.join},
          {"broadcast_buffers", !o.no_broadcast_buffers},
          {"compress", o.compress},
          {"tied_rows", o.tied_rows},
          {"zero", o.zero},
          {"reproducible", o.reproducible},
          {"pace", o.pace},
          {"control_steps", o.control_steps ? nlohmann::ordered_json(*o.control_steps) : "auto"},
          {"elastic", o.elastic}};
}

}  // namespace rondo::trainer
