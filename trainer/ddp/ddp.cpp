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
#include "trainer/ddp/device_notes.hpp"
#include "trainer/ddp/gather.hpp"
#include "trainer/ddp/gpu.hpp"
#include "trainer/ddp/headers.hpp"
#include "trainer/ddp/layout.hpp"
#include "trainer/ddp/memory.hpp"
#include "trainer/ddp/readiness.hpp"
#include "trainer/ddp/reducer.hpp"
#include "trainer/ddp/registered.hpp"
#include "trainer/ddp/relayout.hpp"
#include "trainer/ddp/routes.hpp"
#include "trainer/ddp/shards.hpp"

namespace rondo {

/// Never moves, so that its parts may refer to each other.
struct DistributedDataParallel::Impl {
  /// Throws std::bad_alloc and ddp::GpuFailure.
  Impl(Communicator& its_communicator, std::vector<DdpTensor> its_tensors,
       std::vector<DdpTensor> its_buffers, const DdpOptions& its_options,
       const ddp::BucketCaps& caps)
      : communicator(its_communicator),
        options(its_options),
        gpu(open_gpu(communicator, its_options)),
        routes{
            .data = communicator, .host = gpu ? *its_options.host : communicator, .gpu = gpu.get()},
        tensors(with_types(std::move(its_tensors), its_options.type)),
        buffers(with_types(std::move(its_buffers), its_options.type)),
        layout(ddp::make_layout(tensors, size_of(options.type), caps)),
        // Those of the buffers only: they travel together.
        buffer_layout(
            ddp::make_layout(buffers, size_of(options.type), {.bytes = 0, .small_bytes = 0})),
        parameter_memory(tensors, layout, gpu.get()),
        gradient_memory(tensors, layout, gpu.get(), options.bucket_cap_mb != kDdpAutoCap),
        buffer_memory(buffers, buffer_layout, gpu.get()),
        headers(routes.host, options) {
    relayout.automatic = options.bucket_cap_mb == kDdpAutoCap;
    relayout.pending = relayout.automatic && communicator.size() > 1 && !tensors.empty();
    use_layout(layout);
    if (!relayout.pending) return;
    log.emplace();
    if (gpu) {
      notes =
          std::make_unique<ddp::DeviceNotes>(*gpu, *log, [this] { return communicator.status(); });
    } else {
      notes = std::make_unique<ddp::HostNotes>(*log);
    }
    reducer->note_in(notes.get());
  }

  /// Replaces the layout, and what depends on it. Throws std::bad_alloc and ddp::GpuFailure; nothing
  /// has changed then.
  void use_layout(ddp::BucketLayout other) {
    ddp::Shards other_shards = shards_of(other);
    std::vector<std::byte*> other_places = gradient_memory.places_in(other);
    const auto exchange = [&] {
      std::swap(layout, other);
      std::swap(shards, other_shards);
      gradient_memory.swap_places(other_places);
    };
    exchange();
    try {
      auto next = std::make_unique<ddp::Reducer>(
          routes,
          ddp::GradientStorage{
              .tensors = tensors, .layout = layout, .shards = shards, .memory = gradient_memory},
          options.broadcast_buffers && !buffer_memory.empty() ? &buffer_memory : nullptr, options,
          headers);
      gather = std::make_unique<ddp::ParameterGather>(routes, tensors, layout, shards,
                                                      parameter_memory.flat());
      reducer = std::move(next);
    } catch (...) {
      exchange();
      throw;
    }
  }

  ddp::Shards shards_of(const ddp::BucketLayout& its_layout) const {
    const int ranks = communicator.size(), rank = communicator.rank();
    if (!options.shard) return ddp::no_shards(its_layout);
    return gpu ? ddp::make_equal_shards(its_layout, ranks, rank)
               : ddp::make_shards(tensors, its_layout, ranks, rank);
  }

  /// False: buckets cannot end there. Throws std::bad_alloc and ddp::GpuFailure; nothing has changed
  /// then.
  bool set_bucket_ends(const std::vector<size_t>& ends) {
    std::optional<ddp::BucketLayout> other =
        ddp::layout_with_ends(tensors, size_of(options.type), ends);
    if (!other) return false;
    use_layout(std::move(*other));
    notes.reset();
    log.reset();
    relayout.pending = false;
    return true;
  }

  /// Collective, when the steps that count are over, or earlier: then by those of them that were made,
  /// or else by the last step.
  Status lay_out_anew() {
    const Status status = try_to_lay_out_anew();
    if (!status.ok()) routes.abort(status.message());  // the others wait for this rank
    return status;
  }

