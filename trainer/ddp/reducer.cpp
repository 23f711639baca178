// See reducer.hpp. The order of a step's operations is the same on every rank: headers, counts of
// touched rows, buckets in order, the map of used tensors.
#include "trainer/ddp/reducer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>

namespace rondo::ddp {
namespace {

int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

}  // namespace

Reducer::Reducer(Communicator& communicator, const Gradients& gradients, const DdpOptions& options,
                 Headers& headers)
    : communicator_(communicator),
      gradients_(gradients),
      options_(options),
      headers_(headers),
      rows_(gradients.tensors.size()),
      adds_in_(gradients.tensors.size()),
      buckets_of_(gradients.tensors.size()),
      piece_ends_(gradients.tensors.size()),
      whole_with_(gradients.layout.buckets.size()),
      pieces_done_(gradients.tensors.size()),
      used_(gradients.tensors.size()),
      missing_(gradients.layout.buckets.size()),
      times_(gradients.layout.buckets.size()) {
  for (size_t b = 0; b < gradients.layout.buckets.size(); ++b) {
    for (const DdpBucket::Piece& piece : gradients.layout.buckets[b].pieces) {
      buckets_of_[piece.tensor].push_back(b);
      piece_ends_[piece.tensor].push_back(piece.end);
    }
  }
  for (size_t t = 0; t < rows_.size(); ++t) {
    const DdpTensor& tensor = gradients.tensors[t];
    any_may_skip_ = any_may_skip_ || tensor.may_skip;
    if (tensor.adds_to < 0) continue;
    rows_[t] = std::make_unique<Rows>(communicator, tensor, options,
                                      gradients_.at(gradients.layout.offsets[t], options.type));
    const size_t base = gradients.layout.offsets[static_cast<size_t>(tensor.adds_to)];
    adds_in_[t] = parts_within(gradients.shards.own, base, base + tensor.count());
  }
  plan_reports();
  works_.reserve(missing_.size());
}

/// Behind which bucket each one is reported.
void Reducer::plan_reports() {
  std::vector<size_t> behind(missing_.size(), missing_.size() - 1);
  if (options_.overlap && !any_may_skip_) std::iota(behind.begin(), behind.end(), size_t{0});
  for (size_t t = 0; t < rows_.size(); ++t) {
    if (!rows_[t]) continue;
    for (const size_t b : buckets_of_[static_cast<size_t>(gradients_.tensors[t].adds_to)]) {
      behind[b] = std::max(behind[b], buckets_of_[t].back());
    }
  }
  for (size_t b = 0; b < behind.size(); ++b) whole_with_[behind[b]].push_back(b);
}

Reducer::~Reducer() {
  if (!under_way()) return;
  communicator_.abort("rank " + std::to_string(communicator_.rank()) +
                      " gave up in the middle of a step");
  settle();
}

bool Reducer::under_way() const { return begun_ && !(headers_.ended_empty() && works_.empty()); }

void Reducer::begin() {
  begun_ = true;
  std::fill(pieces_done_.begin(), pieces_done_.end(), 0);
  std::fill(used_.begin(), used_.end(), uint8_t{0});
  for (size_t b = 0; b < missing_.size(); ++b) {
    missing_[b] = gradients_.layout.buckets[b].pieces.size();
  }
  // Nobody may write these before something is added to them, or they are sent as they are.
  for (size_t t = 0; t < gradients_.tensors.size(); ++t) {
    if (rows_[t]) rows_[t]->begin();
    if (!gradients_.tensors[t].may_skip) continue;
    std::memset(gradients_.at(gradients_.layout.offsets[t], options_.type), 0,
                gradients_.tensors[t].count() * size_of(options_.type));
  }
  counts_started_ = false;
  failure_ = {};
}

void Reducer::touches_rows(size_t tensor, std::span<const int32_t> rows) {
  RONDO_CHECK(rows_[tensor] != nullptr, "'%s' adds to no other tensor",
              gradients_.tensors[tensor].name.c_str());
  RONDO_CHECK(!counts_started_, "rows of '%s' are touched behind the first gradient",
              gradients_.tensors[tensor].name.c_str());
  rows_[tensor]->touch(rows);
}

void Reducer::ready(size_t tensor, size_t count, bool quiet) {
  RONDO_CHECK(count <= gradients_.tensors[tensor].count(), "%zu elements of '%s', which has %zu",
              count, gradients_.tensors[tensor].name.c_str(), gradients_.tensors[tensor].count());
  used_[tensor] = 1;
  if (!quiet) pieces_ready(tensor, count);
}

void Reducer::skipped(size_t tensor, bool quiet) {
  const DdpTensor& what = gradients_.tensors[tensor];
  if (!what.may_skip) {
    return refuse(
        fmt::format("skipped the gradient of '{}', which is not declared may_skip: "
                    "declare it on every rank, or say that it is ready",
                    what.name));
  }
  if (!quiet) pieces_ready(tensor, gradients_.tensors[tensor].count());
}

/// Nothing more must travel: what would is no gradient. Nor can another rank finish the step then,
/// and those that wait are told now.
void Reducer::refuse(const std::string& what) {
  if (!failure_.ok()) return;
  failure_ = Status(Code::kInvalidArgument, fmt::format("rank {} {}", communicator_.rank(), what));
  communicator_.abort(failure_.message());
}

void Reducer::start_counts() {
  if (counts_started_) return;
  counts_started_ = true;
  for (const auto& rows : rows_) {
    if (rows) rows->exchange_counts();
  }
}

void Reducer::pieces_ready(size_t tensor, size_t count) {
  if (!begun_) {
    return refuse(fmt::format("has a gradient of '{}' ready before begin(): begin the step first",
                              gradients_.tensors[tensor].name));
  }
  start_counts();
  size_t& done = pieces_done_[tensor];
  const std::vector<size_t>& ends = piece_ends_[tensor];
  if (done == ends.size() && !ends.empty()) {
    return refuse(
        fmt::format("said twice in a step that the gradient of '{}' is ready: what only "
                    "accumulates does so under no_sync()",
                    gradients_.tensors[tensor].name));
  }
  for (; done < ends.size() && ends[done] <= count; ++done) {
    const size_t bucket = buckets_of_[tensor][done];
    if (--missing_[bucket] == 0) times_[bucket].ready_ns = now_ns();
  }
  if (options_.overlap) issue_complete();
}

/// A full bucket waits for its predecessors: the order must be the same on every rank.
void Reducer::issue_complete() {
  while (failure_.ok() && works_.size() < missing_.size() && missing_[works_.size()] == 0) {
    issue(works_.size());
  }
}

GradientBucket Reducer::bucket_of(size_t index) const {
  const DdpBucket& bucket = gradients_.layout.buckets[index];
  const BucketShards& shards = gradients_.shards.buckets[index];
  const DdpRange own = gradients_.shards.own_of_bucket[index];
  return {.index = index,
          .last = index + 1 == missing_.size(),
          .data = gradients_.at(bucket.offset, options_.type),
          .count = bucket.count,
          .type = options_.type,
          .factor = headers_.factor(),
          .shard_counts = shards.counts,
          .shard_offsets = shards.offsets,
          .own_offset = own.begin - bucket.offset,
          .own_count = own.count()};
}

void Reducer::issue(size_t index) {
  failure_ = headers_.wait().status();
  if (!failure_.ok()) return;
  const GradientBucket bucket = bucket_of(index);
  const size_t tensor = gradients_.layout.buckets[index].pieces.front().tensor;
  if (rows_[tensor] && !rows_[tensor]->must_travel_whole()) {
    works_.push_back(rows_[tensor]->start(bucket.factor));
  } else if (options_.hook) {
    works_.push_back(options_.hook->start(communicator_, bucket));
  } else {
    works_.push_back(reduce(bucket));
  }
}

Work Reducer::reduce(const GradientBucket& bucket) {
  CallOptions call;
  call.factor = bucket.factor;
  if (bucket.shard_counts.empty()) {
    return communicator_.all_reduce_async(bucket.data, bucket.data, bucket.count, bucket.type,
                                          ReduceOp::kScaledSum, call);
  }
  std::byte* own = static_cast<std::byte*>(bucket.data) + bucket.own_offset * size_of(bucket.type);
  return communicator_.reduce_scatter_v_async(bucket.data, own, bucket.shard_counts,
                                              bucket.shard_offsets, bucket.type,
                                              ReduceOp::kScaledSum, call);
}

Status Reducer::require_gradients() const {
  std::string names;
  for (size_t t = 0; t < gradients_.tensors.size(); ++t) {
    if (pieces_done_[t] == piece_ends_[t].size()) continue;
    names += (names.empty() ? "'" : ", '") + gradients_.tensors[t].name + "'";
  }
  if (names.empty()) return {};
  return Status(Code::kInvalidArgument,
                fmt::format("rank {} finished a step without the gradient of {}: backward must say "
                            "that each gradient is ready, or, of tensors declared may_skip, that "
                            "it was skipped",
                            communicator_.rank(), names));
}

/// Until nothing uses any memory of this step any more.
void Reducer::settle() {
  headers_.settle();
  for (Work& work : works_) (void)work.wait();
  for (Work& work : map_work_) (void)work.wait();
  for (const auto& rows : rows_) {
    if (rows) rows->settle();
  }
}

/// What has travelled becomes gradients.
Status Reducer::collect(size_t bucket) {
  RONDO_RETURN_IF_ERROR(works_[bucket].wait());
  times_[bucket].work = works_[bucket].times();
  const size_t tensor = gradients_.layout.buckets[bucket].pieces.front().tensor;
  if (options_.hook && (!rows_[tensor] || rows_[tensor]->travelled_whole())) {
    options_.hook->finish(bucket_of(bucket));
  }
  if (!rows_[tensor]) return {};
  const auto base = static_cast<size_t>(gradients_.tensors[tensor].adds_to);
  return rows_[tensor]->add_to(gradients_.at(gradients_.layout.offsets[base], options_.type),
                               adds_in_[tensor]);
}

Status Reducer::collect_all(const BucketReduced& reduced) {
  for (size_t b = 0; b < works_.size(); ++b) {
    RONDO_RETURN_IF_ERROR(collect(b));
    if (b + 1 == works_.size() && !map_work_.empty()) {
      RONDO_RETURN_IF_ERROR(map_work_.front().wait());
    }
    if (!reduced) continue;
    for (const size_t whole : whole_with_[b]) reduced(whole);
  }
  return {};
}

/// Which tensors any rank used.
void Reducer::share_used() {
  for (size_t t = 0; t < used_.size(); ++t) {
    const int base = gradients_.tensors[t].adds_to;
    if (base >= 0 && used_[t] != 0) used_[static_cast<size_t>(base)] = 1;
  }
  if (!any_may_skip_) return;
  map_work_.push_back(communicator_.all_reduce_async(used_.data(), used_.data(), used_.size(),
                                                     DataType::kUint8, ReduceOp::kMax));
}

Status Reducer::finish(const BucketReduced& reduced) {
  if (!begun_) refuse("called finish() before begin(): begin the step first");
  Status failure = failure_.ok() ? require_gradients() : failure_;
  if (failure.ok()) {
    start_counts();
    issue_complete();
    failure = failure_;
  }
  if (failure.ok()) {
    share_used();
  } else {
    communicator_.abort(failure.message());  // the others wait for what this rank does not send
  }
  if (failure.ok()) failure = collect_all(reduced);
  settle();
  works_.clear();
  map_work_.clear();
  counts_started_ = begun_ = false;
  return failure;
}

}  // namespace rondo::ddp
