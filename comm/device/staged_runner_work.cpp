// A staged runner's thread: copies down, the host's operation, copies up.
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <ctime>
#include <functional>
#include <limits>
#include <utility>

#include "comm/base/clock.hpp"
#include "comm/base/guarded.hpp"
#include "comm/device/staged_runner.hpp"
#include "comm/host/wait.hpp"

namespace rondo::device {
namespace {

constexpr timespec kBetweenPolls{0, 50'000};
constexpr int kTurnsBeforePauses = 200;
constexpr int64_t kBetweenLooksNs = 1'000'000;
// How long the watch may take to see what another communicator has found.
constexpr int64_t kUntilExplainedNs = 1'000'000'000;
// At least so long copies may take, whatever the timeout: others' may come before them.
constexpr int64_t kLeastCopyNs = 2'000'000'000;
// How long they may take when no stream holds them up any more.
constexpr int64_t kLastCopyNs = 10'000'000'000;

constexpr size_t align_image(size_t bytes) { return (bytes + 63) / 64 * 64; }

void pause(int turn) {
  if (turn < kTurnsBeforePauses) {
    sched_yield();
  } else {
    nanosleep(&kBetweenPolls, nullptr);
  }
}

/// Where a call's blocks lie in a buffer: bytes from its beginning.
struct Block {
  size_t begin, bytes;
};

/// What is read, or written, of a buffer; between the blocks of a _v collective nothing may be.
std::vector<Block> blocks_of(const engine::Prepared& prepared, bool out) {
  const schedule::BlockLayout& layout = prepared.layout;
  const auto& counts = out ? layout.out_counts : layout.in_counts;
  const auto& offsets = out ? layout.out_offsets : layout.in_offsets;
  const Form form = form_of(prepared.call.collective);
  if (!is_varying(prepared.call.collective) || (out ? form.out : form.in) == Holds::kOne) {
    return {{0, out ? prepared.out_bytes : prepared.in_bytes}};
  }
  std::vector<Block> blocks;
  for (size_t b = 0; b < counts.size(); ++b) {
    blocks.push_back({offsets[b] * prepared.element_bytes, counts[b] * prepared.element_bytes});
  }
  return blocks;
}

}  // namespace

void StagedRunner::work() {
  engine::ask_for_short_turns();
  note_cuda();
  Status status = cuda_.set_device(settings_.device);
  const OutsideCapture outside(cuda_);
  in_cuda_ns_ = 0;
  if (status.ok()) status = outside.status();
  if (!status.ok()) (void)runner_.fail(status);
  while (true) {
    Enqueued* call = nullptr;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return ends_ || !calls_.empty(); });
      if (calls_.empty()) return;
      call = calls_.front().get();
    }
    note_cuda();
    status = base::guarded([&] { return carry_out(*call); });
    if (!status.ok()) {
      note_cuda();
      (void)settle_copies();  // the buffers are the caller's from now on
      in_cuda_ns_ = 0;
      (void)runner_.fail(status);
      status = board_.error();
    }
    in_cuda_ns_ = 0;
    give_events(call->ready);
    if (call->on_host != nullptr) call->outcome.set_value(status);
    // Release: what a stream that sees it reads has been written. Pairs with its wait.
    std::atomic_ref(*done_).store(call->number, std::memory_order_release);
    const std::lock_guard lock(mutex_);
    calls_.pop_front();
    changed_.notify_all();
  }
}

Status StagedRunner::carry_out(Enqueued& call) {
  if (call.carrier != nullptr) {
    Status status = oversee(call);
    if (!status.ok()) call.carrier->abort(status);
    return status;
  }
  if (board_.has_error()) return board_.error();
  for (Event ready : call.ready) RONDO_TRY(await(ready));
  note_stage_(true);
  Status status = base::guarded([&]() -> Status {
    if (call.on_host != nullptr) return run(*call.on_host);
    if (!call.messages.empty()) RONDO_TRY(carry_out(call.messages));
    for (engine::Operation& operation : call.operations) RONDO_TRY(carry_out(operation));
    return {};
  });
  note_stage_(false);
  return status;
}

void StagedRunner::note_cuda() { in_cuda_ns_ = base::now_ns(); }

/// On the host, which has deadlines of its own.
Status StagedRunner::run(engine::Operation& operation) {
  in_cuda_ns_ = 0;
  const Status status = runner_.run(operation);
  note_cuda();
  return status;
}

