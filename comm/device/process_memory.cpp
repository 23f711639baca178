#include "comm/device/process_memory.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace rondo::device {
namespace {

// Leaked on purpose: communicators may end while static objects are being destroyed.
struct OpenMemories {
  std::mutex mutex;
  std::map<uint64_t, std::weak_ptr<ProcessMemory>> by_control;  // by the control memory's id
  // Released by all ranks of this process, and still used by other processes' ranks; freed by a
  // later release, or at the end of the process.
  std::vector<std::unique_ptr<ProcessMemory>> abandoned;
  size_t owned = 0;  // memories that release() will add to `abandoned`
};
OpenMemories& open_memories() {
  static auto* const all = new OpenMemories;
  return *all;
}

uint64_t load(const uint64_t& word, std::memory_order order) {
  return std::atomic_ref(const_cast<uint64_t&>(word)).load(order);
}

}  // namespace

Result<std::shared_ptr<ProcessMemory>> ProcessMemory::open(std::shared_ptr<CudaCalls> cuda,
                                                           transport::Segment control, int ranks) {
  OpenMemories& all = open_memories();
  // Allocated before the lock: what ends it takes the lock, too.
  const auto owner = std::make_shared<Owner>();
  const std::lock_guard lock(all.mutex);
  std::weak_ptr<ProcessMemory>& entry = all.by_control[control.id()];
  if (auto found = entry.lock()) return found;
  std::unique_ptr<ProcessMemory> made(
      new ProcessMemory(std::move(cuda), std::move(control), ranks));
  // Once for each process: mapped memory cannot be mapped again.
  RONDO_TRY(made->cuda_->map_host(made->control_.base(), made->control_.bytes()));
  made->is_mapped_ = true;
  all.abandoned.reserve(all.abandoned.size() + all.owned + 1);  // for release()
  owner->memory = made.release();
  ++all.owned;
  const std::shared_ptr<ProcessMemory> shared(owner, owner->memory);
  entry = shared;
  return shared;
}

ProcessMemory::~ProcessMemory() {
  segments_.clear();
  if (mapped_.base() != nullptr) (void)cuda_->unmap_host(mapped_.base());
  if (is_mapped_) (void)cuda_->unmap_host(control_.base());
}

ProcessMemory::Owner::~Owner() {
  if (memory != nullptr) release(memory);
}

// Allocates nothing: open() has reserved the place.
void ProcessMemory::release(ProcessMemory* memory) {
  OpenMemories& all = open_memories();
  {
    const std::lock_guard lock(all.mutex);
    all.abandoned.emplace_back(memory);
    --all.owned;
    std::erase_if(all.by_control, [](const auto& item) { return item.second.expired(); });
  }
  const auto take_empty = [&all]() -> std::unique_ptr<ProcessMemory> {
    const std::lock_guard lock(all.mutex);
    const auto found = std::ranges::find_if(all.abandoned, &ProcessMemory::is_empty);
    if (found == all.abandoned.end()) return nullptr;
    auto taken = std::move(*found);
    all.abandoned.erase(found);
    return taken;
  };
  while (take_empty()) continue;  // freed without the lock, because freeing may wait
}

void ProcessMemory::keep(std::unique_ptr<transport::cuda_ipc::Segments> segments) {
  const std::lock_guard lock(mutex_);
  segments_.push_back(std::move(segments));
}

Status ProcessMemory::map(transport::Segment memory) {
  const std::lock_guard lock(mutex_);
  if (mapped_.base() != nullptr) return {};
  RONDO_TRY(cuda_->map_host(memory.base(), memory.bytes()));
  mapped_ = std::move(memory);
  return {};
}

void ProcessMemory::raise_aborts() const {
  for (int rank = 0; rank < ranks_; ++rank) {
    std::atomic_ref(control(rank).abort).store(1, std::memory_order_relaxed);
  }
}

void ProcessMemory::set_present(int rank, bool present) const {
  std::atomic_ref(control(rank).present).store(present ? 1 : 0, std::memory_order_release);
}

const engine::DeviceReport* ProcessMemory::report(int rank, int channel) const {
  const engine::DeviceReport& report = control(rank).reports[channel];
  // Acquire: pairs with the kernel's release, so that all of it is there.
  return load(report.whole, std::memory_order_acquire) != 0 ? &report : nullptr;
}

bool ProcessMemory::is_empty() const {
  for (int rank = 0; rank < ranks_; ++rank) {
    if (load(control(rank).present, std::memory_order_acquire) != 0) return false;
  }
  return true;
}

}  // namespace rondo::device
