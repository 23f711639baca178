// See staged_runner.hpp.
#include "comm/device/staged_runner.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <ctime>
#include <functional>
#include <system_error>
#include <utility>

#include "comm/base/clock.hpp"
#include "comm/base/guarded.hpp"
#include "comm/base/refuse.hpp"
#include "comm/host/wait.hpp"
#include "rondo/log.hpp"

namespace rondo::device {
namespace {

constexpr size_t kWordBytes = 4096;  // what is before the staging memory: a page
constexpr timespec kNap{0, 50'000};
constexpr int kTurnsBeforePauses = 200;
// How long streams may take to pass what has been done.
constexpr int64_t kLastWaitNs = 10'000'000'000;

constexpr size_t align_up(size_t bytes) { return (bytes + 63) / 64 * 64; }

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

Result<std::unique_ptr<StagedRunner>> StagedRunner::create(engine::Runner& runner,
                                                           board::Board& board,
                                                           const StagedSettings& settings) {
  auto backend = RONDO_TRY(open_backend());
  int devices = RONDO_TRY(backend.cuda->device_count());
  if (settings.device >= devices) {
    return comm::refuse(
        fmt::format("Config::device is {}, but CUDA sees {} devices: 0 to {} are possible",
                    settings.device, devices, devices - 1));
  }
  std::unique_ptr<StagedRunner> made(new StagedRunner(std::move(backend), runner, board, settings));
  RONDO_TRY(made->open());
  return made;
}

StagedRunner::StagedRunner(GpuBackend backend, engine::Runner& runner, board::Board& board,
                           const StagedSettings& settings)
    : backend_(std::move(backend)),
      cuda_(*backend_.cuda),
      runner_(runner),
      board_(board),
      settings_(settings) {}

Status StagedRunner::open() {
  const DeviceScope scope(cuda_, settings_.device);
  RONDO_TRY(scope.status());
  copies_ = RONDO_TRY(cuda_.create_stream());
  for (Event& event : copied_) {
    Event created = RONDO_TRY(cuda_.create_event());
    event = created;
  }
  pinned_ = RONDO_TRY(cuda_.allocate_mapped(kWordBytes + backend_.staging_bytes));
  done_ = reinterpret_cast<uint32_t*>(pinned_);
  staging_ = pinned_ + kWordBytes;
  *done_ = 0;
  try {
    thread_ = std::thread([this] { work(); });
  } catch (const std::system_error& error) {
    return {Code::kResourceExhausted,
            fmt::format("no thread for a communicator on GPUs of several hosts: {}", error.what())};
  }
  return {};
}

StagedRunner::~StagedRunner() {
  const DeviceScope scope(cuda_, settings_.device);
  if (thread_.joinable()) {
    if (!await_calls()) {
      (void)board_.raise(
          {Code::kAborted,
           fmt::format("rank {} was destroyed before its operations had ended", board_.rank())});
    }
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }
  const OutsideCapture outside(cuda_);
  const int64_t began = base::now_ns();
  for (recycle_passed(); !passed_.empty(); recycle_passed()) {
    if (base::now_ns() - began > kLastWaitNs) {
      log(LogLevel::kError,
          fmt::format("a stream of rank {} does not reach the end of a call that was enqueued on "
                      "it: the memory for which it waits is left to it",
                      board_.rank()));
      return;
    }
    nanosleep(&kNap, nullptr);
  }
  for (Event event : all_events_) (void)cuda_.destroy_event(event);
  for (Event event : copied_) {
    if (event != nullptr) (void)cuda_.destroy_event(event);
  }
  if (copies_ != nullptr) (void)cuda_.destroy_stream(copies_);
  if (pinned_ != nullptr) (void)cuda_.release_mapped(pinned_);
}

/// False: not all have ended within the longest wait, and none has failed.
bool StagedRunner::await_calls() {
  const int64_t began = base::now_ns();
  while (!board_.has_error()) {
    {
      const std::lock_guard lock(mutex_);
      if (calls_.empty()) return true;
    }
    if (base::now_ns() - began > settings_.longest_wait_ns) return false;
    nanosleep(&kNap, nullptr);
  }
  return true;
}

std::string StagedRunner::describe() const {
  return fmt::format("GPU {}: staged through {} KiB of pinned host memory", settings_.device,
                     backend_.staging_bytes >> 10);
}

Status StagedRunner::refusal(void* stream) const {
  void* const legacy = reinterpret_cast<void*>(1);  // cudaStreamLegacy
  if ((stream != nullptr && stream != legacy) || !settings_.shares_device) return {};
  return comm::refuse(
      "CallOptions::stream is the default stream, which other ranks of this process use on the "
      "same GPU: their calls would stand in one line with this one's, which waits for them. Give "
      "every rank a stream");
}

Status StagedRunner::enqueue(std::list<engine::Operation>& operations,
                             std::list<engine::Transfer>& messages) {
  std::vector<void*> streams;
  const auto add = [&streams](void* stream) {
    if (std::find(streams.begin(), streams.end(), stream) == streams.end()) {
      streams.push_back(stream);
    }
  };
  for (const engine::Operation& operation : operations) add(operation.stream);
  for (const engine::Transfer& message : messages) add(message.stream);
  if (streams.empty()) return {};
  const DeviceScope scope(cuda_, settings_.device);
  Status status = scope.status();
  for (void* const stream : streams) {
    if (!status.ok()) break;
    Result<uint64_t> capture = cuda_.capture_of(stream);
    status = capture.status();
    if (status.ok() && *capture != 0) {
      return comm::refuse(
          "the stream is being captured: with ranks on several hosts the host's threads carry "
          "operations out, which a graph cannot replay. Enqueue them between graphs, or capture "
          "those of a communicator of one host, by split()");
    }
  }
  if (status.ok()) status = put(operations, messages, streams);
  return status.ok() ? status : board_.raise(status);
}

Status StagedRunner::put(std::list<engine::Operation>& operations,
                         std::list<engine::Transfer>& messages, std::span<void* const> streams) {
  RONDO_TRY(await_room());
  auto call = std::make_unique<Enqueued>();
  for (void* const stream : streams) {
    Event ready = RONDO_TRY(take_event());
    call->ready.push_back(ready);
    RONDO_TRY(cuda_.record(ready, stream));
  }
  call->operations.splice(call->operations.end(), operations);
  call->messages.splice(call->messages.end(), messages);
  const uint32_t number = push(std::move(call));
  for (void* const stream : streams) {
    RONDO_TRY(cuda_.wait_for_word(stream, done_, number));
    Event passed = RONDO_TRY(take_event());
    RONDO_TRY(cuda_.record(passed, stream));
    passed_.push_back(passed);
  }
  return {};
}

uint32_t StagedRunner::push(std::unique_ptr<Enqueued> call) {
  const uint32_t number = call->number = ++last_number_;
  const std::lock_guard lock(mutex_);
  calls_.push_back(std::move(call));
  changed_.notify_all();
  return number;
}

Status StagedRunner::run_on_host(engine::Operation& operation) {
  auto call = std::make_unique<Enqueued>();
  call->on_host = &operation;
  std::future<Status> outcome = call->outcome.get_future();
  (void)push(std::move(call));
  return outcome.get();
}

// Calls end in their order, but streams pass them in any.
void StagedRunner::recycle_passed() {
  std::erase_if(passed_, [&](Event event) {
    Result<bool> happened = cuda_.has_happened(event);
    if (happened.ok() && !*happened) return false;
    give_events({&event, 1});  // a device that answers with an error runs nothing any more
    return true;
  });
}

Status StagedRunner::await_room() {
  if (passed_.size() < kMostInFlight) return {};
  const OutsideCapture outside(cuda_);
  RONDO_TRY(outside.status());
  while (true) {
    recycle_passed();
    if (passed_.size() < kMostInFlight) return {};
    if (board_.has_error()) return board_.error();
    nanosleep(&kNap, nullptr);
  }
}

Result<Event> StagedRunner::take_event() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_events_.empty()) {
      const Event event = free_events_.back();
      free_events_.pop_back();
      return event;
    }
  }
  Event event = RONDO_TRY(cuda_.create_event());
  const std::lock_guard lock(mutex_);
  all_events_.push_back(event);
  free_events_.reserve(all_events_.size());
  return event;
}