  Status try_to_lay_out_anew() try {
    RONDO_TRY(notes->settle());
    const uint64_t before_them = std::max<uint64_t>(options.auto_after_steps, 5) - 4;
    log->keep_last(noted_steps > before_them ? noted_steps - before_them : 1);
    const ddp::ChosenEnds chosen = RONDO_TRY(
        ddp::choose_layout(routes.host, {.tensors = tensors,
                                         .layout = layout,
                                         .options = options,
                                         .log = *log,
                                         .direct = is_library_memory(gradient_memory.bucket(0), 1),
                                         .carrier = &communicator}));
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
    return {Code::kResourceExhausted,
            fmt::format("rank {}: not enough memory to lay buckets out anew", communicator.rank())};
  } catch (const ddp::GpuFailure& failure) {
    return {failure.status().code(),
            fmt::format("rank {} on GPU {}, to lay buckets out anew: {}", communicator.rank(),
                        communicator.device(), failure.status().message())};
  }

  static std::unique_ptr<ddp::Gpu> open_gpu(const Communicator& communicator,
                                            const DdpOptions& options) {
    if (communicator.device() < 0) return nullptr;
    return std::make_unique<ddp::Gpu>(
        ddp::Gpu::Setup{.device = communicator.device(),
                        .compute = options.stream,
                        .owner = fmt::format("rank {}", communicator.rank())});
  }

  /// Collective, on a GPU.
  Status register_device_memory() {
    // A hook that rounds them sends memory of its own.
    const bool gradients_travel =
        !options.hook || options.hook->wire_bytes(options.type) == size_of(options.type);
    // A gradient that lies as in its bucket on one rank may not on another, which then has storage.
    uint8_t has[] = {gradients_travel && !gradient_memory.own().empty(),
                     !parameter_memory.own().empty()};
    // No rank comes past this before all have allocated, which may wait for kernels on the GPU: none of
    // them may then wait for a rank that allocates.
    RONDO_TRY(routes.host.all_reduce(has, has, 2, DataType::kUint8, ReduceOp::kMin));
    if (!ddp::is_worth_registering(communicator)) return {};
    registered.emplace(routes);
    if (has[0] != 0) RONDO_TRY(registered->add(gradient_memory.own()));
    if (has[1] != 0) RONDO_TRY(registered->add(parameter_memory.own()));
    return {};
  }

  /// On a GPU: between what the compute stream has and what it gets from now on.
  Status replicate() {
    CallOptions call;
    if (gpu) {
      gpu->hand_over();
      RONDO_TRY(gpu->status());
      call.stream = gpu->communication();
    }
    RONDO_TRY(parameter_memory.replicate(communicator, call));
    if (!buffer_memory.empty()) {
      buffer_memory.copy_in();
      if (gpu) gpu->hand_over();
      RONDO_TRY(communicator.broadcast(buffer_memory.data(), buffer_memory.data(),
                                       buffer_memory.bytes(), DataType::kUint8, 0, call));
    }
    if (gpu) {
      gpu->take_back();
      RONDO_TRY(gpu->status());
    }
    if (!buffer_memory.empty()) buffer_memory.copy_out();
    replicated = true;
    return {};
  }

  static std::vector<DdpTensor> with_types(std::vector<DdpTensor> list, DataType type) {
    for (DdpTensor& tensor : list) tensor.type = tensor.type.value_or(type);
    return list;
  }

