// {"question": "replay", tensors: [{name, shape, adds_to?, scale?}], gradients: [{tensor, elements, ready_ms}], backward_ms,
// update_ms?, element_bytes, wire_bytes?, ranks, cores?, bytes_per_second, latency_us, scale?, mapped?, cap_mb | auto: true}: a
// measured training step with other buckets, and over other links, by the functions with which rondo-train suggests a
// bucket cap and lays buckets out. Chapter 4 draws it.
//
// mapped: ranks access each other's gradients in place, as over --pace. wire_bytes: of a gradient as it travels, after the communication hook. scale: measured over predicted, of this run; a
// tensor that adds to another may have its own, because of it only some rows travel.
#include <cmath>
#include <map>

#include "comm/tuner/choose.hpp"
#include "explain/answers/answers.hpp"
#include "trainer/ddp/bucket_plan.hpp"
#include "trainer/ddp/unit_ends.hpp"
#include "trainer/report/prediction.hpp"

namespace rondo::explain {
namespace {

using trainer::CapPrediction;
using trainer::StepModel;

constexpr size_t kMostTensors = 4096, kMostGradients = 8192;
constexpr double kMostElements = 1 << 30;
constexpr size_t kPiecesListed = 64;

/// The links of the replayed step, and what an all-reduce over them costs.
struct PacedLinks {
  int ranks;
  double wire_bytes, scale;
  std::map<size_t, double> scales{};  // of tensors that have their own
  tuner::LinkProfile links;
  tuner::Available available{};

