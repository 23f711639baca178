// The public face of the reducer. See rondo/ddp.hpp.
#include "rondo/ddp.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "rondo/memory.hpp"
#include "trainer/base/clock.hpp"
#include "trainer/ddp/agreement.hpp"
#include "trainer/ddp/check.hpp"
#include "trainer/ddp/gather.hpp"
#include "trainer/ddp/headers.hpp"
#include "trainer/ddp/layout.hpp"
#include "trainer/ddp/memory.hpp"
#include "trainer/ddp/readiness.hpp"
#include "trainer/ddp/reducer.hpp"
#include "trainer/ddp/relayout.hpp"
#include "trainer/ddp/shards.hpp"

namespace rondo {

/// Never moves, so that its parts may refer to each other.
struct DistributedDataParallel::Impl {
  Impl(Communicator& its_communicator, std::vector<DdpTensor> its_tensors,
       std::vector<DdpTensor> its_buffers, const DdpOptions& its_options,
       const ddp::BucketCaps& caps)
      : communicator(its_communicator),
        tensors(with_types(std::move(its_tensors), its_options.type)),
        buffers(with_types(std::move(its_buffers), its_options.type)),
        options(its_options),
        layout(ddp::make_layout(tensors, size_of(options.type), caps)),
        // Those of the buffers only: they travel together.
        buffer_layout(
            ddp::make_layout(buffers, size_of(options.type), {.bytes = 0, .small_bytes = 0})),
        parameter_memory(tensors, layout),
        gradient_memory(tensors, layout),
        buffer_memory(buffers, buffer_layout),
        headers(communicator, options) {
    relayout.automatic = options.bucket_cap_mb == kDdpAutoCap;
    relayout.pending = relayout.automatic && communicator.size() > 1 && !tensors.empty();
    use_layout(layout);
    if (!relayout.pending) return;
    log.emplace();
    reducer->note_in(&*log);
  }

  /// Replaces the layout, and what depends on it. Throws std::bad_alloc; nothing has changed then.
  void use_layout(ddp::BucketLayout other) {
    ddp::Shards other_shards =
        options.shard ? ddp::make_shards(tensors, other, communicator.size(), communicator.rank())
                      : ddp::no_shards(other);
    std::vector<std::byte*> other_places = gradient_memory.places_in(other);
    const auto exchange = [&] {
      std::swap(layout, other);
      std::swap(shards, other_shards);
      gradient_memory.swap_places(other_places);
    };
    exchange();
    try {
      auto next = std::make_unique<ddp::Reducer>(
          communicator,
          ddp::Gradients{
              .tensors = tensors, .layout = layout, .shards = shards, .memory = gradient_memory},
          options.broadcast_buffers && !buffer_memory.empty() ? &buffer_memory : nullptr, options,
          headers);
      gather = std::make_unique<ddp::ParameterGather>(communicator, tensors, layout, shards,
                                                      parameter_memory.flat());
      reducer = std::move(next);
    } catch (...) {
      exchange();
      throw;
    }
  }

  /// False: buckets cannot end there. Throws std::bad_alloc; nothing has changed then.
  bool set_bucket_ends(const std::vector<size_t>& ends) {
    std::optional<ddp::BucketLayout> other =
        ddp::layout_with_ends(tensors, size_of(options.type), ends);
    if (!other) return false;
    use_layout(std::move(*other));
    log.reset();
    relayout.pending = false;
    return true;
  }

  /// Collective, when the steps that count are over, or earlier: then by those of them that were made,
  /// or else by the last step.
  Status lay_out_anew() try {
    const uint64_t before_them = std::max<uint64_t>(options.auto_after_steps, 5) - 4;
    log->keep_last(noted_steps > before_them ? noted_steps - before_them : 1);
    const ddp::ChosenEnds chosen = RONDO_TRY(ddp::choose_layout(
        communicator, {.tensors = tensors,
                       .layout = layout,
                       .options = options,
                       .log = *log,
                       .direct = is_library_memory(gradient_memory.bucket(0), 1)}));
    const size_t before = layout.buckets.size();
    (void)set_bucket_ends(chosen.ends);
    relayout = {.automatic = true,
                .after_steps = noted_steps,
                .buckets_before = before,
                .buckets = chosen.ends.size(),
                .exposed_before_ms = trainer::to_ms(chosen.exposed_before_ns),
                .exposed_ms = trainer::to_ms(chosen.exposed_ns)};
    return {};
  } catch (const std::bad_alloc&) {
    const Status status(
        Code::kResourceExhausted,
        fmt::format("rank {}: not enough memory to lay buckets out anew", communicator.rank()));
    communicator.abort(status.message());  // the others wait for this rank
    return status;
  }

