// See staged_runner.hpp.
#include "comm/device/staged_runner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <system_error>
#include <utility>

#include "comm/base/clock.hpp"
#include "comm/base/guarded.hpp"
#include "comm/base/refuse.hpp"
#include "rondo/log.hpp"

namespace rondo::device {
namespace {

constexpr size_t kWordBytes = 4096;  // what is before the staging memory: a page
constexpr timespec kNap{0, 50'000};
// How long streams may take to pass what has been done.
constexpr int64_t kLastWaitNs = 10'000'000'000;
constexpr std::chrono::milliseconds kRound{200};  // of the guard

std::vector<void*> streams_of(const std::list<engine::Operation>& operations,
                              const std::list<engine::Transfer>& messages) {
  std::vector<void*> streams;
  const auto add = [&streams](void* stream) {
    if (std::find(streams.begin(), streams.end(), stream) == streams.end()) {
      streams.push_back(stream);
    }
  };
  for (const engine::Operation& operation : operations) add(operation.stream);
  for (const engine::Transfer& message : messages) add(message.stream);
  return streams;
}

}  // namespace

Result<std::unique_ptr<StagedRunner>> StagedRunner::create(engine::Runner& runner,
                                                           board::Board& board, board::Watch& watch,
                                                           const StagedSettings& settings) {
  auto backend = RONDO_TRY(open_backend());
  int devices = RONDO_TRY(backend.cuda->device_count());
  if (settings.device >= devices) {
    return comm::refuse(
        fmt::format("Config::device is {}, but CUDA sees {} devices: 0 to {} are possible",
                    settings.device, devices, devices - 1));
  }
  std::unique_ptr<StagedRunner> made(
      new StagedRunner(std::move(backend), runner, board, watch, settings));
  RONDO_TRY(made->open());
  return made;
}

StagedRunner::StagedRunner(GpuBackend backend, engine::Runner& runner, board::Board& board,
                           board::Watch& watch, const StagedSettings& settings)
    : backend_(std::move(backend)),
      cuda_(*backend_.cuda),
      runner_(runner),
      board_(board),
      watch_(watch),
      settings_(settings) {}

Status StagedRunner::open() {
  const DeviceScope scope(cuda_, settings_.device);
  RONDO_TRY(scope.status());
  const OutsideCapture outside(cuda_);
  RONDO_TRY(outside.status());
  down_ = RONDO_TRY(cuda_.create_stream());
  up_ = RONDO_TRY(cuda_.create_stream());
  for (auto* const events : {&copied_down_, &copied_up_}) {
    for (Event& event : *events) {
      Event created = RONDO_TRY(cuda_.create_event());
      event = created;
    }
  }
  pinned_ = RONDO_TRY(cuda_.allocate_mapped(kWordBytes + backend_.staging_bytes));
  done_ = reinterpret_cast<uint32_t*>(pinned_);
  staging_ = pinned_ + kWordBytes;
  *done_ = 0;
  RONDO_TRY(try_wait());
  try {
    guard_ = std::thread([this] { guard(); });
    thread_ = std::thread([this] { work(); });
  } catch (const std::system_error& error) {
    return {Code::kResourceExhausted,
            fmt::format("no thread for a communicator on GPUs of several hosts: {}", error.what())};
  }
  return {};
}

/// One that is over at once: what a driver or GPU does not support is an error now, not at a call.
Status StagedRunner::try_wait() {
  const Status status = cuda_.wait_for_word(up_, done_, *done_);
  if (status.ok()) return {};
  return {status.code(),
          fmt::format("rank {} on GPU {}: between hosts a call makes its stream wait for a word in "
                      "pinned memory, which failed: {}. Without such waits only a communicator in "
                      "host memory (Config::device -1) is possible",
                      board_.rank(), settings_.device, status.message())};
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
  if (guard_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      has_ended_ = true;
      guard_ends_.notify_all();
    }
    guard_.join();
  }
  if (is_abandoned_) {
    log(LogLevel::kError,
        fmt::format("copies between rank {} and its GPU {} do not end: the memory that they use is "
                    "left to them",
                    board_.rank(), settings_.device));
    return;
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
  for (auto* const events : {&copied_down_, &copied_up_}) {
    for (Event event : *events) {
      if (event != nullptr) (void)cuda_.destroy_event(event);
    }
  }
  for (Stream stream : {down_, up_}) {
    if (stream != nullptr) (void)cuda_.destroy_stream(stream);
  }
  if (pinned_ != nullptr) (void)cuda_.release_mapped(pinned_);
}

void StagedRunner::guard() {
  // In rounds, because the process as a whole may stand still for a while.
  const int64_t most_rounds = longest_in_cuda_ns() / std::chrono::nanoseconds(kRound).count();
  int64_t seen = 0, rounds = 0;
  std::unique_lock lock(mutex_);
  while (!has_ended_) {
    guard_ends_.wait_for(lock, kRound, [this] { return has_ended_; });
    const int64_t since = in_cuda_ns_.load();
    rounds = since != 0 && since == seen ? rounds + 1 : 0;
    seen = since;
    if (rounds <= most_rounds) continue;
    StreamCarrier* const carrier = calls_.empty() ? nullptr : calls_.front()->carrier;
    lock.unlock();
    // In every round, since calls may come whose streams wait, too.
    (void)base::guarded([&] {
      const Status why(
          Code::kTimeout,
          fmt::format(
              "the thread of rank {} has been inside of a call of CUDA's for its GPU {} for "
              "more than {} ms: another thread may hold CUDA's lock in a call that waits for "
              "a stream with operations of rondo's. Launches for the first time, copies from "
              "memory that is not pinned, cudaMalloc and cudaFree belong where none are "
              "enqueued",
              board_.rank(), settings_.device, longest_in_cuda_ns() / 1'000'000));
      let_streams_go(why);
      if (carrier != nullptr) carrier->abort(why);
      return Status();
    });
    lock.lock();
  }
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

Status StagedRunner::refusal(const std::list<engine::Operation>& operations,
                             const std::list<engine::Transfer>& messages) const {
  const DeviceScope scope(cuda_, settings_.device);
  RONDO_TRY(scope.status());
  for (void* const stream : streams_of(operations, messages)) {
    uint64_t capture = RONDO_TRY(cuda_.capture_of(stream));
    if (capture == 0) continue;
    return comm::refuse(
        "the stream is being captured: with ranks on several hosts the host's threads carry "
        "operations out, which a graph cannot replay. Enqueue them between graphs, or capture "
        "those of a communicator of one host, by split()");
  }
  return {};
}

Status StagedRunner::enqueue(std::list<engine::Operation>& operations,
                             std::list<engine::Transfer>& messages) {
  const std::vector<void*> streams = streams_of(operations, messages);
  if (streams.empty()) return {};
  Status status = refusal(operations, messages);
  if (status.code() == Code::kInvalidArgument) return status;
  const DeviceScope scope(cuda_, settings_.device);
  if (status.ok()) status = scope.status();
  if (status.ok()) status = put(operations, messages, streams);
  return status.ok() ? status : board_.raise(status);
}

Status StagedRunner::enqueue(const engine::Operation& operation, StreamCarrier& carrier) {
  const DeviceScope scope(cuda_, settings_.device);
  Status status = scope.status();
  if (status.ok()) status = put(operation, carrier);
  if (status.ok()) return status;
  carrier.abort(status);
  return board_.raise(status);
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
  last_staged_ = push(std::move(call));
  for (void* const stream : streams) RONDO_TRY(make_wait(stream, last_staged_));
  return {};
}

Status StagedRunner::make_wait(void* stream, uint32_t number) {
  // Before the wait: the word is not freed while a stream that waits for it has not passed.
  Event passed = RONDO_TRY(take_event());
  passed_.push_back(passed);
  RONDO_TRY(cuda_.wait_for_word(stream, done_, number));
  return cuda_.record(passed, stream);
}

Status StagedRunner::put(const engine::Operation& operation, StreamCarrier& carrier) {
  RONDO_TRY(await_room());
  // A carrier's parts of a call keep their order, but not its call as a whole.
  if (carried_ == nullptr) {
    carried_ = RONDO_TRY(take_event());
  } else {
    RONDO_TRY(cuda_.wait(operation.stream, carried_));
  }
  // Acquire: what calls up to it have written. Pairs with the thread's store.
  const uint32_t done = std::atomic_ref(*done_).load(std::memory_order_acquire);
  if (static_cast<int32_t>(last_staged_ - done) > 0) {
    RONDO_TRY(make_wait(operation.stream, last_staged_));
  } else {
    last_staged_ = done;  // so that numbers may wrap around
  }
  auto call = std::make_unique<Enqueued>();
  // After an error, too: the thread may find a better one, which other ranks know of.
  call->put = carrier.put(operation);
  RONDO_TRY(cuda_.record(carried_, operation.stream));
  Event ended = RONDO_TRY(take_event());
  call->ready.push_back(ended);
  RONDO_TRY(cuda_.record(ended, operation.stream));
  // One more, for await_room(): the thread gives the other back.
  Event passed = RONDO_TRY(take_event());
  passed_.push_back(passed);
  RONDO_TRY(cuda_.record(passed, operation.stream));
  call->carrier = &carrier;
  call->operations.push_back(operation);
  (void)push(std::move(call));
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

}  // namespace rondo::device
