#include "comm/device/premises.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace rondo::device {
namespace {

// Leaked on purpose: communicators may end while static objects are being destroyed.
struct Register {
  std::mutex mutex;
  std::map<uint64_t, std::weak_ptr<Premises>> entered;  // by the control memory's id
  // Left by all ranks of this process, and still used by others'; freed when somebody next looks,
  // or by the end of the process.
  std::vector<std::unique_ptr<Premises>> abandoned;
};
Register& all_premises() {
  static auto* const the_register = new Register;
  return *the_register;
}

uint64_t load(const uint64_t& word, std::memory_order order) {
  return std::atomic_ref(const_cast<uint64_t&>(word)).load(order);
}

}  // namespace

Result<std::shared_ptr<Premises>> Premises::enter(std::shared_ptr<CudaCalls> cuda,
                                                  transport::Segment control, int ranks) {
  Register& all = all_premises();
  const std::lock_guard lock(all.mutex);
  std::weak_ptr<Premises>& entry = all.entered[control.id()];
  if (auto found = entry.lock()) return found;
  // Once for each process: what is mapped already cannot be mapped again.
  RONDO_RETURN_IF_ERROR(cuda->map_host(control.base(), control.bytes()));
  std::shared_ptr<Premises> made(new Premises(std::move(cuda), std::move(control), ranks), leave);
  entry = made;
  return made;
}

Premises::~Premises() {
  segments_.clear();
  if (mapped_.base() != nullptr) (void)cuda_->unmap_host(mapped_.base());
  (void)cuda_->unmap_host(control_.base());
}

void Premises::leave(Premises* premises) {
  std::vector<std::unique_ptr<Premises>> done;  // ended without the lock: freeing may wait
  {
    Register& all = all_premises();
    const std::lock_guard lock(all.mutex);
    all.abandoned.emplace_back(premises);
    for (auto& each : all.abandoned) {
      if (each->is_empty()) done.push_back(std::move(each));
    }
    std::erase(all.abandoned, nullptr);
    std::erase_if(all.entered, [](const auto& item) { return item.second.expired(); });
  }
}

void Premises::keep(std::unique_ptr<transport::cuda_ipc::Segments> segments) {
  const std::lock_guard lock(mutex_);
  segments_.push_back(std::move(segments));
}

Status Premises::map(transport::Segment memory) {
  const std::lock_guard lock(mutex_);
  if (mapped_.base() != nullptr) return {};
  RONDO_RETURN_IF_ERROR(cuda_->map_host(memory.base(), memory.bytes()));
  mapped_ = std::move(memory);
  return {};
}

void Premises::raise_aborts() const {
  for (int rank = 0; rank < ranks_; ++rank) {
    std::atomic_ref(control(rank).abort).store(1, std::memory_order_relaxed);
  }
}

void Premises::set_present(int rank, bool present) const {
  std::atomic_ref(control(rank).present).store(present ? 1 : 0, std::memory_order_release);
}

const engine::DeviceReport* Premises::report(int rank, int channel) const {
  const engine::DeviceReport& report = control(rank).reports[channel];
  // Acquire: pairs with the kernel's release, so that all of it is there.
  return load(report.whole, std::memory_order_acquire) != 0 ? &report : nullptr;
}

bool Premises::is_empty() const {
  for (int rank = 0; rank < ranks_; ++rank) {
    if (load(control(rank).present, std::memory_order_acquire) != 0) return false;
  }
  return true;
}

}  // namespace rondo::device
