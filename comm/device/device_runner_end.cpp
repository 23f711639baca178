// The errors of a rank on a GPU and its end: what kernels have reported, ranks that have ended, and
// waiting for kernels before their memory is freed.
#include <fmt/format.h>

#include <chrono>
#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "comm/base/clock.hpp"
#include "comm/base/guarded.hpp"
#include "comm/device/device_runner.hpp"
#include "rondo/log.hpp"

namespace rondo::device {
namespace {

// How long aborted kernels may take to end: they look every few thousand polls, and before every
// slice.
constexpr int64_t kGivingUpNs = 10'000'000'000;
constexpr timespec kBetweenLooks{0, 50'000}, kBetweenTries{0, 10'000'000};
constexpr std::chrono::milliseconds kBetweenReplayLooks{20};

}  // namespace

/// A wait for all work of a device, in a thread of its own: no event tells whether a replay of a
/// graph still runs, and CUDA has no such wait with a limit. Does not wait at its end.
class DeviceWait {
 public:
  DeviceWait(std::shared_ptr<CudaCalls> cuda, int device) {
    const auto wait = [cuda = std::move(cuda), device, ended = ended_, wanted = wanted_] {
      const DeviceScope scope(*cuda, device);
      // Refused while any stream is captured: again, until that is over. A device that answers with
      // another error runs nothing any more.
      while (scope.status().ok() && cuda->synchronize_device().code() == Code::kUnavailable) {
        if (!wanted->load(std::memory_order_relaxed)) return;
        nanosleep(&kBetweenTries, nullptr);
      }
      ended->store(true, std::memory_order_release);
    };
    try {
      thread_ = std::thread(wait);
    } catch (const std::system_error&) {
      // No thread can be had: without a limit, but once only, and not for the end of a capture.
      wanted_->store(false, std::memory_order_relaxed);
      wait();
    }
  }
  ~DeviceWait() {
    if (!thread_.joinable()) return;
    if (has_ended()) {
      thread_.join();
    } else {
      wanted_->store(false, std::memory_order_relaxed);
      thread_.detach();
    }
  }
  DeviceWait(const DeviceWait&) = delete;
  DeviceWait& operator=(const DeviceWait&) = delete;
  /// Acquire: what the device has done happened before.
  bool has_ended() const { return ended_->load(std::memory_order_acquire); }

