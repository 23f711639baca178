// See summary.hpp.
#include "trainer/summary.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>

namespace rondo::trainer {
namespace {

using Json = nlohmann::ordered_json;

size_t parameter_count(const RunFacts& facts) {
  size_t count = 0;
  for (const Parameter& parameter : facts.parameters) count += parameter.count;
  return count;
}

}  // namespace

void announce(const RunFacts& facts) {
  const Options& o = facts.options;
  spdlog::info("{}: {} parameters in {}, all-reduces {} backward", o.model, parameter_count(facts),
               o.dtype, o.no_overlap ? "after" : "during");
  spdlog::info("data: {} bytes in {} files of {}, {} steps per epoch", facts.corpus.bytes.size(),
               facts.corpus.files, facts.corpus.path, facts.order.steps_per_epoch());
  spdlog::info("global batch: {} = {} per rank x {} ranks x {} accumulated; {} steps",
               facts.order.global_batch, o.batch, facts.ranks, o.accum, facts.last_step);
  for (size_t b = 0; b < facts.layout.buckets.size(); ++b) {
    const Bucket& bucket = facts.layout.buckets[b];
    std::string members;
    for (int p = 0; p < bucket.parameter_count; ++p) {
      members += " " + facts.parameters[static_cast<size_t>(bucket.first_parameter + p)].name;
    }
    spdlog::info("bucket {}: {} bytes, {}, predicted {:.0f} us:{}", b, facts.bytes_of(bucket),
                 name(facts.plans[b].algorithm), facts.plans[b].predicted_us, members);
  }
}

Json config_of(const RunFacts& facts) {
  const Options& o = facts.options;
  return {{"model", o.model},
          {"layers", o.layers},
          {"width", o.width},
          {"data", facts.corpus.path},
          {"data_bytes", facts.corpus.bytes.size()},
          {"steps", facts.last_step},
          {"batch", o.batch},
          {"accum", o.accum},
          {"seed", o.seed},
          {"optimizer", o.optimizer},
          {"lr", o.lr},
          {"momentum", o.momentum},
          {"dtype", o.dtype},
          {"threads", o.threads},
          {"bucket_cap_mb", o.bucket_cap_mb},
          {"overlap", !o.no_overlap},
          {"pace", o.pace}};
}

Json summarize(const RunFacts& facts, const Report& report, const std::vector<uint64_t>& bytes_sent,
               uint64_t parameter_hash) {
  Json buckets = Json::array();
  size_t gradient_bytes = 0;
  double predicted_us = 0;
  for (size_t b = 0; b < facts.layout.buckets.size(); ++b) {
    const Bucket& bucket = facts.layout.buckets[b];
    const Plan& plan = facts.plans[b];
    gradient_bytes += facts.bytes_of(bucket);
    predicted_us += plan.predicted_us;
    buckets.push_back({{"parameters", bucket.parameter_count},
                       {"bytes", facts.bytes_of(bucket)},
                       {"algorithm", name(plan.algorithm)},
                       {"predicted_us", plan.predicted_us}});
  }
  const double comm_ms = report.median_of(&StepRecord::comm_ms);
  const double exposed_ms = report.median_of(&StepRecord::exposed_comm_ms);
  const double hidden_ms = std::max(0.0, comm_ms - exposed_ms);
  const size_t reduced_bytes = gradient_bytes + sizeof(double);  // the loss travels too
  return {{"ranks", facts.ranks},
          {"steps", facts.last_step},
          {"global_batch", facts.order.global_batch},
          {"parameters", parameter_count(facts)},
          {"gradient_bytes_per_step", gradient_bytes},
          {"bytes_sent_per_step", bytes_sent[0]},
          {"bytes_sent_per_step_by_rank", bytes_sent},
          {"bytes_formula_per_step", 2.0 * static_cast<double>((facts.ranks - 1) * reduced_bytes) /
                                         static_cast<double>(facts.ranks)},
          {"predicted_comm_us", predicted_us},
          {"comm_us", comm_ms * 1e3},
          {"hidden_comm_ms", hidden_ms},
          {"exposed_comm_ms", exposed_ms},
          {"overlap_fraction", comm_ms > 0 ? hidden_ms / comm_ms : 0.0},
          {"step_ms", report.median_of(&StepRecord::step_ms)},
          {"compute_ms", report.median_of(&StepRecord::compute_ms)},
          {"data_wait_ms", report.median_of(&StepRecord::data_wait_ms)},
          {"samples_per_s", report.median_of(&StepRecord::samples_per_s)},
          {"final_loss", report.last().loss},
          {"parameter_hash", fmt::format("{:016x}", parameter_hash)},
          {"buckets", std::move(buckets)}};
}

}  // namespace rondo::trainer
