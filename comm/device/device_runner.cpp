#include "comm/device/device_runner.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <utility>
#include <vector>

#include "comm/base/bytes.hpp"
#include "comm/base/refuse.hpp"
#include "comm/bootstrap/session/shared_segments.hpp"
#include "comm/control/wire_to_hosts.hpp"
#include "rondo/log.hpp"

namespace rondo::device {
namespace {

using transport::cuda_ipc::DeviceInfo;
using transport::cuda_ipc::DevicePlace;
using transport::cuda_ipc::Offer;
using transport::cuda_ipc::Reach;
using transport::cuda_ipc::Segments;

constexpr timespec kPause{0, 50'000};
constexpr int kTurnsOfASecond = 20'000;
// Launches of a rank that have not ended are at most three times as many.
constexpr uint64_t kMarkEvery = 128;
constexpr size_t kMostSegmentBytes = size_t{256} << 20;
// The same where it is host memory, which is locked there and faster full than large.
constexpr size_t kMostHostBytes = size_t{32} << 20;
// Of each of the two segments for ranks of other hosts.
constexpr size_t kMostWireBytes = size_t{64} << 20;

Status warn_of_sharing(CudaCalls& cuda, std::span<const DevicePlace> places) {
  int count = RONDO_TRY(cuda.device_count());
  std::vector<DeviceId> devices;
  for (int device = 0; device < count; ++device) {
    DeviceInfo info = RONDO_TRY(cuda.device_info(device));
    devices.push_back(info.uuid);
  }
  const std::string warning = transport::cuda_ipc::sharing_warning(places, devices);
  if (!warning.empty()) log(LogLevel::kWarn, warning);
  return {};
}

}  // namespace

Result<std::unique_ptr<DeviceRunner>> DeviceRunner::create(comm::Bootstrap& bootstrap,
                                                           board::Board& board, board::Watch& watch,
                                                           transport::Segment control,
                                                           OpenedDevice opened,
                                                           const DeviceSettings& setup) {
  std::unique_ptr<DeviceRunner> made(
      new DeviceRunner(std::move(opened.backend), bootstrap, board, watch, opened.device));
  const DeviceScope scope(made->cuda_, opened.device);
  RONDO_TRY(scope.status());
  const OutsideCapture outside(made->cuda_);
  RONDO_TRY(outside.status());
  RONDO_TRY(made->set_up(std::move(control), setup));
  return made;
}

Status DeviceRunner::create_streams() {
  copies_ = RONDO_TRY(cuda_.create_stream());
  for (Event* event : {&launched_, &captured_, &copied_, &marks_[0], &marks_[1]}) {
    Event created = RONDO_TRY(cuda_.create_event());
    *event = created;
  }
  return {};
}

// With nothing to do: the first launch with a larger stack than any before may wait until the GPU
// has nothing else to do, and later on that would be other ranks' kernels that wait for this one's.
Status DeviceRunner::launch_once() {
  engine::DeviceLinks links{};
  engine::DeviceGroup group{};
  void* arguments[] = {&links, &group};
  for (const bool by_ll : {false, true}) {
    RONDO_TRY(cuda_.launch({.kernel = by_ll ? backend_.ll_kernel : backend_.kernel,
                            .blocks = 1,
                            .threads = by_ll ? backend_.ll_threads : backend_.threads,
                            .shared_bytes = 0,
                            .arguments = arguments,
                            .stream = copies_}));
  }
  return cuda_.synchronize(copies_);
}

Status DeviceRunner::set_up(transport::Segment control, const DeviceSettings& setup) {
  const int rank = bootstrap_.rank(), ranks = bootstrap_.size();
  std::vector<DevicePlace> places;
  int fewest_at_once = setup.facts[static_cast<size_t>(rank)].blocks_at_once;
  for (const DeviceFacts& each : setup.facts) {
    places.push_back(each.place);
    fewest_at_once = std::min(fewest_at_once, each.blocks_at_once);
  }
  for (int r = 0; r < ranks; ++r) {
    if (!hosts().share_host(r, rank)) far_.push_back(r);
  }
  reach_ = setup.reach.slowest;
  RONDO_TRY(settle(setup, places, fewest_at_once));
  if (rank == 0) RONDO_TRY(warn_of_sharing(cuda_, places));
  RONDO_TRY(create_streams());
  RONDO_TRY(launch_once());
  memory_ = RONDO_TRY(ProcessMemory::open(backend_.cuda, std::move(control), ranks));
  memory_->set_present(rank, true);
  auto pieces = RONDO_TRY(connect(places, setup.reach.gpu_direct));
  programs_ = RONDO_TRY(Programs::create(backend_.cuda, backend_.program_bytes, copies_));
  const DevicePlace& own = places[static_cast<size_t>(rank)];
  Registrations::RegistrationSettings settings = {.cuda = backend_.cuda,
                                                  .device = device_,
                                                  .rank = static_cast<uint32_t>(rank),
                                                  .processes = {},
                                                  .exports = !reaches_buffers_,
                                                  .between_gpus = spans_devices_,
                                                  .process_has_gpus = false,
                                                  .exchange = std::move(pieces),
                                                  .stream = copies_,
                                                  .is_idle = [this] { return is_idle(); }};
  for (const DevicePlace& place : places) {
    settings.processes.push_back(place.process);
    settings.process_has_gpus |= place.process == own.process && place.device != own.device;
  }
  registrations_ = std::make_unique<Registrations>(std::move(settings));
  return {};
}

// One exchange: where this rank's segment is, its address for other hosts, and its inbox for pieces of
// registered memory.
Result<std::unique_ptr<PieceExchange>> DeviceRunner::connect(std::span<const DevicePlace> places,
                                                             bool gpu_direct) {
  comm::SharedSegments shared(bootstrap_);
  std::unique_ptr<PieceExchange> pieces;
  comm::WireToHosts wire(bootstrap_);
  if (reach_ == Reach::kHost) {
    RONDO_TRY(shared.add("rondo-device-slots", bootstrap_.local_ranks().size() * host_stride()));
  } else {
    auto made = RONDO_TRY(Segments::create(backend_.cuda, shape_,
                                           places[static_cast<size_t>(bootstrap_.rank())],
                                           !reaches_buffers_, copies_));
    segments_ = made.get();
    memory_->keep(std::move(made));
  }
  std::vector<int> fds = shared.fds();
  if (!reaches_buffers_ && can_register()) {
    pieces = RONDO_TRY(PieceExchange::open());
    fds.push_back(pieces->other_end());
  }
  if (!far_.empty()) RONDO_TRY(open_wire(wire, gpu_direct));
  base::ByteWriter own;
  own.put(segments_ != nullptr ? segments_->offer() : Offer{}).put_text(wire.address());
  auto all = RONDO_TRY(bootstrap_.all_gather(own.bytes(), fds));
  std::vector<Offer> offers;
  std::vector<std::string> addresses;
  for (const comm::Parcel& each : all) {
    base::ByteReader reader(each.bytes);
    offers.push_back(reader.get<Offer>());
    addresses.emplace_back(reader.get_text());
    if (!reader.is_done()) {
      return Status(Code::kBootstrap,
                    fmt::format("rank {} runs another version of rondo", offers.size() - 1));
    }
  }
  auto host_memory = RONDO_TRY(shared.take(all));
  if (segments_ != nullptr) RONDO_TRY(connect_segments(std::move(offers)));
  if (!host_memory.empty()) RONDO_TRY(connect_through_host(std::move(host_memory[0])));
  if (!far_.empty()) {
    auto transport = RONDO_TRY(wire.connect(std::move(addresses)));
    RONDO_TRY(start_proxy(std::move(transport)));
  }
  if (pieces) pieces->connect(all, places, bootstrap_.rank());
  return pieces;
}

Status DeviceRunner::connect_segments(std::vector<Offer> offers) {
  for (const int rank : far_) offers[static_cast<size_t>(rank)].address = nullptr;
  RONDO_TRY(segments_->connect(offers, static_cast<uint32_t>(bootstrap_.rank())));
  bases_.assign(segments_->bases().begin(), segments_->bases().end());
  return {};
}

size_t DeviceRunner::host_stride() const {
  constexpr size_t kPage = 4096;
  return (transport::cuda_ipc::SegmentLayout(shape_).bytes() + kPage - 1) / kPage * kPage;
}

// Some GPU cannot touch another's memory, but all can touch the host's: the segments lie there.
Status DeviceRunner::connect_through_host(transport::Segment memory) {
  bases_.resize(static_cast<size_t>(bootstrap_.size()));
  std::byte* base = memory.base();
  for (const int rank : bootstrap_.local_ranks()) {
    bases_[static_cast<size_t>(rank)] = base;
    base += host_stride();
  }
  return memory_->map(std::move(memory));
}

// Everything that follows from where the ranks are: all decide alike.
Status DeviceRunner::settle(const DeviceSettings& setup, std::span<const DevicePlace> places,
                            int at_once) {
  const auto rank = static_cast<size_t>(bootstrap_.rank());
  const DevicePlace& own = places[rank];
  reaches_buffers_ = reach_ != Reach::kHost && far_.empty();
  for (size_t r = 0; r < places.size(); ++r) {
    reaches_buffers_ = reaches_buffers_ && places[r].process == places[0].process;
    shares_device_ = shares_device_ || (r != rank && places[r].process == own.process &&
                                        places[r].device == own.device);
  }
  spans_devices_ = reaches_buffers_ && std::any_of(places.begin(), places.end(), [&](auto& each) {
                     return each.device != places[0].device;
                   });
  const bool near = far_.empty() && reach_ != Reach::kHost;
  const int max_channels = setup.max_channels > 0 ? setup.max_channels : tuner::most_channels(near);
  const int channels = setup.channels > 0
                           ? setup.channels
                           : transport::cuda_ipc::modest_channels(places, at_once, max_channels);
  RONDO_TRY(transport::cuda_ipc::check_residency(places, channels, at_once));
  claim_ = RONDO_TRY(Claim::take(own.device, channels, own.multiprocessors * at_once));
  const auto ranks = static_cast<int>(places.size());
  // Messages and operations of a rank take turns on its GPU: both have these places.
  const int message_channels = std::min(channels, kMaxMessageChannels);
  const int all_channels = channels + message_channels;
  const size_t most = reach_ == Reach::kHost ? kMostHostBytes
                      : far_.empty()         ? kMostSegmentBytes
                                             : kMostWireBytes;
  // Neither passes between hosts.
  const bool publishes = far_.empty();
  // An LL area is twice as large as its data, and every peer has two in each channel.
  const size_t most_ll = tuner::most_ll_bytes(near, ranks);
  const size_t ll = publishes ? 4 * most_ll * static_cast<size_t>(ranks * all_channels) : 0;
  profile_ = setup.links ? *setup.links
                         : tuner::device_profile(reach_, channels, ranks,
                                                 transport::cuda_ipc::most_on_a_device(places));
  const auto places_of = [&](uint32_t slots) {  // of a link
    return far_.empty() ? slots : transport::ucx::slots_of(slots);
  };
  if (!far_.empty()) {  // fewer slots, and longer
    profile_.slot_bytes = std::max(profile_.slot_bytes, profile_.wire_slot_bytes);
    profile_.slots = profile_.wire_slots;
  }
  tuner::LinkProfile segment = profile_;
  segment.slots = places_of(segment.slots);
  profile_.slot_bytes =
      tuner::fit_to_memory(segment, ranks, all_channels, most - std::min(most / 2, ll)).slot_bytes;
  if (setup.slots > 0) profile_.slots = setup.slots;
  if (setup.slot_bytes > 0) profile_.slot_bytes = setup.slot_bytes;
  shape_ = {.ranks = static_cast<uint32_t>(ranks),
            .channels = static_cast<uint32_t>(all_channels),
            .message_channels = static_cast<uint32_t>(message_channels),
            .depth = places_of(profile_.slots),
            .slot_bytes = profile_.slot_bytes,
            .slot_gap = publishes ? 0 : WireProxy::kGap,
            .publish_depth = publishes ? profile_.slots : 0,
            .publish_slot_bytes = profile_.slot_bytes,
            .ll_bytes = publishes ? std::min(most_ll, profile_.slot_bytes) : 0};
  if (profile_.on_device) {
    profile_.on_device->ll_bytes = shape_.ll_bytes * static_cast<uint64_t>(channels);
  }
  if (shares_device_ && rank == 0 && std::getenv("CUDA_DEVICE_MAX_CONNECTIONS") == nullptr) {
    log(LogLevel::kWarn,
        "several ranks of a process share a GPU and CUDA_DEVICE_MAX_CONNECTIONS is not set: set it "
        "to 32 before the program starts, or kernels of different streams may wait for each other");
  }
  return {};
}

std::string DeviceRunner::describe() const {
  return fmt::format("GPU {}: {} channels, {} slots of {} bytes, links: {}, by {}{}, buffers {}",
                     device_, channels(), shape_.depth, shape_.slot_bytes, profile_.name,
                     name(reach_),
                     far_.empty()     ? ""
                     : is_gpu_direct_ ? ", UCX by GPUDirect between hosts"
                                      : ", UCX between hosts",
                     reaches_buffers_ ? "within reach"
                     : can_register() ? "within reach where they are registered"
                                      : "through slots");
}

Status DeviceRunner::refusal(void* stream) const {
  void* const legacy = reinterpret_cast<void*>(1);  // cudaStreamLegacy
  if ((stream != nullptr && stream != legacy) || !shares_device_) return {};
  return comm::refuse(
      "CallOptions::stream is the default stream, which other ranks of this process use on the "
      "same "
      "GPU: kernels that wait for each other would stand in one line. Give every rank a stream");
}

Status DeviceRunner::refusal(const std::list<engine::Transfer>& messages) const {
  if (messages.size() > engine::DeviceGroup::kMostMessages) {
    return comm::refuse(fmt::format("a group of {} messages; on a device at most {} are possible",
                                    messages.size(), engine::DeviceGroup::kMostMessages));
  }
  for (const engine::Transfer& message : messages) {
    if (message.stream == messages.front().stream) continue;
    return comm::refuse(
        "the messages of a group are on several streams: they begin together, on one");
  }
  return {};
}

Status DeviceRunner::add(const std::list<engine::Transfer>& messages) {
  if (messages.empty()) return {};
  const DeviceScope scope(cuda_, device_);
  Status status = scope.status();
  if (status.ok()) status = begin_launch(messages.front().stream);
  if (!status.ok()) return raise_own(status);  // the others wait for this rank's kernel
  std::vector<engine::DeviceMessage> all;
  int64_t limit_ns = messages.front().timeout_ns;
  uint64_t bytes = 0;
  for (const engine::Transfer& t : messages) {
    all.push_back({.buffer = t.buffer,
                   .count = t.count,
                   .peer = static_cast<uint64_t>(t.peer),
                   .type = static_cast<uint64_t>(t.type),
                   .sends = t.sends});
    limit_ns = std::min(limit_ns, t.timeout_ns);
    if (t.sends) bytes += t.bytes();
    (t.sends ? begun_->read : begun_->written).push_back({t.buffer, t.buffer + t.bytes()});
  }
  engine::DeviceGroup& group = begun_->group;
  engine::put_messages(group, std::move(all));
  group.limit_ns = static_cast<uint64_t>(limit_ns);
  begun_->blocks = static_cast<int>(shape_.message_channels);
  bytes_sent_.store(bytes_sent() + bytes, std::memory_order_relaxed);
  return {};
}

Status DeviceRunner::add(const engine::Operation& operation, uint64_t sequence) {
  sequence_.store(sequence, std::memory_order_relaxed);  // one writer; read by check()
  const DeviceScope scope(cuda_, device_);
  Status status = scope.status();
  if (status.ok()) status = put(operation, sequence);
  return status.ok() ? status : raise_own(status);
}

Status DeviceRunner::run() {
  if (!begun_) return {};
  const DeviceScope scope(cuda_, device_);
  Status status = scope.status();
  if (status.ok()) status = launch();
  return status.ok() ? status : raise_own(status);
}

Status DeviceRunner::put(const engine::Operation& operation, uint64_t sequence) {
  const engine::Prepared& prepared = *operation.prepared;
  if (is_by_copies(prepared)) return put_copies(operation, sequence);
  const engine::ExecutionPlan& plan = prepared.direct ? *prepared.direct : prepared.staged;
  const Bytes in = {operation.in, operation.in + prepared.in_bytes};
  const Bytes out = {operation.out, operation.out + prepared.out_bytes};
  const ForPeers for_peers = RONDO_TRY(are_for_peers(operation));
  if (begun_ && must_wait_for_begun(in, out)) RONDO_TRY(launch());
  RONDO_TRY(begin_launch(operation.stream));
  const Programmed programs = RONDO_TRY(upload(operation));
  const Uploaded* const program = programs.plan;
  const int channels = std::max(program->channels, programs.staged ? programs.staged->channels : 0);
  begun_->read.push_back(in);
  begun_->written.push_back(out);
  const bool barrier = prepared.call.collective == Collective::kBarrier;
  engine::DeviceGroup& group = begun_->group;
  group.operations[group.operation_count++] = {
      .program = program->view,
      .geometries = program->geometries,
      .in = barrier ? programs_->scratch_in() : operation.in,
      .out = barrier ? programs_->scratch_out() : operation.out,
      .type = prepared.call.type,
      .op = prepared.op,
      .protocol = plan.by_ll ? engine::Protocol::kLl : engine::Protocol::kSimple,
      .direct = plan.direct,
      .divisor = prepared.divisor,
      .scaled = prepared.scaled,
      .for_peers = for_peers.all,
      .registrations = for_peers.registrations,
      .factor = operation.factor,
      .fingerprint = prepared.hash,
      .limit_ns = static_cast<uint64_t>(operation.timeout_ns),
      .sequence = sequence,
      .identity = prepared.identity,
      .channels = static_cast<uint32_t>(channels),
      .staged = programs.staged ? programs.staged->stored : nullptr};
  begun_->blocks = std::max(begun_->blocks, channels);
  bytes_sent_.store(bytes_sent() + program->bytes_moved, std::memory_order_relaxed);
  return {};
}

bool DeviceRunner::must_wait_for_begun(Bytes in, Bytes out) const {
  const auto meets = [](Bytes a, const std::vector<Bytes>& all) {
    return std::any_of(all.begin(), all.end(), [&](Bytes b) {
      return std::less<>()(a.begin, b.end) && std::less<>()(b.begin, a.end);
    });
  };
  return meets(in, begun_->written) || meets(out, begun_->written) || meets(out, begun_->read);
}

Status DeviceRunner::begin_launch(void* stream) {
  if (has_lost_.load(std::memory_order_seq_cst)) return explain_lost();
  uint64_t capture = RONDO_TRY(cuda_.capture_of(stream));
  if (begun_ && (begun_->stream != stream || begun_->capture != capture ||
                 begun_->group.operation_count == engine::DeviceGroup::kMostOperations)) {
    RONDO_TRY(launch());
  }
  if (!begun_) begun_.emplace(Begun{.stream = stream, .capture = capture});
  return {};
}

Status DeviceRunner::launch() {
  Begun begun = std::move(*begun_);
  begun_.reset();
  // Not by the handle, which may be that of an earlier stream whose work still runs.
  const uint64_t identity = RONDO_TRY(identify(begun.stream, begun.capture));
  RONDO_TRY(follow(begun.stream, identity, begun.capture));
  // On a stream of its own: GPUs have few queues for copies, and one that waits there for a kernel
  // would hold up the copy that a peer's kernel needs.
  if (begun.capture == 0 && programs_->has_new()) {
    RONDO_TRY(keep_bounded(begun.stream));
    RONDO_TRY(programs_->copy_new());
    RONDO_TRY(cuda_.record(copied_, copies_));
    RONDO_TRY(cuda_.wait(begun.stream, copied_));
  }
  if (begun.capture == 0) RONDO_TRY(keep_bounded(begun.stream));
  const int rank = bootstrap_.rank();
  RankControl& control = memory_->control(rank);
  engine::DeviceLinks links = {.shape = shape_,
                               .rank = static_cast<uint32_t>(rank),
                               .one_gpu = reach_ == Reach::kSameGpu && reaches_buffers_,
                               .host_abort = &control.abort,
                               .reports = control.reports,
                               .mappings = registrations_->table(),
                               .inbound = inbound_,
                               .outbound = outbound_,
                               .inbound_slots = slots_of(inbound_, inbound_slots_),
                               .outbound_slots = slots_of(outbound_, outbound_slots_),
                               .segments = {}};
  for (const int far : far_) links.far |= uint64_t{1} << far;
  std::copy(bases_.begin(), bases_.end(), links.segments);
  void* arguments[] = {&links, &begun.group};
  const bool by_ll = engine::goes_by_ll(begun.group);
  RONDO_TRY(cuda_.launch({.kernel = by_ll ? backend_.ll_kernel : backend_.kernel,
                          .blocks = begun.blocks,
                          .threads = by_ll ? backend_.ll_threads : backend_.threads,
                          .shared_bytes = 0,
                          .arguments = arguments,
                          .stream = begun.stream}));
  has_launched_.store(true, std::memory_order_relaxed);
  if (proxy_) proxy_->wake();
  if (begun.capture != 0 && !has_captured_.exchange(true, std::memory_order_relaxed)) {
    RONDO_TRY(watch_replays());
  }
  RONDO_TRY(cuda_.record(begun.capture != 0 ? captured_ : launched_, begun.stream));
  (begun.capture != 0 ? last_captured_ : last_launched_) = {.stream = identity,
                                                            .capture = begun.capture};
  return {};
}

// CUDA takes some thousand launches, and then holds the caller up inside, perhaps with a lock that
// another rank's thread needs for the launch that this one waits for. So it is held up here before.
Status DeviceRunner::keep_bounded(Stream stream) {
  if (++launches_ % kMarkEvery != 0) return {};
  const Event mark = marks_[launches_ / kMarkEvery % 2];  // of the last time but one
  // Kernels have limits of their own, so this ends.
  for (int turn = 1;; ++turn) {
    Result<bool> happened = [&]() -> Result<bool> {
      const OutsideCapture outside(cuda_);
      RONDO_TRY(outside.status());
      return cuda_.has_happened(mark);
    }();
    RONDO_TRY(happened.status());
    if (*happened) return cuda_.record(mark, stream);
    RONDO_TRY(check(turn % kTurnsOfASecond == 0));
    nanosleep(&kPause, nullptr);
  }
}

// CUDA does not identify a stream that is captured, and ends the capture if it is asked (seen with
// CUDA 13.0). Inside of one capture handles are enough.
Result<uint64_t> DeviceRunner::identify(Stream stream, uint64_t capture) const {
  if (capture != 0) return uint64_t{reinterpret_cast<uintptr_t>(stream)};
  const OutsideCapture outside(cuda_);
  RONDO_TRY(outside.status());
  return cuda_.identity_of(stream);
}

Status DeviceRunner::follow(Stream stream, uint64_t identity, uint64_t capture) {
  const Last& last = capture != 0 ? last_captured_ : last_launched_;
  if (!last.stream || *last.stream == identity || last.capture != capture) return {};
  return cuda_.wait(stream, capture != 0 ? captured_ : launched_);
}

}  // namespace rondo::device