Status StagedRunner::carry_out(engine::Operation operation) {
  const engine::Prepared& prepared = *operation.prepared;
  if (prepared.call.collective == Collective::kBarrier) return run(operation);
  if (const StagedCut cut = cut_of(prepared); cut.piece > 0) return carry_out(operation, cut);
  const std::byte* const in = operation.in;
  std::byte* const out = operation.out;
  // In place the images lie to each other as the buffers do.
  const std::byte* const first = std::less<>()(in, out) ? in : out;
  size_t in_at = prepared.in_place ? static_cast<size_t>(in - first) : 0;
  size_t out_at =
      prepared.in_place ? static_cast<size_t>(out - first) : align_image(prepared.in_bytes);
  std::byte* const image =
      RONDO_TRY(image_of(std::max(in_at + prepared.in_bytes, out_at + prepared.out_bytes)));
  std::vector<StagedPart> read, written;
  if (in != nullptr) {
    operation.in = image + in_at;
    for (const Block& b : blocks_of(prepared, false)) {
      read.push_back({const_cast<std::byte*>(in) + b.begin, image + in_at + b.begin, b.bytes});
    }
  }
  if (out != nullptr) {
    operation.out = image + out_at;
    for (const Block& b : blocks_of(prepared, true)) {
      written.push_back({out + b.begin, image + out_at + b.begin, b.bytes});
    }
  }
  RONDO_TRY(copy_down(read));
  RONDO_TRY(run(operation));
  return copy_up(written);
}

Status StagedRunner::carry_out(std::list<engine::Transfer>& messages) {
  size_t bytes = 0;
  for (const engine::Transfer& message : messages) bytes += align_image(message.bytes());
  std::byte* image = RONDO_TRY(image_of(bytes));
  std::vector<StagedPart> read, written;
  for (engine::Transfer& message : messages) {
    (message.sends ? read : written).push_back({message.buffer, image, message.bytes()});
    message.buffer = image;
    image += align_image(message.bytes());
  }
  RONDO_TRY(copy_down(read));
  runner_.lanes().push(messages);
  std::list<engine::Operation> none;
  in_cuda_ns_ = 0;
  RONDO_TRY(runner_.run(none));
  note_cuda();
  return copy_up(written);
}

Status StagedRunner::oversee(Enqueued& call) {
  if (board_.has_error()) return board_.error();
  const engine::Prepared& prepared = *call.operations.front().prepared;
  const uint64_t sequence = runner_.record_begin(prepared);
  int64_t looked_ns = call.put.ok() ? base::now_ns() : 0;
  for (int turn = 0;; ++turn) {
    bool happened = RONDO_TRY(cuda_.has_happened(call.ready[0]));
    note_cuda();
    const int64_t now_ns = base::now_ns();
    if (happened || now_ns - looked_ns > kBetweenLooksNs) {
      RONDO_TRY(look_round(prepared, sequence, *call.carrier));
      RONDO_TRY(call.put);
      looked_ns = now_ns;
    }
    if (board_.has_error()) return board_.error();
    if (happened) break;
    pause(turn);
  }
  watch_.done();
  runner_.record_end(sequence);
  return {};
}

/// The watch finds calls that differ and ranks that have ended, by this communicator's numbers. The
/// carrier finds these, too, perhaps before the watch, and the rest, deadlines included.
Status StagedRunner::look_round(const engine::Prepared& prepared, uint64_t sequence,
                                StreamCarrier& carrier) {
  const int64_t began = base::now_ns();
  Status carried = carrier.look();
  const bool may_be_explained =
      carried.code() == Code::kMismatch || carried.code() == Code::kPeerDied;
  const StreamCarrier::AwaitedRank awaited = carrier.awaited();
  do {
    RONDO_TRY(watch_.check({.sequence = sequence,
                            .call = &prepared.call,
                            .algorithm = Algorithm::kHierarchical,
                            .peer = awaited.rank,
                            .step = 0,
                            .round = 0,
                            .since_ns = awaited.since_ns,
                            .timeout_ns = std::numeric_limits<int64_t>::max()}));
    if (may_be_explained) nanosleep(&kBetweenPolls, nullptr);
  } while (may_be_explained && base::now_ns() - began < kUntilExplainedNs);
  return carried;
}

StagedCut StagedRunner::cut_of(const engine::Prepared& prepared) const {
  const board::Call& call = prepared.call;
  const Form form = form_of(call.collective);
  const bool has_chunks = form.in == Holds::kAll;  // and no block of each rank
  StagedCut cut = {
      .in = form.in,
      .out = form.out,
      .element_bytes = prepared.element_bytes,
      .blocks = static_cast<size_t>(has_chunks ? prepared.staged.chunks : board_.ranks()),
      .block = has_chunks ? prepared.staged.program.channels.front().block : call.count,
      .total = 0,
      .unit = std::max<size_t>(1, 64 / prepared.element_bytes),
      .piece = 0};
  cut.total = has_chunks ? call.count : cut.blocks * cut.block;
  const auto bytes_of = [&](size_t count) {
    return align_image(cut.bytes(cut.in, count)) + cut.bytes(cut.out, count);
  };
  if (is_varying(call.collective) || bytes_of(cut.block) <= backend_.staging_bytes) return cut;
  cut.piece = third() / bytes_of(cut.unit) * cut.unit;
  return cut;
}

