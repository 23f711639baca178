// See staged_runner.hpp.
#include "comm/device/staged_runner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <system_error>
#include <utility>

#include "comm/base/clock.hpp"
#include "comm/base/refuse.hpp"
#include "rondo/log.hpp"

namespace rondo::device {
namespace {

constexpr size_t kWordBytes = 4096;  // what is before the staging memory: a page
constexpr timespec kNap{0, 50'000};
// How long streams may take to pass what has been done.
constexpr int64_t kLastWaitNs = 10'000'000'000;

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
  for (auto* const events : {&copied_down_, &copied_up_}) {
    for (Event event : *events) {
      if (event != nullptr) (void)cuda_.destroy_event(event);
    }
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
    // Before the wait: the word is not freed while a stream that waits for it has not passed.
    Event passed = RONDO_TRY(take_event());
    passed_.push_back(passed);
    RONDO_TRY(cuda_.wait_for_word(stream, done_, number));
    RONDO_TRY(cuda_.record(passed, stream));
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

}  // namespace rondo::device
