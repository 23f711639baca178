// See timeline.hpp.
#include "trainer/report/timeline.hpp"

namespace rondo::trainer {
namespace {

enum TraceLane : size_t { kComputeLane, kHeaderLane, kLossLane, kFirstBucketLane };

// As Timeline::Activity counts. The first wait is for headers and the loss as well as for gradients.
const std::string kNames[] = {"data", "forward", "wait for communication", "optimizer",
                              "wait for parameters"};
const std::string kQueued = "queued", kWaits = "ready, waits for its turn";
const std::string kHeaders = "all-gather of headers", kLoss = "all-reduce of the loss";

}  // namespace

Result<Timeline> Timeline::open(const std::string& path, int rank,
                                const std::vector<std::string>& layers,
                                const std::vector<std::string>& collectives) {
  Timeline timeline;
  timeline.on_ = !path.empty();
  timeline.layers_ = std::make_unique<std::vector<std::string>>();
  timeline.buckets_ = std::make_unique<std::deque<std::string>>();
  timeline.gathers_ = std::make_unique<std::deque<std::string>>();
  timeline.updates_ = std::make_unique<std::deque<std::string>>();
  std::vector<std::string> lanes = {"compute", "headers", kLoss};
  for (const std::string& layer : layers) {  // as Direction counts
    timeline.layers_->push_back("forward " + layer);
    timeline.layers_->push_back("backward " + layer);
  }
  timeline.trace_ = RONDO_TRY(Trace::open(path, rank, std::move(lanes)));
  timeline.add_buckets(collectives);
  return timeline;
}

void Timeline::add_buckets(const std::vector<std::string>& collectives) {
  if (!buckets_) return;
  for (size_t b = buckets_->size(); b < collectives.size(); ++b) {
    const std::string name = "bucket " + std::to_string(b);
    buckets_->push_back(collectives[b] + " " + name);
    gathers_->push_back("all-gather " + name);
    updates_->push_back("optimizer " + name);
    trace_.add_lane(name);
  }
}

void Timeline::computed(Activity kind, int64_t begin_ns, int64_t end_ns) {
  trace_.span(kComputeLane, kNames[static_cast<size_t>(kind)], step_, begin_ns, end_ns);
}

void Timeline::updated(size_t bucket, int64_t begin_ns, int64_t end_ns) {
  trace_.span(kComputeLane, (*updates_)[bucket], step_, begin_ns, end_ns);
}

void Timeline::layer_begins(Direction direction, int layer, int64_t ns) {
  if (!on_) return;
  if (layer_ != nullptr) trace_.span(kComputeLane, *layer_, step_, layer_begin_ns_, ns);
  layer_ = layer < 0 ? nullptr
                     : &(*layers_)[2 * static_cast<size_t>(layer) + static_cast<size_t>(direction)];
  layer_begin_ns_ = ns;
}

void Timeline::add(size_t lane, const std::string& name, uint64_t step, const Work::Times& times) {
  trace_.span(lane, kQueued, step, times.issued_ns, times.started_ns);
  trace_.span(lane, name, step, times.started_ns, times.ended_ns);
}

void Timeline::exchanged_headers(const Work::Times& headers) {
  add(kHeaderLane, kHeaders, step_, headers);
}

void Timeline::exchanged_loss(const Work::Times& loss) { add(kLossLane, kLoss, step_, loss); }

void Timeline::communicated(const std::vector<DdpBucketTimes>& buckets) {
  for (size_t b = 0; b < buckets.size(); ++b) {
    trace_.span(kFirstBucketLane + b, kWaits, step_, buckets[b].ready_ns,
                buckets[b].work.issued_ns);
    add(kFirstBucketLane + b, (*buckets_)[b], step_, buckets[b].work);
  }
}

void Timeline::gathered(uint64_t step, int64_t wait_begin_ns, int64_t wait_end_ns,
                        const std::vector<Work::Times>& buckets) {
  trace_.span(kComputeLane, kNames[static_cast<size_t>(Activity::kParameterWait)], step,
              wait_begin_ns, wait_end_ns);
  for (size_t b = 0; b < buckets.size(); ++b) {
    if (buckets[b].ended_ns == 0) continue;  // holds no parameters
    add(kFirstBucketLane + b, (*gathers_)[b], step, buckets[b]);
  }
}

}  // namespace rondo::trainer
