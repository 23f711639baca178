// See reducer.hpp. The order of a step's operations is the same on every rank: headers, counts of
// touched rows, buffers, buckets in order, the map of used tensors.
#include "trainer/ddp/reducer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "trainer/base/clock.hpp"
#include "trainer/ddp/host_lane.hpp"
#include "trainer/ddp/stream_lane.hpp"

namespace rondo::ddp {
namespace {

bool any_may_skip(const std::vector<DdpTensor>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const auto& t) { return t.may_skip; });
}

std::unique_ptr<Lane> make_lane(const Routes& routes, const GradientStorage& gradients,
                                const DdpOptions& options) {
  if (routes.gpu != nullptr) return std::make_unique<StreamLane>(routes, gradients, options);
  return std::make_unique<HostLane>(routes.data, gradients, options);
}

}  // namespace

Reducer::Reducer(const Routes& routes, const GradientStorage& gradients, BufferMemory* buffers,
                 const DdpOptions& options, Headers& headers)
    : routes_(routes),
      gradients_(gradients),
      buffers_(buffers),
      options_(options),
      headers_(headers),
      any_may_skip_(any_may_skip(gradients.tensors)),
      order_(gradients.tensors, gradients.layout, options.overlap && !any_may_skip_),
      lane_(make_lane(routes, gradients, options)),
      used_(gradients.tensors.size()) {}

Reducer::~Reducer() {
  if (!under_way()) return;
  routes_.abort("rank " + std::to_string(routes_.host.rank()) + " gave up in the middle of a step");
  settle();
}

bool Reducer::under_way() const {
  return begun_ && !(headers_.ended_empty() && lane_->started() == 0);
}

void Reducer::begin() {
  begun_ = true;
  counts_started_ = buffers_travel_ = false;
  failure_ = {};
  if (notes_ != nullptr) notes_->begin();
  order_.begin();
  lane_->begin();
  std::fill(used_.begin(), used_.end(), uint8_t{0});
  // Zeros first: backward may skip these tensors, and what the last step left must not travel.
  for (size_t t = 0; t < gradients_.tensors.size(); ++t) {
    if (!gradients_.tensors[t].may_skip) continue;
    clear(routes_.gpu, gradients_.tensors[t].gradient,
          gradients_.tensors[t].count() * size_of(*gradients_.tensors[t].type));
  }
}

/// Ends the step: nothing more travels from this rank, so that no other can finish it, and those
/// that wait return this error.
void Reducer::refuse(const std::string& what, Code code) {
  if (!failure_.ok()) return;
  failure_ = Status(code, fmt::format("rank {} {}", routes_.host.rank(), what));
  routes_.abort(failure_.message());
}

/// Refuses the number of a tensor that does not exist.
bool Reducer::exists(size_t tensor, const char* what) {
  if (tensor < used_.size()) return true;
  refuse(fmt::format("{} of tensor {}, but there are {}", what, tensor, used_.size()));
  return false;
}

void Reducer::touches_rows(size_t tensor, std::span<const int32_t> rows) try {
  if (!exists(tensor, "touches rows")) return;
  const std::string& name = gradients_.tensors[tensor].name;
  SecondGradient* const second = lane_->second_gradient(tensor);
  if (second == nullptr) {
    return refuse(fmt::format("touches rows of '{}', which adds to no other tensor", name));
  }
  if (counts_started_) {
    return refuse(
        fmt::format("touches rows of '{}' after the first gradient is ready: call "
                    "touches_rows() before backward",
                    name));
  }
  const auto count = static_cast<int64_t>(gradients_.tensors[tensor].shape[0]);
  const auto outside = std::find_if(rows.begin(), rows.end(),
                                    [count](int32_t row) { return row < 0 || row >= count; });
  if (outside != rows.end()) {
    return refuse(
        fmt::format("touches row {} of '{}', which has {} rows: is the data made for a "
                    "larger vocabulary?",
                    *outside, name, count));
  }
  second->touch(rows);
} catch (const std::bad_alloc&) {
  refuse("has not enough memory for touched rows", Code::kResourceExhausted);
}

void Reducer::ready(size_t tensor, size_t count, bool quiet) {
  if (!exists(tensor, "reports a gradient")) return;
  const DdpTensor& what = gradients_.tensors[tensor];
  if (count > what.count()) {
    return refuse(
        fmt::format("has {} elements of '{}' ready, which has {}", count, what.name, what.count()));
  }
  used_[tensor] = 1;
  if (!quiet) pieces_ready(tensor, count);
}

void Reducer::skipped(size_t tensor, bool quiet) {
  if (!exists(tensor, "skips the gradient")) return;
  const DdpTensor& what = gradients_.tensors[tensor];
  if (!what.may_skip) {
    return refuse(
        fmt::format("skipped the gradient of '{}', which is not declared may_skip: "
                    "declare it on every rank, or say that it is ready",
                    what.name));
  }
  if (!quiet) pieces_ready(tensor, what.count());
}

void Reducer::start_counts() {
  if (!counts_started_) lane_->exchange_counts();
  counts_started_ = true;
}

void Reducer::pieces_ready(size_t tensor, size_t count) {
  const std::string& name = gradients_.tensors[tensor].name;
  if (!begun_) {
    return refuse(
        fmt::format("has a gradient of '{}' ready before begin(): begin the step first", name));
  }
  start_counts();
  if (notes_ != nullptr) notes_->ready(tensor, count);
  const auto buckets = order_.mark_final(tensor, count, trainer::now_ns());
  if (!buckets) {
    return refuse(
        fmt::format("said twice in a step that the gradient of '{}' is ready: what only "
                    "accumulates does so under no_sync()",
                    name));
  }
  for (const size_t bucket : *buckets) gradients_.memory.copy_in(bucket, tensor);
  if (options_.overlap) issue_complete();
}