void StagedRunner::give_events(std::span<const Event> events) {
  const std::lock_guard lock(mutex_);
  free_events_.insert(free_events_.end(), events.begin(), events.end());
}

void StagedRunner::work() {
  engine::ask_for_short_turns();
  Status status = cuda_.set_device(settings_.device);
  const OutsideCapture outside(cuda_);
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
    status = base::guarded([&] { return carry_out(*call); });
    if (!status.ok()) {
      (void)runner_.fail(status);
      status = board_.error();
    }
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
  if (board_.has_error()) return board_.error();
  if (call.on_host != nullptr) return runner_.run(*call.on_host);
  for (Event ready : call.ready) RONDO_TRY(await(ready, false));
  if (!call.messages.empty()) RONDO_TRY(carry_out(call.messages));
  for (engine::Operation& operation : call.operations) RONDO_TRY(carry_out(operation));
  return {};
}

Status StagedRunner::carry_out(engine::Operation operation) {
  const engine::Prepared& prepared = *operation.prepared;
  if (prepared.call.collective == Collective::kBarrier) return runner_.run(operation);
  const std::byte* const in = operation.in;
  std::byte* const out = operation.out;
  // In place the images lie to each other as the buffers do.
  const std::byte* const first = std::less<>()(in, out) ? in : out;
  size_t in_at = prepared.in_place ? static_cast<size_t>(in - first) : 0;
  size_t out_at =
      prepared.in_place ? static_cast<size_t>(out - first) : align_up(prepared.in_bytes);
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
  RONDO_TRY(runner_.run(operation));
  return copy_up(written);
}