  Communicator& communicator;
  const DdpOptions options;  // whose hook's memory the GPU's streams may use until they end
  const std::unique_ptr<ddp::Gpu> gpu;  // null: memory is the host's
  const ddp::Routes routes;
  std::vector<DdpTensor> tensors, buffers;
  ddp::BucketLayout layout;
  const ddp::BucketLayout buffer_layout;
  ddp::Shards shards;
  ddp::ParameterMemory parameter_memory;
  ddp::GradientMemory gradient_memory;
  ddp::BufferMemory buffer_memory;
  std::optional<ddp::RegisteredMemory> registered;  // ends when the reducer has
  ddp::Headers headers;
  std::optional<ddp::ReadinessLog> log;  // until kDdpAutoCap has laid buckets out, as the next
  std::unique_ptr<ddp::StepNotes> notes;
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

namespace {

/// The others wait for this rank.
Status give_up(Communicator& communicator, const DdpOptions& options, const Status& why) {
  communicator.abort(why.message());
  if (options.host != nullptr) options.host->abort(why.message());
  return why;
}

}  // namespace

Result<DistributedDataParallel> DistributedDataParallel::create(Communicator& communicator,
                                                                std::vector<DdpTensor> tensors,
                                                                std::vector<DdpTensor> buffers,
                                                                const DdpOptions& options) try {
  Status possible = ddp::check(tensors, buffers, options);
  if (possible.ok()) possible = ddp::check_device(communicator, tensors, options);
  if (!possible.ok()) {
    return give_up(
        communicator, options,
        {possible.code(), fmt::format("rank {}: {}", communicator.rank(), possible.message())});
  }
  const bool on_device = communicator.device() >= 0;
  Communicator& host = on_device ? *options.host : communicator;
  RONDO_TRY(ddp::require_same(host, ddp::describe(tensors, buffers, options)));
  const double cap_mb =
      options.bucket_cap_mb == kDdpAutoCap ? DdpOptions().bucket_cap_mb : options.bucket_cap_mb;
  const auto cap = static_cast<size_t>(std::ceil(cap_mb * ddp::kBytesPerMb));
  const size_t blocks = on_device && options.shard ? static_cast<size_t>(communicator.size()) : 1;
  DistributedDataParallel made(
      std::make_unique<Impl>(communicator, std::move(tensors), std::move(buffers), options,
                             ddp::BucketCaps{.bytes = cap, .blocks = blocks}));
  if (on_device) {
    const Status registered = made.impl_->register_device_memory();
    if (!registered.ok()) return give_up(communicator, options, registered);
  }
  return made;
} catch (const ddp::GpuFailure& failure) {
  return give_up(
      communicator, options,
      {failure.status().code(), fmt::format("rank {} on GPU {}: {}", communicator.rank(),
                                            communicator.device(), failure.status().message())});
} catch (const std::bad_alloc&) {
  return give_up(communicator, options,
                 {Code::kResourceExhausted,
                  fmt::format("rank {}: not enough memory for parameters and gradients",
                              communicator.rank())});
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
  const Status status = impl_->replicate();
  if (!status.ok() && impl_->gpu)
    impl_->routes.abort(status.message());  // CUDA's may be this rank's
  return status;
}

Status DistributedDataParallel::begin(const DdpHeader& mine) {
  const auto refuse = [this](const char* why) {
    const Status status(Code::kInvalidArgument,
                        fmt::format("rank {}: begin() {}", communicator().rank(), why));
    impl_->routes.abort(status.message());
    return status;
  };
  if (!impl_->replicated) {
    return refuse("before replicate(): call it on every rank when the parameters are set");
  }
  if (impl_->reducer->under_way()) return refuse("before finish() of the last step");
  if (impl_->log && impl_->noted_steps == impl_->options.auto_after_steps) {
    RONDO_TRY(impl_->lay_out_anew());
  }
  const Status late = impl_->reducer->status();
  if (!late.ok()) {
    impl_->routes.abort(late.message());
    return late;
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
  // Of a captured step nothing has run.
  const bool captured = impl_->log && impl_->gpu && impl_->gpu->is_captured();
  if (status.ok() && !captured) ++impl_->noted_steps;
  return status;
}
Status DistributedDataParallel::replayed() { return impl_->reducer->replayed(); }
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
  if (impl_->gpu && !impl_->relayout.automatic) {
    return refuse(
        "set_bucket_ends() on a device without kDdpAutoCap, where buckets stay as they are");
  }
  if (impl_->reducer->under_way()) return refuse("set_bucket_ends() before finish() of the step");
  if (impl_->set_bucket_ends(ends)) return {};
  return refuse("set_bucket_ends(): buckets of these tensors cannot end there");
} catch (const std::bad_alloc&) {
  return {Code::kResourceExhausted, "set_bucket_ends(): not enough memory for other buckets"};
} catch (const ddp::GpuFailure& failure) {
  return {failure.status().code(), "set_bucket_ends(): " + failure.status().message()};
}
Status DistributedDataParallel::settle_buckets() {
  if (impl_->reducer->under_way()) {
    const Status status(Code::kInvalidArgument,
                        fmt::format("rank {}: settle_buckets() before finish() of the step",
                                    communicator().rank()));
    impl_->routes.abort(status.message());  // the others may wait for this rank
    return status;
  }
  return impl_->log && impl_->noted_steps > 0 ? impl_->lay_out_anew() : Status();
}
const std::vector<DdpBucketTimes>& DistributedDataParallel::times() const {
  return impl_->reducer->times();
}
void DistributedDataParallel::mark_transfers(std::function<void(const DdpTransferMark&)> mark) {
  if (impl_->gpu) impl_->gpu->mark_transfers(std::move(mark));
}
Work::Times DistributedDataParallel::header_times() const { return impl_->headers.times(); }
const std::vector<std::string>& DistributedDataParallel::warnings() const {
  return impl_->headers.warnings();
}

}  // namespace rondo