 private:
  const std::shared_ptr<std::atomic<bool>> ended_ = std::make_shared<std::atomic<bool>>(false);
  const std::shared_ptr<std::atomic<bool>> wanted_ = std::make_shared<std::atomic<bool>>(true);
  std::thread thread_;
};

DeviceRunner::~DeviceRunner() {
  const DeviceScope scope(cuda_, device_);
  const OutsideCapture outside(cuda_);
  const int rank = bootstrap_.rank();
  bool ended = true;
  if (has_launched_.load(std::memory_order_relaxed)) {
    std::optional<DeviceWait> device;
    if (has_captured_.load(std::memory_order_relaxed)) device.emplace(backend_.cuda, device_);
    DeviceWait* const replays = device ? &*device : nullptr;
    ended = await_idle(longest_wait_ns_, false, replays);
    if (!ended) {
      (void)raise({Code::kAborted,
                   fmt::format("rank {} was destroyed before its operations had ended", rank)});
      ended = await_idle(kGivingUpNs, true, replays);
    }
  }
  if (replays_watch_.joinable()) {
    {
      const std::lock_guard lock(replays_mutex_);
      ends_ = true;
      replays_changed_.notify_all();
    }
    replays_watch_.join();
  }
  if (!ended) {
    log(LogLevel::kError,
        fmt::format("rank {}'s kernels do not end: their memory is left to them", rank));
    // Present for ever, so that the memory which peers' kernels touch is never freed.
    (void)programs_.release();
    (void)registrations_.release();
    (void)new std::shared_ptr<ProcessMemory>(memory_);
    (void)new Claim(std::move(claim_));
    proxy_.reset();
    return;
  }
  if (proxy_) proxy_->finish(longest_wait_ns_);
  proxy_.reset();
  for (std::byte* slots : {inbound_slots_, outbound_slots_}) {
    if (slots != nullptr) (void)cuda_.release(slots);
  }
  for (std::byte* segment : {inbound_, outbound_}) {
    if (segment != nullptr) (void)cuda_.release_mapped(segment);
  }
  registrations_.reset();
  programs_.reset();
  for (Event event : {launched_, captured_, copied_, marks_[0], marks_[1]}) {
    if (event != nullptr) (void)cuda_.destroy_event(event);
  }
  if (copies_ != nullptr) (void)cuda_.destroy_stream(copies_);
  // Before peers may free what it has imported.
  if (segments_ != nullptr) segments_->let_go();
  if (memory_) memory_->set_present(rank, false);
  memory_.reset();  // on this device: freeing takes a context
}

Result<bool> DeviceRunner::is_idle() const {
  const DeviceScope scope(cuda_, device_);  // any thread comes here
  RONDO_TRY(scope.status());
  const OutsideCapture outside(cuda_);
  RONDO_TRY(outside.status());
  return cuda_.has_happened(launched_);
}

bool DeviceRunner::has_ended() const {
  if (has_captured_.load(std::memory_order_relaxed)) return false;
  if (!has_launched_.load(std::memory_order_relaxed)) return true;
  const Result<bool> idle = is_idle();
  return idle.ok() && *idle;
}

bool DeviceRunner::await_idle(int64_t longest_ns, bool despite_errors, DeviceWait* device) const {
  const int64_t began = base::now_ns();
  while (true) {
    Result<bool> idle = is_idle();
    // A device that answers with an error runs nothing any more.
    if ((!idle.ok() || *idle) && (device == nullptr || device->has_ended())) return true;
    if (base::now_ns() - began > longest_ns) return false;
    if (!despite_errors && board_.has_error()) return false;
    nanosleep(&kBetweenLooks, nullptr);
  }
}

Result<bool> DeviceRunner::await_launches(int64_t longest_ns) const {
  if (await_idle(longest_ns, false)) return true;
  if (board_.has_error()) return board_.error();
  return false;
}

// Kernels stop before this thread waits for the verdict.
Status DeviceRunner::raise(const Status& status) const {
  board_.propose(status);
  memory_->raise_aborts();
  return board_.error();
}

Status DeviceRunner::raise_own(const Status& status) const {
  return raise({status.code(),
                fmt::format("rank {} on GPU {}: {}", board_.rank(), device_, status.message())});
}

Status DeviceRunner::check(bool thorough) {
  if (board_.has_error()) {
    memory_->raise_aborts();
    return board_.error();
  }
  for (uint32_t channel = 0; channel < shape_.channels; ++channel) {
    const auto* const own = memory_->report(bootstrap_.rank(), static_cast<int>(channel));
    if (own == nullptr) continue;
    if (own->peer >= 0) board_.show_wait(own->peer, own->step, own->round, base::now_ns());
    return raise(explain_reports(*memory_, shape_.channels, board_, watch_));
  }
  if (thorough) registrations_->close_ended();
  if (!thorough || !has_launched_.load(std::memory_order_relaxed)) return {};
  Result<bool> idle = is_idle();
  if (!idle.ok()) return raise_own(idle.status());
  if (!*idle) return find_absent(sequence_.load(std::memory_order_relaxed));
  // A graph may be replayed just now, or at any time.
  if (!has_captured_.load(std::memory_order_relaxed)) return {};
  return find_dead(fmt::format("graphs hold operations of rank {}", board_.rank()));
}

Status DeviceRunner::watch_replays() {
  try {
    replays_watch_ = std::thread([this] { look_after_replays(); });
  } catch (const std::system_error& error) {
    return {Code::kResourceExhausted,
            fmt::format("no thread to look after replays of graphs: {}", error.what())};
  }
  return {};
}

/// No call of CUDA, which a thread of the application's might hold up.
void DeviceRunner::look_after_replays() {
  std::unique_lock lock(replays_mutex_);
  while (!replays_changed_.wait_for(lock, kBetweenReplayLooks, [this] { return ends_; })) {
    const Status status = base::guarded([&] {
      RONDO_TRY(check(false));
      return find_dead(fmt::format("graphs hold operations of rank {}", board_.rank()));
    });
    if (!status.ok()) return;  // all kernels' waits have been ended, of replays to come as well
  }
}

Status DeviceRunner::find_dead(std::string_view meanwhile) {
  const Status dead = watch_.check_all_alive(fmt::format("while {}", meanwhile));
  return dead.ok() ? dead : raise(dead);
}

Status DeviceRunner::find_absent(uint64_t sequence) {
  RONDO_TRY(find_dead(fmt::format("rank {}'s kernels were waiting", board_.rank())));
  const Status left = watch_.check_left(sequence, nullptr);
  return left.ok() ? left : raise(left);
}

}  // namespace rondo::device