Status StagedRunner::carry_out(std::list<engine::Transfer>& messages) {
  size_t bytes = 0;
  for (const engine::Transfer& message : messages) bytes += align_up(message.bytes());
  std::byte* image = RONDO_TRY(image_of(bytes));
  std::vector<StagedPart> read, written;
  for (engine::Transfer& message : messages) {
    (message.sends ? read : written).push_back({message.buffer, image, message.bytes()});
    message.buffer = image;
    image += align_up(message.bytes());
  }
  RONDO_TRY(copy_down(read));
  runner_.lanes().push(messages);
  std::list<engine::Operation> none;
  RONDO_TRY(runner_.run(none));
  return copy_up(written);
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
    RONDO_TRY(await(copied_[h], true));
    std::memcpy(copied[h].host, staging_ + h * half, std::exchange(copied[h].bytes, 0));
    return {};
  };
  size_t turn = 0;
  for (const StagedPart& part : parts) {
    if (is_pinned(part.host)) {
      if (part.bytes > 0) RONDO_TRY(cuda_.copy(part.host, part.device, part.bytes, copies_));
      continue;
    }
    for (size_t at = 0; at < part.bytes; at += half, ++turn) {
      const size_t h = turn % 2;
      RONDO_TRY(finish(h));
      copied[h] = {part.device + at, part.host + at, std::min(half, part.bytes - at)};
      RONDO_TRY(cuda_.copy(staging_ + h * half, copied[h].device, copied[h].bytes, copies_));
      RONDO_TRY(cuda_.record(copied_[h], copies_));
    }
  }
  RONDO_TRY(finish(turn % 2));
  RONDO_TRY(finish((turn + 1) % 2));
  RONDO_TRY(cuda_.record(copied_[0], copies_));
  return await(copied_[0], true);
}

Status StagedRunner::copy_up(std::span<const StagedPart> parts) {
  const size_t half = backend_.staging_bytes / 2;
  size_t turn = 0;
  for (const StagedPart& part : parts) {
    if (is_pinned(part.host)) {
      if (part.bytes > 0) RONDO_TRY(cuda_.copy(part.device, part.host, part.bytes, copies_));
      continue;
    }
    for (size_t at = 0; at < part.bytes; at += half, ++turn) {
      const size_t h = turn % 2, bytes = std::min(half, part.bytes - at);
      if (turn >= 2) RONDO_TRY(await(copied_[h], true));
      std::memcpy(staging_ + h * half, part.host + at, bytes);
      RONDO_TRY(cuda_.copy(part.device + at, staging_ + h * half, bytes, copies_));
      RONDO_TRY(cuda_.record(copied_[h], copies_));
    }
  }
  RONDO_TRY(cuda_.record(copied_[0], copies_));
  return await(copied_[0], true);
}

/// `despite_errors`: of a copy, which waits for nobody and whose memory is in use until it has ended.
Status StagedRunner::await(Event event, bool despite_errors) {
  for (int turn = 0;; ++turn) {
    bool happened = RONDO_TRY(cuda_.has_happened(event));
    if (happened) return {};
    if (!despite_errors && board_.has_error()) return board_.error();
    if (turn < kTurnsBeforePauses) {
      sched_yield();
    } else {
      nanosleep(&kNap, nullptr);
    }
  }
}

}  // namespace rondo::device
