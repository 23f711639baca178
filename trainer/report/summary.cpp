// See summary.hpp.
#include "trainer/report/summary.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "trainer/layers/host/matmul.hpp"
#include "trainer/optim/sharding.hpp"

namespace rondo::trainer {
namespace {

using Json = nlohmann::ordered_json;

size_t parameter_count(const RunFacts& facts) {
  size_t count = 0;
  for (const DdpTensor& tensor : facts.ddp.tensors()) {
    if (tensor.adds_to < 0) count += tensor.count();
  }
  return count;
}

std::string mib(size_t bytes) {
  return fmt::format("{:.2f}", static_cast<double>(bytes) / 1048576);
}

/// What a rank sends in a step if all send equally much.
struct BytesFormula {
  double gradients, loss, norms, headers;

  double total() const { return gradients + loss + norms + headers; }
};

/// With shards a bucket is reduce-scattered and its parameters gathered, which together is an
/// all-reduce; and a norm's blocks, or whether gradients are numbers, go round too. Looked-up rows
/// count as if they travelled whole.
BytesFormula bytes_formula(const RunFacts& facts) {
  const size_t wire_bytes = size_of(facts.options.wire_type());
  const size_t back_bytes = facts.ddp.is_sharded() ? size_of(facts.options.type()) : wire_bytes;
  // Of shards parameters come back, of looked-up rows gradients.
  const size_t gradient_bytes = facts.ddp.gradient_elements() * wire_bytes +
                                facts.ddp.parameter_elements() * (back_bytes - wire_bytes) / 2;
  const bool clips = facts.options.clip > 0;
  size_t norm_bytes = 0;
  if (facts.ddp.is_sharded() && (clips || facts.options.dtype == "fp16")) {
    // A device adds up the squares of what it owns before they travel.
    norm_bytes = facts.options.on_gpu()
                     ? sizeof(double)
                     : sizeof(double) * (1 + (clips ? norm_blocks(facts.ddp) : 0));
  }
  constexpr size_t loss_bytes = 2 * sizeof(double);      // and whether to stop
  constexpr size_t header_bytes = 4 * sizeof(uint64_t);  // from every rank to every other
  const auto all_reduced = [&](size_t bytes) {
    return 2.0 * static_cast<double>((facts.ranks - 1) * bytes) / static_cast<double>(facts.ranks);
  };
  return {.gradients = all_reduced(gradient_bytes),
          .loss = all_reduced(loss_bytes),
          .norms = all_reduced(norm_bytes),
          .headers = static_cast<double>((facts.ranks - 1) * header_bytes)};
}

/// What --bucket-cap-mb auto has done; null: nothing.
Json relayout_of(const RunFacts& facts) {
  const DdpRelayout& relayout = facts.ddp.relayout();
  if (relayout.after_steps == 0) return {};
  return {{"after_step", facts.relaid_after_step()},
          {"buckets_before", relayout.buckets_before},
          {"buckets", relayout.buckets},
          {"predicted_exposed_before_ms", relayout.exposed_before_ms},
          {"predicted_exposed_ms", relayout.exposed_ms}};
}

std::string ranks_in_words(const RunFacts& facts) {
  const int threads = facts.options.compute_threads;
  return fmt::format("{} rank{}{}", facts.ranks, facts.ranks == 1 ? "" : "s",
                     threads == 1 ? "" : fmt::format(" x {} threads", threads));
}

/// A line for each bucket, or one for many.
void announce_buckets(const RunFacts& facts) {
  constexpr size_t kLines = 8;
  const std::vector<DdpBucket>& layout = facts.ddp.layout();
  for (size_t b = 0; b < layout.size() && layout.size() <= kLines; ++b) {
    const size_t tensors = layout[b].pieces.size();
    spdlog::info("bucket {}: {} MiB in {} tensor{}, {}, predicted {:.0f} us", b,
                 mib(facts.bytes_of(layout[b].count)), tensors, tensors == 1 ? "" : "s",
                 name(facts.plans[b].algorithm), facts.plans[b].predicted_us);
  }
  if (layout.size() <= kLines) return;
  double predicted_us = 0;
  for (const Plan& plan : facts.plans) predicted_us += plan.predicted_us;
  spdlog::info("{} buckets, together predicted {:.0f} us", layout.size(), predicted_us);
}

}  // namespace

void announce(const RunFacts& facts) {
  const auto s = [](uint64_t count) { return count == 1 ? "" : "s"; };
  const TrainOptions& o = facts.options;
  spdlog::info("{}: {} parameters in {}, {} {} backward", o.model, parameter_count(facts), o.dtype,
               o.zero == 1 ? "reduce-scatters" : "all-reduces", o.no_overlap ? "after" : "during");
  spdlog::info("data: {} sample{}, {} step{} per epoch, read ahead by {} thread{}",
               facts.data.samples, s(facts.data.samples), facts.steps_per_epoch,
               s(facts.steps_per_epoch), facts.sizes.readers, s(facts.sizes.readers));
  spdlog::info("data: {} bytes in {} file{}: {}", facts.data.bytes, facts.data.files,
               s(facts.data.files), facts.data.path);
  spdlog::info("global batch: {} = {} x {} rank{} x {} accumulated; {} step{}", facts.global_batch,
               o.batch, facts.ranks, s(facts.ranks), o.accum, facts.last_step, s(facts.last_step));
  spdlog::info("MiB per rank: parameters {}, gradients {}, activations {}",
               mib(facts.bytes_of(facts.ddp.parameter_elements())),
               mib(facts.bytes_of(facts.ddp.gradient_elements())),
               mib(facts.sizes.activation_bytes));
  // ZeRO-1 cuts what the optimizer keeps; everything else stays whole on every rank.
  if (o.zero == 1) {
    spdlog::info("MiB of the optimizer: {} on this rank; with --zero 0: {}",
                 mib(facts.sizes.own_optimizer_bytes), mib(facts.sizes.optimizer_bytes));
  } else {
    spdlog::info("MiB of the optimizer: {} on each rank; with --zero 1 about {}",
                 mib(facts.sizes.optimizer_bytes), mib(facts.sizes.optimizer_bytes / facts.ranks));
  }
  if (!o.on_gpu()) {
    spdlog::info("matrix products: OpenBLAS for {}, threads per rank: {}", matmul_core(),
                 o.compute_threads);
  }
  announce_buckets(facts);
  if (facts.shares_cores()) {
    spdlog::info("{} on {} cores: ranks take turns, and times include waits for a turn",
                 ranks_in_words(facts), facts.cores);
  }
}

Json config_of(const RunFacts& facts) {
  Json config = to_json(facts.options);
  config["matmul_core"] = matmul_core();
  config["reading_threads"] = facts.sizes.readers;
  config["data"] = facts.data.path;
  config["data_bytes"] = facts.data.bytes;
  config["steps"] = facts.last_step;
  return config;
}

Json summarize(const RunFacts& facts, const Report& report, const std::vector<uint64_t>& bytes_sent,
               uint64_t parameter_hash) {
  Json buckets = Json::array();
  double predicted_us = 0;
  for (size_t b = 0; b < facts.ddp.layout().size(); ++b) {
    const DdpBucket& bucket = facts.ddp.layout()[b];
    predicted_us += facts.plans[b].predicted_us;
    buckets.push_back({{"parameters", bucket.pieces.size()},
                       {"bytes", facts.bytes_of(bucket.count)},
                       {"algorithm", name(facts.plans[b].algorithm)},
                       {"predicted_us", facts.plans[b].predicted_us}});
  }
  const size_t gradient_bytes = facts.bytes_of(facts.ddp.gradient_elements());
  const BytesFormula formula = bytes_formula(facts);
  const double comm_ms = report.median_of(&StepTimes::comm_ms);
  const double exposed_ms = report.median_of(&StepTimes::exposed_comm_ms);
  // Only control steps can tell how much is hidden (accounting.hpp).
  const bool hides =
      facts.ranks > 1 && comm_ms > 0 && !facts.options.no_overlap && facts.options.strategy != "dp";
  const Json hidden = hides ? Json() : Json(0.0);
  const double samples_per_s = report.median_samples_per_s();
  Json summary = {{"ranks", facts.ranks},
                  {"cores", facts.cores},
                  {"steps", report.last() != nullptr ? report.last()->step : facts.first_step},
                  {"global_batch", facts.global_batch},
                  {"parameters", parameter_count(facts)},
                  {"gradient_bytes_per_step", gradient_bytes},
                  {"bytes_sent_per_step", bytes_sent[0]},
                  {"bytes_sent_per_step_by_rank", bytes_sent},
                  {"bytes_formula_per_step", formula.total()},
                  {"bytes_formula_parts",
                   {{"gradients", formula.gradients},
                    {"loss", formula.loss},
                    {"norms", formula.norms},
                    {"headers", formula.headers}}},
                  {"optimizer_bytes", facts.sizes.own_optimizer_bytes},
                  {"optimizer_bytes_without_zero", facts.sizes.optimizer_bytes},
                  {"predicted_comm_us", predicted_us},
                  {"comm_us", comm_ms * 1e3},
                  {"hidden_comm_ms", hidden},
                  {"exposed_comm_ms", exposed_ms},
                  {"other_wait_ms", report.median_of(&StepTimes::other_wait_ms)},
                  {"hidden_fraction", hidden},
                  {"step_ms", report.median_of(&StepTimes::step_ms)},
                  {"compute_ms", report.median_of(&StepTimes::compute_ms)},
                  {"data_wait_ms", report.median_of(&StepTimes::data_wait_ms)},
                  {"samples_per_s", samples_per_s},
                  {"gemm_operations_per_sample", facts.sizes.gemm_operations},
                  {"gemm_gflops_per_rank", facts.sizes.gemm_operations * samples_per_s /
                                               static_cast<double>(facts.ranks) / 1e9},
                  {"final_loss", report.last() != nullptr ? Json(report.last()->loss) : Json()},
                  {"warnings", facts.ddp.warnings()},
                  {"parameter_hash", fmt::format("{:016x}", parameter_hash)},
                  {"relayout", relayout_of(facts)},
                  {"buckets", std::move(buckets)}};
  const size_t tokens = facts.options.tokens_per_sample();
  if (tokens > 0) summary["tokens_per_s"] = static_cast<double>(tokens) * samples_per_s;
  if (facts.interrupted) summary["interrupted"] = true;
  for (const Death& death : facts.deaths) {
    summary["deaths"].push_back(
        {{"ranks", death.ranks}, {"after_step", death.after_step}, {"ranks_left", death.left}});
  }
  return summary;
}

}  // namespace rondo::trainer