/// While a piece is on the wire, the next one is copied down and the one before it up: pieces share
/// no element, neither in buffers nor in images, until the fourth takes the first one's image.
Status StagedRunner::carry_out(const engine::Operation& whole, const StagedCut& cut) {
  const auto elements_of = [&](size_t k) { return std::min(cut.piece, cut.block - k * cut.piece); };
  // Of a piece's blocks in its image; chunks are as long as they must be to stay the same ones.
  const auto stride_of = [&](size_t k) {
    const size_t elements = elements_of(k);
    return cut.in == Holds::kAll ? (elements + cut.unit - 1) / cut.unit * cut.unit : elements;
  };
  const auto parts_of = [&](size_t k, bool out) {
    std::vector<StagedPart> parts;
    const Holds holds = out ? cut.out : cut.in;
    auto* const buffer = out ? whole.out : const_cast<std::byte*>(whole.in);
    if (buffer == nullptr) return parts;
    std::byte* image = staging_ + k % 3 * third();
    if (out) image += align_image(cut.bytes(cut.in, stride_of(k)));
    for (size_t b = 0; b < (holds == Holds::kOne ? 1 : cut.blocks); ++b) {
      const size_t begin = b * cut.block + k * cut.piece;
      if (begin >= cut.total) break;
      const size_t elements = std::min(elements_of(k), cut.total - begin);
      parts.push_back({buffer + begin * cut.element_bytes,
                       image + b * stride_of(k) * cut.element_bytes, elements * cut.element_bytes});
    }
    return parts;
  };
  const auto begin = [&](size_t k) -> Status {
    if (k >= 3) RONDO_TRY(await_copies(copied_up_[k % 3]));
    for (const StagedPart& part : parts_of(k, false)) {
      RONDO_TRY(cuda_.copy(part.host, part.device, part.bytes, down_));
    }
    return cuda_.record(copied_down_[k % 3], down_);
  };
  engine::Operation operation = whole;
  board::Call call = whole.prepared->call;
  call.algorithm = whole.prepared->staged.algorithm;
  RONDO_TRY(begin(0));
  for (size_t k = 0; k < cut.pieces(); ++k) {
    if (k + 1 < cut.pieces()) RONDO_TRY(begin(k + 1));
    const size_t stride = stride_of(k);
    call.count = cut.in == Holds::kAll ? cut.blocks * stride : stride;
    if (k == 0 || call != operation.prepared->call) {
      auto prepared = RONDO_TRY(settings_.prepare(call));
      operation.prepared = prepared.get();
      operation.keep_alive = std::move(prepared);
    }
    std::byte* const image = staging_ + k % 3 * third();
    if (whole.in != nullptr) operation.in = image;
    if (whole.out != nullptr) operation.out = image + align_image(cut.bytes(cut.in, stride));
    RONDO_TRY(await_copies(copied_down_[k % 3]));
    RONDO_TRY(run(operation));
    for (const StagedPart& part : parts_of(k, true)) {
      RONDO_TRY(cuda_.copy(part.device, part.host, part.bytes, up_));
    }
    RONDO_TRY(cuda_.record(copied_up_[k % 3], up_));
  }
  return settle_copies();
}

/// Awaits all copies, which wait for nobody.
Status StagedRunner::settle_copies() {
  const auto settle = [&](Event event, Stream stream) -> Status {
    RONDO_TRY(cuda_.record(event, stream));
    return await_copies(event);
  };
  const Status down = settle(copied_down_[0], down_), up = settle(copied_up_[0], up_);
  return down.ok() ? up : down;
}

/// In the staging memory, if it fits: nothing is pinned or freed between creation and end, because
/// CUDA would wait for the streams, which wait for this thread.
Result<std::byte*> StagedRunner::image_of(size_t bytes) {
  if (bytes <= backend_.staging_bytes) return staging_;
  if (bytes > large_bytes_) {
    large_.reset();
    large_bytes_ = 0;
    large_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    large_bytes_ = bytes;
  }
  return large_.get();
}