  struct Cost {
    Algorithm algorithm;
    double ms;
  };
  Cost cost(size_t elements) const {
    const auto bytes =
        static_cast<uint64_t>(std::llround(wire_bytes * static_cast<double>(elements)));
    const Algorithm algorithm =
        tuner::choose(Collective::kAllReduce, ranks, bytes, available, true, links);
    const tuner::Price price = tuner::price({.collective = Collective::kAllReduce,
                                             .algorithm = algorithm,
                                             .ranks = ranks,
                                             .bytes = bytes,
                                             .mapped = available.references},
                                            links);
    return {.algorithm = algorithm, .ms = scale * price.total_us() / 1e3};
  }
  Cost cost(const DdpBucket& bucket) const {
    Cost found = cost(bucket.count);
    const auto own = scales.find(bucket.pieces.front().tensor);
    if (own != scales.end()) found.ms *= own->second / scale;
    return found;
  }
};

Result<PacedLinks> read_wire(const PageRequest& request, double element_bytes) {
  PacedLinks wire{.ranks = static_cast<int>(RONDO_TRY(request.whole("ranks", 2, 4096))),
                  .wire_bytes = RONDO_TRY(request.number("wire_bytes", 0.25, 8, element_bytes)),
                  .scale = RONDO_TRY(request.number("scale", 1e-3, 1e3, 1.0)),
                  .links = {}};
  const auto cores = static_cast<int>(RONDO_TRY(request.whole("cores", 1, 4096, wire.ranks)));
  const double latency_us = RONDO_TRY(request.number("latency_us", 0, 1e6));
  const double speed = RONDO_TRY(request.number("bytes_per_second", 1e3, 1e15));
  wire.links =
      tuner::profile_of({.ranks = wire.ranks,
                         .cores = cores,
                         .wire = transport::PaceOptions{.bytes_per_second = speed,
                                                        .latency_seconds = latency_us / 1e6}},
                        tuner::shared_memory_profile());
  wire.available.type = DataType::kFloat32;
  wire.available.references = wire.available.signals = RONDO_TRY(request.truth("mapped", false));
  return wire;
}

Result<std::vector<size_t>> read_shape(const PageRequest& tensor, const Json& extents) {
  std::vector<size_t> shape;
  double elements = 1;
  for (const Json& extent : extents) {
    if (!extent.is_number_unsigned() || extent.get<uint64_t>() < 1 ||
        extent.get<uint64_t>() > static_cast<uint64_t>(kMostElements)) {
      return tensor.refuse("shape", "holds something that is no extent of a tensor");
    }
    shape.push_back(extent.get<uint64_t>());
    elements *= static_cast<double>(shape.back());
  }
  if (shape.empty()) return tensor.refuse("shape", "is empty");
  if (elements > kMostElements) return tensor.refuse("shape", "has more than 2^30 elements");
  return shape;
}

Result<std::vector<DdpTensor>> read_tensors(const PageRequest& request) {
  const Json* const list = RONDO_TRY(request.list("tensors", kMostTensors));
  if (list == nullptr || list->empty()) return request.refuse("tensors", "are missing");
  std::vector<DdpTensor> tensors;
  double elements = 0;
  for (size_t t = 0; t < list->size(); ++t) {
    const PageRequest one = RONDO_TRY(request.item("tensors", t));
    const Json* const extents = RONDO_TRY(one.list("shape", 8));
    if (extents == nullptr) return one.refuse("shape", "is missing");
    DdpTensor tensor;
    tensor.name = RONDO_TRY(one.text("name", 256));
    tensor.shape = RONDO_TRY(read_shape(one, *extents));
    tensor.adds_to = static_cast<int>(RONDO_TRY(one.whole("adds_to", -1, kMostTensors, -1)));
    const bool after_adding = !tensors.empty() && tensors.back().adds_to >= 0;
    const bool adds = tensor.adds_to >= 0;
    if (after_adding && !adds) return one.refuse("adds_to", "is missing: such tensors come last");
    if (adds && (static_cast<size_t>(tensor.adds_to) >= t ||
                 tensors[static_cast<size_t>(tensor.adds_to)].adds_to >= 0)) {
      return one.refuse("adds_to", "names no tensor before it that is a parameter");
    }
    elements += static_cast<double>(tensor.count());
    tensors.push_back(std::move(tensor));
  }
  if (elements > kMostElements) {
    return request.refuse("tensors", "have more than 2^30 elements together");
  }
  return tensors;
}

Result<std::vector<trainer::GradientTime>> read_gradients(const PageRequest& request,
                                                          const std::vector<DdpTensor>& tensors) {
  const Json* const list = RONDO_TRY(request.list("gradients", kMostGradients));
  if (list == nullptr) return request.refuse("gradients", "are missing");
  std::map<std::string, size_t> numbers;
  for (size_t t = 0; t < tensors.size(); ++t) numbers.emplace(tensors[t].name, t);
  std::vector<trainer::GradientTime> times;
  for (size_t g = 0; g < list->size(); ++g) {
    const PageRequest one = RONDO_TRY(request.item("gradients", g));
    const auto tensor = numbers.find(RONDO_TRY(one.text("tensor", 256)));
    if (tensor == numbers.end()) return one.refuse("tensor", "is not one of the tensors");
    times.push_back(
        {.tensor = tensor->second,
         .count = static_cast<size_t>(RONDO_TRY(one.whole("elements", 0, int64_t{1} << 30))),
         .ms = RONDO_TRY(one.number("ready_ms", 0, 1e9))});
  }
  return times;
}

/// Linear between prices, as kDdpAutoCap has it: the search asks for some ten thousand sizes.
ddp::CostCurve cost_curve(const PacedLinks& wire, const ddp::BucketLayout& layout) {
  std::vector<ddp::CostCurve::PricedSize> prices;
  for (size_t elements = 16; prices.empty() || prices.back().elements < layout.gradient_elements;
       elements += (elements + 1) / 2) {
    prices.push_back({.elements = elements, .predicted_ns = 1e6 * wire.cost(elements).ms});
  }
  return ddp::CostCurve(std::move(prices));
}

/// Where kDdpAutoCap would cut this step, which was measured with `present`.
std::vector<DdpBucket> automatic(const StepModel& model, const PacedLinks& wire,
                                 const ddp::BucketLayout& present) {
  const auto reported = [&](size_t tensor) {
    std::vector<size_t> parts;
    for (const trainer::GradientTime& time : model.ready) {
      if (time.tensor == tensor && time.count < model.tensors[tensor].count()) {
        parts.push_back(time.count);
      }
    }
    return parts;
  };
  const std::vector<size_t> ends = ddp::unit_ends({.tensors = model.tensors,
                                                   .layout = present,
                                                   .element_bytes = model.element_bytes,
                                                   .reported_parts = reported});
  const auto units = ddp::layout_with_ends(model.tensors, model.element_bytes, ends);
  if (!units) return present.buckets;
  const auto ns = [](double ms) { return static_cast<int64_t>(std::llround(1e6 * ms)); };
  ddp::BucketModel buckets{
      .units = {}, .backward_ns = ns(model.backward_ms), .cost_ns = cost_curve(wire, present)};
  const auto times = trainer::time_buckets(model, units->buckets);
  for (size_t u = 0; u < ends.size(); ++u) {
    const bool adds = model.tensors[units->buckets[u].pieces.front().tensor].adds_to >= 0;
    buckets.units.push_back({.end = ends[u],
                             .ready_ns = ns(times[u].ready_ms),
                             .update_ns = ns(times[u].update_ms),
                             .alone_ns = adds ? ns(times[u].cost_ms) : -1});
  }
  const auto chosen = ddp::choose_ends(buckets, ddp::ends_of(present));
  const auto layout = ddp::layout_with_ends(model.tensors, model.element_bytes, chosen.ends);
  return layout ? layout->buckets : present.buckets;
}

Json pieces_json(const StepModel& model, const DdpBucket& bucket) {
  Json pieces = Json::array();
  for (const DdpBucket::Piece& piece : bucket.pieces) {
    if (pieces.size() == kPiecesListed) break;
    pieces.push_back({{"tensor", model.tensors[piece.tensor].name},
                      {"elements", piece.end - piece.begin},
                      {"of", model.tensors[piece.tensor].count()}});
  }
  return pieces;
}

/// Each bucket's way; sums what is exposed.
Json buckets_json(const StepModel& model, const PacedLinks& wire,
                  const std::vector<DdpBucket>& layout) {
  const auto times = trainer::time_buckets(model, layout);
  const auto replayed = trainer::replay(times, model.backward_ms);
  Json buckets = Json::array();
  for (size_t b = 0; b < layout.size(); ++b) {
    const PacedLinks::Cost cost = wire.cost(layout[b]);
    buckets.push_back({{"bytes", wire.wire_bytes * static_cast<double>(layout[b].count)},
                       {"tensors", layout[b].pieces.size()},
                       {"pieces", pieces_json(model, layout[b])},
                       {"algorithm", name(cost.algorithm)},
                       {"ready_ms", times[b].ready_ms},
                       {"launch_ms", replayed[b].launch_ms},
                       {"finish_ms", replayed[b].finish_ms},
                       {"cost_ms", times[b].cost_ms},
                       {"update_ms", times[b].update_ms},
                       {"exposed_ms", replayed[b].exposed_ms}});
  }
  return buckets;
}

Json cap_json(const CapPrediction& p) {
  return {{"cap_mb", p.cap_mb}, {"buckets", p.buckets}, {"exposed_ms", p.exposed_ms}};
}

}  // namespace

Result<Json> replay(const PageRequest& request) {
  const auto element_bytes =
      static_cast<size_t>(RONDO_TRY(request.whole("element_bytes", 1, 8, 4)));
  PacedLinks wire = RONDO_TRY(read_wire(request, static_cast<double>(element_bytes)));
  // One after the other: what returns amid an initialiser leaks the members that it has made.
  auto tensors = RONDO_TRY(read_tensors(request));
  const double backward_ms = RONDO_TRY(request.number("backward_ms", 1e-6, 1e9));
  const double update_ms = RONDO_TRY(request.number("update_ms", 0, 1e9, 0.0));
  StepModel model{.tensors = std::move(tensors),
                  .element_bytes = element_bytes,
                  .ready = {},
                  .backward_ms = backward_ms,
                  .cost_ms = [&](const DdpBucket& bucket) { return wire.cost(bucket).ms; },
                  .update_ms = update_ms};
  if (64 % element_bytes != 0) return request.refuse("element_bytes", "is no power of two");
  for (size_t t = 0; t < model.tensors.size(); ++t) {
    const PageRequest tensor = RONDO_TRY(request.item("tensors", t));
    if (model.tensors[t].adds_to < 0 || !tensor.has("scale")) continue;
    wire.scales[t] = RONDO_TRY(tensor.number("scale", 1e-4, 1e4));
  }
  model.ready = RONDO_TRY(read_gradients(request, model.tensors));
  const bool is_auto = RONDO_TRY(request.truth("auto", false));
  const double cap_mb = RONDO_TRY(request.number("cap_mb", 0, 4096, 25.0));
  const auto bytes = static_cast<size_t>(std::ceil(cap_mb * ddp::kBytesPerMb));
  if (bytes > 0 && bytes < size_t{16} << 10) {
    return request.refuse("cap_mb", "is less than 16 KiB, and not 0");
  }
  const auto present = ddp::make_layout(model.tensors, element_bytes, {.bytes = bytes});
  const std::vector<DdpBucket> layout = is_auto ? automatic(model, wire, present) : present.buckets;
  const std::vector<CapPrediction> caps = trainer::predict_caps(model);
  Json predictions = Json::array();
  for (const CapPrediction& p : caps) predictions.push_back(cap_json(p));
  Json answer = cap_json(trainer::predict_buckets(model, layout, cap_mb));
  answer["auto"] = is_auto;
  answer["backward_ms"] = model.backward_ms;
  answer["layout"] = buckets_json(model, wire, layout);
  answer["caps"] = std::move(predictions);
  answer["suggested"] = cap_json(trainer::suggested(caps, model.backward_ms));
  return answer;
}

}  // namespace rondo::explain