  static std::vector<DdpTensor> with_types(std::vector<DdpTensor> list, DataType type) {
    for (DdpTensor& tensor : list) tensor.type = tensor.type.value_or(type);
    return list;
  }

  Communicator& communicator;
  std::vector<DdpTensor> tensors, buffers;
  const DdpOptions options;
  ddp::BucketLayout layout;
  const ddp::BucketLayout buffer_layout;
  ddp::Shards shards;
  ddp::ParameterMemory parameter_memory;
  ddp::GradientMemory gradient_memory;
  ddp::BufferMemory buffer_memory;
  ddp::Headers headers;
  std::optional<ddp::ReadinessLog> log;  // until kDdpAutoCap has laid buckets out
  uint64_t noted_steps = 0;
  DdpRelayout relayout;
  std::unique_ptr<ddp::Reducer> reducer;  // never null, as the next
  std::unique_ptr<ddp::ParameterGather> gather;
  bool replicated = false, quiet = false;
};

DistributedDataParallel::DistributedDataParallel(std::unique_ptr<Impl> impl)
    : impl_(std::move(impl)) {}
DistributedDataParallel::~DistributedDataParallel() = default;
DistributedDataParallel::DistributedDataParallel(DistributedDataParallel&&) noexcept = default;
DistributedDataParallel& DistributedDataParallel::operator=(DistributedDataParallel&&) noexcept =
    default;

Result<DistributedDataParallel> DistributedDataParallel::create(Communicator& communicator,
                                                                std::vector<DdpTensor> tensors,
                                                                std::vector<DdpTensor> buffers,
                                                                const DdpOptions& options) try {
  const Status possible = ddp::check(tensors, buffers, options);
  if (!possible.ok()) {
    const Status refused(possible.code(),
                         fmt::format("rank {}: {}", communicator.rank(), possible.message()));
    communicator.abort(refused.message());
    return refused;
  }
  RONDO_TRY(ddp::require_same(communicator, ddp::describe(tensors, buffers, options)));
  const double cap_mb =
      options.bucket_cap_mb == kDdpAutoCap ? DdpOptions().bucket_cap_mb : options.bucket_cap_mb;
  const auto cap = static_cast<size_t>(std::ceil(cap_mb * ddp::kBytesPerMb));
  return DistributedDataParallel(std::make_unique<Impl>(communicator, std::move(tensors),
                                                        std::move(buffers), options,
                                                        ddp::BucketCaps{.bytes = cap}));
} catch (const std::bad_alloc&) {
  const Status status(
      Code::kResourceExhausted,
      fmt::format("rank {}: not enough memory for parameters and gradients", communicator.rank()));
  communicator.abort(status.message());  // the others wait for this rank
  return status;
}

const std::vector<DdpTensor>& DistributedDataParallel::tensors() const { return impl_->tensors; }
const std::vector<DdpTensor>& DistributedDataParallel::buffers() const { return impl_->buffers; }
DataType DistributedDataParallel::type() const { return impl_->options.type; }
Communicator& DistributedDataParallel::communicator() { return impl_->communicator; }
size_t DistributedDataParallel::offset(size_t tensor) const {
  return impl_->layout.offsets[tensor];
}
size_t DistributedDataParallel::parameter_elements() const {
  return impl_->layout.parameter_elements;
}
size_t DistributedDataParallel::gradient_elements() const {
  return impl_->layout.gradient_elements;
}
void* DistributedDataParallel::parameters() { return impl_->parameter_memory.flat(); }
void* DistributedDataParallel::gradients() { return impl_->gradient_memory.flat(); }
void* DistributedDataParallel::buffer(size_t index) { return impl_->buffers[index].data; }

Status DistributedDataParallel::replicate() {
  RONDO_TRY(impl_->parameter_memory.replicate(impl_->communicator));
  if (!impl_->buffer_memory.empty()) {
    RONDO_TRY(impl_->buffer_memory.send(impl_->communicator, 0).wait());
    impl_->buffer_memory.receive();
  }
  impl_->replicated = true;
  return {};
}

Status DistributedDataParallel::begin(const DdpHeader& mine) {
  const auto refuse = [this](const char* why) {
    const Status status(Code::kInvalidArgument,
                        fmt::format("rank {}: begin() {}", communicator().rank(), why));
    communicator().abort(status.message());
    return status;
  };
  if (!impl_->replicated) {
    return refuse("before replicate(): call it on every rank when the parameters are set");
  }
  if (impl_->reducer->under_way()) return refuse("before finish() of the last step");
  if (impl_->log && impl_->noted_steps == impl_->options.auto_after_steps) {
    RONDO_TRY(impl_->lay_out_anew());
  }
  impl_->reducer->begin();
  impl_->headers.send(mine);
  return {};
}

Result<DdpStep> DistributedDataParallel::headers() { return impl_->headers.wait(); }
DistributedDataParallel::NoSync DistributedDataParallel::no_sync() { return NoSync(impl_->quiet); }

void DistributedDataParallel::gradient_ready(size_t tensor, size_t count) {
  impl_->reducer->ready(tensor, count, impl_->quiet);
}
void DistributedDataParallel::gradient_ready(size_t tensor) {
  gradient_ready(tensor, tensor < tensors().size() ? tensors()[tensor].count() : 0);
}
void DistributedDataParallel::gradient_skipped(size_t tensor) {
  impl_->reducer->skipped(tensor, impl_->quiet);
}
void DistributedDataParallel::touches_rows(size_t tensor, std::span<const int32_t> rows) {
  impl_->reducer->touches_rows(tensor, rows);
}
Status DistributedDataParallel::finish(const std::function<void(size_t bucket)>& reduced) {
  const Status status = impl_->reducer->finish(reduced);
  if (status.ok()) ++impl_->noted_steps;
  return status;
}
bool DistributedDataParallel::used(size_t tensor) const { return impl_->reducer->used(tensor); }

bool DistributedDataParallel::is_sharded() const { return impl_->options.shard; }
DdpRange DistributedDataParallel::own_range(size_t bucket) const {
  return impl_->shards.parameters_of(bucket, impl_->layout);
}
const std::vector<DdpRange>& DistributedDataParallel::own_ranges() const {
  return impl_->shards.own;
}
void DistributedDataParallel::gather_parameters(size_t bucket) { impl_->gather->start(bucket); }
Status DistributedDataParallel::wait_parameters(size_t bucket) {
  return impl_->gather->wait(bucket);
}
Status DistributedDataParallel::wait_parameters() {
  Status first;
  for (size_t b = layout().size(); b-- > 0;) {
    const Status status = impl_->gather->wait(b);
    if (first.ok()) first = status;
  }
  return first;
}
const std::vector<Work::Times>& DistributedDataParallel::gather_times() const {
  return impl_->gather->times();
}

const std::vector<DdpBucket>& DistributedDataParallel::layout() const {
  return impl_->layout.buckets;
}
const DdpRelayout& DistributedDataParallel::relayout() const { return impl_->relayout; }
Status DistributedDataParallel::set_bucket_ends(const std::vector<size_t>& ends) try {
  const auto refuse = [](const char* why) { return Status(Code::kInvalidArgument, why); };
  if (is_sharded()) return refuse("set_bucket_ends() with shards, which are parts of buckets");
  if (impl_->reducer->under_way()) return refuse("set_bucket_ends() before finish() of the step");
  if (impl_->set_bucket_ends(ends)) return {};
  return refuse("set_bucket_ends(): buckets of these tensors cannot end there");
} catch (const std::bad_alloc&) {
  return {Code::kResourceExhausted, "set_bucket_ends(): not enough memory for other buckets"};
}
Status DistributedDataParallel::settle_buckets() {
  if (impl_->reducer->under_way()) {
    const Status status(Code::kInvalidArgument,
                        fmt::format("rank {}: settle_buckets() before finish() of the step",
                                    communicator().rank()));
    communicator().abort(status.message());  // the others may wait for this rank
    return status;
  }
  return impl_->log && impl_->noted_steps > 0 ? impl_->lay_out_anew() : Status();
}
const std::vector<DdpBucketTimes>& DistributedDataParallel::times() const {
  return impl_->reducer->times();
}
Work::Times DistributedDataParallel::header_times() const { return impl_->headers.times(); }
const std::vector<std::string>& DistributedDataParallel::warnings() const {
  return impl_->headers.warnings();
}

}  // namespace rondo