Status StagedRunner::copy_down(std::span<const StagedPart> parts) {
  const size_t half = backend_.staging_bytes / 2;
  StagedPart copied[2] = {};  // to each half of the staging memory, and not yet to its image
  const auto finish = [&](size_t h) -> Status {
    if (copied[h].bytes == 0) return {};
    RONDO_TRY(await_copies(copied_down_[h]));
    std::memcpy(copied[h].host, staging_ + h * half, std::exchange(copied[h].bytes, 0));
    return {};
  };
  size_t turn = 0;
  for (const StagedPart& part : parts) {
    if (is_pinned(part.host)) {
      if (part.bytes > 0) RONDO_TRY(cuda_.copy(part.host, part.device, part.bytes, down_));
      continue;
    }
    for (size_t at = 0; at < part.bytes; at += half, ++turn) {
      const size_t h = turn % 2;
      RONDO_TRY(finish(h));
      copied[h] = {part.device + at, part.host + at, std::min(half, part.bytes - at)};
      RONDO_TRY(cuda_.copy(staging_ + h * half, copied[h].device, copied[h].bytes, down_));
      RONDO_TRY(cuda_.record(copied_down_[h], down_));
    }
  }
  RONDO_TRY(finish(turn % 2));
  RONDO_TRY(finish((turn + 1) % 2));
  RONDO_TRY(cuda_.record(copied_down_[0], down_));
  return await_copies(copied_down_[0]);
}

Status StagedRunner::copy_up(std::span<const StagedPart> parts) {
  const size_t half = backend_.staging_bytes / 2;
  size_t turn = 0;
  for (const StagedPart& part : parts) {
    if (is_pinned(part.host)) {
      if (part.bytes > 0) RONDO_TRY(cuda_.copy(part.device, part.host, part.bytes, up_));
      continue;
    }
    for (size_t at = 0; at < part.bytes; at += half, ++turn) {
      const size_t h = turn % 2, bytes = std::min(half, part.bytes - at);
      if (turn >= 2) RONDO_TRY(await_copies(copied_up_[h]));
      std::memcpy(staging_ + h * half, part.host + at, bytes);
      RONDO_TRY(cuda_.copy(part.device + at, staging_ + h * half, bytes, up_));
      RONDO_TRY(cuda_.record(copied_up_[h], up_));
    }
  }
  RONDO_TRY(cuda_.record(copied_up_[0], up_));
  return await_copies(copied_up_[0]);
}

/// Ends with the communicator's error, if there is one before the event happens.
Status StagedRunner::await(Event event) {
  for (int turn = 0;; ++turn) {
    bool happened = RONDO_TRY(cuda_.has_happened(event));
    if (happened) return {};
    if (board_.has_error()) return board_.error();
    note_cuda();
    pause(turn);
  }
}

/// Also after an error: the memory is in use until the copies have ended. They wait for no peer, but
/// may queue after a stream that waits for `done_`; so after the longest wait all streams go on. If
/// the copies do not end even then, the memory is theirs from then on.
Status StagedRunner::await_copies(Event event) {
  if (is_abandoned_) return board_.error();
  const int64_t began = base::now_ns();
  const int64_t longest_ns = longest_in_cuda_ns();
  bool is_late = false;
  for (int turn = 0;; ++turn) {
    bool happened = RONDO_TRY(cuda_.has_happened(event));
    note_cuda();
    if (happened) return is_late ? board_.error() : Status();
    const int64_t waited_ns = base::now_ns() - began;
    if (is_late && waited_ns > longest_ns + std::min(longest_ns, kLastCopyNs)) {
      is_abandoned_ = true;
      return board_.error();
    }
    if (!is_late && waited_ns > longest_ns) {
      is_late = true;
      let_streams_go(
          {Code::kTimeout,
           fmt::format(
               "copies between rank {} and its GPU {} did not end within {} ms: if streams "
               "that wait for rondo hold them up, set CUDA_DEVICE_MAX_CONNECTIONS=32 before "
               "the program starts",
               board_.rank(), settings_.device, longest_ns / 1'000'000)});
    }
    pause(turn);
  }
}

int64_t StagedRunner::longest_in_cuda_ns() const {
  return std::max(settings_.longest_wait_ns, kLeastCopyNs);
}

/// Fails the communicator, and with it every call that a stream waits for.
void StagedRunner::let_streams_go(Status why) {
  (void)board_.raise(why);
  const std::lock_guard lock(mutex_);
  if (calls_.empty()) return;
  // Release: as at the end of a call. A later call, or a smaller number, follows as its turn comes.
  std::atomic_ref(*done_).store(calls_.back()->number, std::memory_order_release);
}

}  // namespace rondo::device
