// Operations by the GPU's copy engines (algorithms/copy_engine.cpp), NCCL's CE collectives: on the
// caller's stream a barrier of the ranks' kernels, copies that fetch from peers, and a barrier once
// more. The first says that all inputs are there, the second that nobody reads them any more; each
// is one block, which waits.
//
// The addresses of copies are the host's to give, and no call waits for a peer. So all that a rank
// knows of peers' buffers is where its own lie: every rank passes memory of the same registration,
// at the same offset, and the first barrier fails where they do not. CUDA carries the copies out
// even then, so they only read from peers, and only what these have registered.
//
// A copy within one GPU, as that of a rank's own block, may be a kernel of CUDA's.
#include <fmt/format.h>

#include "comm/algorithms/algorithm.hpp"
#include "comm/device/device_runner.hpp"
#include "comm/schedule/program.hpp"

namespace rondo::device {

/// An operation's place in registered memory.
struct DeviceRunner::Copies {
  Registrations::Symmetric memory;
  /// In an all_gather in place, how far a rank's In lies after that of the rank before; else 0.
  size_t stride;
  uint64_t
      place;  // what must be every rank's: twice the offset of rank 0's In or Out; 1 more: a stride
};

struct DeviceRunner::Copy {
  std::byte* to;
  const std::byte* from;
  size_t bytes;
  bool met;      // behind a wait for peers
  bool fetches;  // from a peer
};

Status DeviceRunner::need_barrier() {
  if (barrier_ != nullptr) return {};
  auto built = RONDO_TRY(algorithms::build(Collective::kBarrier, Algorithm::kFlat,
                                           bootstrap_.size(), bootstrap_.rank(), 0));
  auto program = RONDO_TRY(
      schedule::lower(built, 1, {.element_bytes = 1, .slot_bytes = 0, .depth = 0, .channels = 1}));
  auto barrier = std::make_shared<engine::Prepared>();
  barrier->element_bytes = 1;
  barrier->staged.program = std::move(program);
  barrier_ = std::move(barrier);
  return {};
}

Result<DeviceRunner::Programmed> DeviceRunner::find_barrier(bool captured) {
  RONDO_TRY(need_barrier());
  const Uploaded* const barrier =
      RONDO_TRY(programs_->find(barrier_->staged, barrier_, bootstrap_.size(), captured));
  return Programmed{barrier, nullptr};
}

Result<DeviceRunner::Copies> DeviceRunner::find_copies(const engine::Operation& operation) {
  const engine::Prepared& prepared = *operation.prepared;
  const bool fetches_in = prepared.direct->touched_in != algorithms::Touched::kNowhere;
  const std::byte* const memory = fetches_in ? operation.in : operation.out;
  const size_t bytes = fetches_in ? prepared.in_bytes : prepared.out_bytes;
  Copies copies = {
      .memory = registrations_->find_symmetric(memory, bytes), .stride = 0, .place = 0};
  if (copies.memory.word == 0) {
    return Status(
        Code::kUnavailable,
        fmt::format("{}: rank {}'s {} ({} bytes at {}) is not in registered memory, as "
                    "copy-engine needs it: register it on every rank (register_device_memory), or "
                    "leave the algorithm to rondo",
                    prepared.call.to_string(), board_.rank(), fetches_in ? "input" : "output",
                    bytes, fmt::ptr(memory)));
  }
  if (prepared.in_place && prepared.call.collective == Collective::kAllGather)
    copies.stride = bytes;
  const size_t first =
      copies.memory.offset - static_cast<size_t>(board_.rank()) * copies.stride;  // modulo 2^64
  copies.place = 2 * first + (copies.stride != 0 ? 1 : 0);
  return copies;
}

Result<std::vector<DeviceRunner::Copy>> DeviceRunner::list_copies(
    const engine::Operation& operation, const Copies& copies) {
  const engine::Prepared& prepared = *operation.prepared;
  const schedule::Program& program = prepared.direct->program;
  const auto own = static_cast<size_t>(board_.rank());
  std::vector<Copy> list;
  bool met = false;
  for (const schedule::Instruction& step : program.instructions) {
    if (step.action == schedule::Action::kWait) met = true;
    if (step.action != schedule::Action::kMove) continue;
    const schedule::Location &source = program.operands[step.first],
                             &destination = program.operands[step.first + 1];
    const size_t bytes = step.length * prepared.element_bytes;
    const size_t offset = source.offset * prepared.element_bytes;
    std::byte* const to = operation.out + destination.offset * prepared.element_bytes;
    if (!schedule::in_peer(source)) {
      list.push_back(
          {.to = to, .from = operation.in + offset, .bytes = bytes, .met = met, .fetches = false});
      continue;
    }
    const auto peer = static_cast<size_t>(source.peer);
    const std::span<std::byte> part = copies.memory.parts[peer];
    const size_t from = copies.memory.offset + (peer - own) * copies.stride + offset;
    if (from > part.size() || part.size() - from < bytes) {
      return Status(
          Code::kMismatch,
          fmt::format("{}: rank {} would fetch {} bytes at offset {} of what rank {} has "
                      "registered, which is {} bytes: by copy-engine every rank passes memory of "
                      "the same registration, at the same offset",
                      prepared.call.to_string(), own, bytes, static_cast<int64_t>(from), peer,
                      part.size()));
    }
    list.push_back(
        {.to = to, .from = part.data() + from, .bytes = bytes, .met = met, .fetches = true});
  }
  return list;
}

Status DeviceRunner::put_copies(const engine::Operation& operation, uint64_t sequence) {
  const Copies copies = RONDO_TRY(find_copies(operation));
  const std::vector<Copy> list = RONDO_TRY(list_copies(operation, copies));
  if (begun_) RONDO_TRY(launch());
  // As launch() does, before which a broadcast's root copies its data.
  const uint64_t capture = RONDO_TRY(cuda_.capture_of(operation.stream));
  const uint64_t identity = RONDO_TRY(identify(operation.stream, capture));
  RONDO_TRY(follow(operation.stream, identity, capture));
  bool has_met = false;
  uint64_t fetched = 0;
  for (const Copy& copy : list) {
    if (copy.met && !std::exchange(has_met, true)) {
      RONDO_TRY(launch_barrier(operation, sequence, &copies));
    }
    if (copy.fetches) fetched += copy.bytes;
    RONDO_TRY(enqueue_copy(copy, operation.stream));
  }
  if (!has_met) RONDO_TRY(launch_barrier(operation, sequence, &copies));
  RONDO_TRY(launch_barrier(operation, sequence, nullptr));
  bytes_sent_.store(bytes_sent() + fetched, std::memory_order_relaxed);
  return {};
}

/// `symmetric`: all ranks must have the same; null: nothing.
Status DeviceRunner::launch_barrier(const engine::Operation& operation, uint64_t sequence,
                                    const Copies* symmetric) {
  RONDO_TRY(begin_launch(operation.stream));
  const Programmed programs = RONDO_TRY(upload(operation));
  engine::DeviceOperation barrier = {.program = programs.plan->view,
                                     .geometries = programs.plan->geometries,
                                     .in = programs_->scratch_in(),
                                     .out = programs_->scratch_out(),
                                     .type = DataType::kUint8,
                                     .op = ReduceOp::kSum,
                                     .protocol = engine::Protocol::kSimple,
                                     .direct = symmetric != nullptr,
                                     .divisor = 1,
                                     .scaled = false,
                                     .factor = 1,
                                     .fingerprint = operation.prepared->hash,
                                     .limit_ns = static_cast<uint64_t>(operation.timeout_ns),
                                     .sequence = sequence,
                                     .channels = 1};
  if (symmetric != nullptr) {
    barrier.symmetric = true;
    barrier.registrations.in = symmetric->memory.word;
    barrier.place = symmetric->place;
  }
  begun_->group.operations[begun_->group.operation_count++] = barrier;
  begun_->blocks = 1;
  return launch();
}

/// Copies count as launches, which CUDA takes only so many of.
Status DeviceRunner::enqueue_copy(const Copy& copy, Stream stream) {
  if (copy.to == copy.from || copy.bytes == 0) return {};
  const uint64_t capture = RONDO_TRY(cuda_.capture_of(stream));
  if (capture == 0) RONDO_TRY(keep_bounded(stream));
  return cuda_.copy(copy.to, copy.from, copy.bytes, stream);
}

}  // namespace rondo::device