void Reducer::issue_complete() {
  while (failure_.ok()) {
    const std::optional<size_t> bucket = order_.take_next();
    if (!bucket) return;
    issue(*bucket);
  }
}

Status Reducer::send(size_t bucket) {
  RONDO_TRY(headers_.wait().status());
  const double factor = RONDO_TRY(headers_.factor());
  if (bucket == 0) RONDO_TRY(issue_buffers());
  return lane_->start({.factor = factor, .ready_ns = order_.ready_ns(bucket)});
}

void Reducer::issue(size_t bucket) try { failure_ = send(bucket); } catch (const std::bad_alloc&) {
  refuse(fmt::format("has not enough memory to send bucket {}", bucket), Code::kResourceExhausted);
} catch (const std::exception& error) {
  refuse(fmt::format("cannot send bucket {}: {}", bucket, error.what()));
}

/// Before the first bucket: forward has ended, so buffers change no more, and backward hides their
/// transfer.
Status Reducer::issue_buffers() {
  if (!buffers_) return {};
  buffers_->copy_in();
  buffers_travel_ = true;
  return lane_->send_buffers(buffers_->data(), buffers_->bytes(), headers_.first_active());
}

/// Which tensors any rank used.
void Reducer::issue_used() {
  for (size_t t = 0; t < used_.size(); ++t) {
    const int base = gradients_.tensors[t].adds_to;
    if (base >= 0 && used_[t] != 0) used_[static_cast<size_t>(base)] = 1;
  }
  if (!any_may_skip_) return;
  used_work_ = routes_.host.all_reduce_async(used_.data(), used_.data(), used_.size(),
                                             DataType::kUint8, ReduceOp::kMax);
}

Status Reducer::require_gradients() const {
  std::string names;
  for (const size_t tensor : order_.unfinished()) {
    names += (names.empty() ? "'" : ", '") + gradients_.tensors[tensor].name + "'";
  }
  if (names.empty()) return {};
  return Status(Code::kInvalidArgument,
                fmt::format("rank {} finished a step without the gradient of {}: backward must say "
                            "that each gradient is ready, or, of tensors declared may_skip, that "
                            "it was skipped",
                            routes_.host.rank(), names));
}

Status Reducer::collect(size_t bucket) try {
  return lane_->finish(bucket);
} catch (const std::exception& error) {
  refuse(fmt::format("cannot reduce bucket {}: {}", bucket, error.what()));
  return failure_;
}

Status Reducer::collect_all(const BucketReduced& reduced) {
  if (buffers_travel_) {
    RONDO_TRY(lane_->receive_buffers());
    buffers_->copy_out();
  }
  for (size_t b = 0; b < lane_->started(); ++b) {
    RONDO_TRY(collect(b));
    if (b + 1 == lane_->started() && used_work_) RONDO_TRY(used_work_->wait());
    if (notes_ != nullptr) notes_->update_begins();
    for (const size_t final : order_.updated_after(b)) {
      gradients_.memory.copy_out(final);
      if (reduced) reduced(final);
    }
    if (notes_ != nullptr) notes_->update_ends();
  }
  if (!options_.overlap || routes_.gpu != nullptr) return {};  // no times
  const auto warning = order_watch_.look(gradients_.tensors, gradients_.layout, order_, times());
  if (warning) headers_.warn(*warning);
  return {};
}

/// Waits until nothing uses memory of this step any more.
void Reducer::settle() {
  headers_.settle();
  lane_->settle();
  if (used_work_) (void)used_work_->wait();
  used_work_.reset();
}

Status Reducer::finish(const BucketReduced& reduced) {
  if (!begun_) refuse("called finish() before begin(): begin the step first");
  const bool captured = is_captured();
  if (captured && any_may_skip_) {
    refuse(
        "captures a step whose tensors may be skipped: ranks tell each other in every step which");
  }
  if (notes_ != nullptr) notes_->backward_ends();
  Status failure = failure_.ok() ? require_gradients() : failure_;
  if (failure.ok()) {
    start_counts();
    issue_complete();
    failure = failure_;
  }
  const bool all_sent = failure.ok();
  if (all_sent) {
    issue_used();
    failure = collect_all(reduced);
  }
  if (failure.ok() && routes_.gpu != nullptr) failure = routes_.gpu->status();
  // The others may wait for what this rank does not send; on a GPU also for what it does no more
  // enqueue. What travels in the host's memory ends by itself.
  if (!failure.ok() && (!all_sent || routes_.gpu != nullptr)) routes_.abort(failure.message());
  settle();
  if (notes_ != nullptr && failure.ok()) notes_->end(times());
  begun_ = counts_started_ = false;
  if (captured && failure.ok()) {       // nothing of the step has run
    std::vector<uint8_t> used = used_;  // which the captured update wants to know
    begin();
    used_ = std::move(used);
  }
  return failure;
}

Status Reducer::replayed() {
  if (!begun_) refuse("called replayed() before begin(): begin the step first");
  if (failure_.ok()) failure_ = headers_.wait().status();
  if (!failure_.ok()) routes_.abort(failure_.message());
  settle();
  std::fill(used_.begin(), used_.end(), uint8_t{1});
  begun_ = false;
  return failure_;
}

}  // namespace rondo::ddp
