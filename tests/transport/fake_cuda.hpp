// CUDA for tests without a GPU: host memory, devices by decree, and any call can be made to fail.
// Counts what is alive, so that a test sees what an error path forgets. Thread-safe. Nothing here
// takes time; tests/comm/device/fake_gpu.hpp has streams.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "transport/cuda_ipc/cuda_calls.hpp"

namespace rondo::transport::test {

class FakeCuda : public cuda_ipc::CudaCalls {
 public:
  using Stream = cuda_ipc::Stream;
  using Event = cuda_ipc::Event;
  using IpcHandle = cuda_ipc::IpcHandle;

  std::vector<cuda_ipc::DeviceInfo> devices = {{}};
  std::set<std::pair<int, int>> peers;                    // which device can access which
  std::set<std::pair<std::string, std::string>> nvlinks;  // by their PCI buses
  std::set<int> enabled;                                  // peers that access was enabled to
  std::set<const std::byte*> not_for_peers;               // memory, by its beginning
  size_t most_mapped = 0;                                 // pieces of host memory, at a time
  int calls = 0;
  int freed_while_imported = 0;
  /// Memory is what processes share: each import maps it once more, at another address.
  bool imports_elsewhere = false;
  int fail_at = -1;  // the number of the call that fails, from 0; -1: none

  /// What has been made and not unmade.
  size_t alive() const {
    const std::lock_guard lock(mutex_);
    return memory_.size() + mapped_.size() + imported_.size() + objects_.size();
  }

  size_t imported() const {
    const std::lock_guard lock(mutex_);
    return imported_.size();
  }

  Result<int> device_count() override { return value(static_cast<int>(devices.size())); }
  Result<cuda_ipc::DeviceInfo> device_info(int device) override {
    return value(devices.at(static_cast<size_t>(device)));
  }
  Result<int> current_device() override { return value(current()); }
  Status set_device(int device) override {
    RONDO_TRY(next());
    current() = device;
    return {};
  }
  Result<bool> can_access_peer(int device, int peer) override {
    return value(peers.count({device, peer}) > 0);
  }
  bool has_nvlink(const char* bus, const char* peer_bus) override {
    return nvlinks.count({bus, peer_bus}) > 0;
  }
  Status enable_peer_access(int peer) override {
    RONDO_TRY(next());
    const std::lock_guard lock(mutex_);
    enabled.insert(peer);
    return {};
  }

  Result<bool> is_for_peers(const std::byte* memory) override {
    return value(not_for_peers.count(memory) == 0);
  }

  Result<std::byte*> allocate(size_t bytes) override {
    RONDO_TRY(next());
    Piece piece = {.bytes = bytes, .device = current()};
    std::byte* memory = nullptr;
    if (imports_elsewhere) {
      piece.file = memfd_create("fake-gpu", MFD_CLOEXEC);
      if (ftruncate(piece.file, static_cast<off_t>(bytes)) != 0) std::abort();
      memory = map(piece);
    } else {
      memory = static_cast<std::byte*>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
    }
    std::memset(memory, 0xcd, bytes);
    const std::lock_guard lock(mutex_);
    memory_[memory] = piece;
    return memory;
  }
  Result<cuda_ipc::Allocation> allocation_of(const std::byte* memory) override {
    RONDO_TRY(next());
    const std::lock_guard lock(mutex_);
    auto after = memory_.upper_bound(const_cast<std::byte*>(memory));
    if (after == memory_.begin()) return cuda_ipc::Allocation{nullptr, 0, -1};
    const auto& [base, piece] = *--after;
    if (memory >= base + piece.bytes) return cuda_ipc::Allocation{nullptr, 0, -1};
    return cuda_ipc::Allocation{base, piece.bytes, piece.device};
  }
  Status release(std::byte* memory) override { return free(memory); }
  Result<std::byte*> allocate_mapped(size_t bytes) override { return allocate(bytes); }
  Status release_mapped(std::byte* memory) override { return free(memory); }
  Status map_host(std::byte* memory, size_t) override {
    RONDO_TRY(next());
    const std::lock_guard lock(mutex_);
    most_mapped = std::max(most_mapped, mapped_.size() + 1);
    return mapped_.insert(memory).second ? Status() : Status(Code::kSystem, "mapped already");
  }
  Status unmap_host(std::byte* memory) override {
    const std::lock_guard lock(mutex_);
    return mapped_.erase(memory) == 1 ? Status() : Status(Code::kSystem, "not mapped");
  }

  Result<IpcHandle> export_memory(std::byte* memory) override {
    RONDO_TRY(next());
    const std::lock_guard lock(mutex_);
    if (memory_.count(memory) == 0) return Status(Code::kSystem, "not the start of an allocation");
    IpcHandle handle{};
    std::memcpy(handle.bytes.data(), &memory, sizeof memory);
    return handle;
  }
  Result<std::byte*> import_memory(const IpcHandle& handle) override {
    RONDO_TRY(next());
    std::byte* memory = nullptr;
    std::memcpy(&memory, handle.bytes.data(), sizeof memory);
    const std::lock_guard lock(mutex_);
    const auto found = memory_.find(memory);
    if (found == memory_.end()) return Status(Code::kSystem, "no such memory");
    std::byte* const here = imports_elsewhere ? map(found->second) : memory;
    imported_.insert({here, {memory, found->second.bytes}});
    return here;
  }
  Status close_memory(std::byte* memory) override {
    const std::lock_guard lock(mutex_);  // never fails, as free()
    const auto found = imported_.find(memory);
    if (found == imported_.end()) return {Code::kSystem, "not imported"};
    if (imports_elsewhere) munmap(memory, found->second.second);
    imported_.erase(found);
    return {};
  }

  Status copy(std::byte* to, const std::byte* from, size_t bytes, Stream) override {
    RONDO_TRY(next());
    std::memcpy(to, from, bytes);
    return {};
  }
  Status clear(std::byte* memory, size_t bytes, Stream) override {
    RONDO_TRY(next());
    std::memset(memory, 0, bytes);
    return {};
  }

  Result<Stream> create_stream() override { return make(); }
  Status destroy_stream(Stream stream) override { return unmake(stream); }
  Result<uint64_t> identity_of(Stream stream) override {
    return value(uint64_t{reinterpret_cast<uintptr_t>(stream)});
  }
  Result<bool> is_done(Stream) override { return value(true); }
  Status synchronize(Stream) override { return next(); }
  Status synchronize_device() override { return next(); }
  Result<Event> create_event() override { return make(); }
  Status destroy_event(Event event) override { return unmake(event); }
  Status record(Event, Stream) override { return next(); }
  Status wait(Stream, Event) override { return next(); }
  Result<bool> has_happened(Event) override { return value(true); }
  Status wait_for_word(Stream, const uint32_t*, uint32_t) override { return next(); }
  Result<uint64_t> capture_of(Stream) override { return value(uint64_t{0}); }
  Result<int> exchange_capture_mode(int mode) override { return value(mode); }
  Result<int> resident_blocks(const void*, int, size_t) override { return value(1); }
  Status load(const void*) override { return next(); }
  Status launch(const cuda_ipc::Launch&) override { return next(); }

 protected:
  Status next() {
    const std::lock_guard lock(mutex_);
    if (calls++ != fail_at) return {};
    return {Code::kSystem, "call " + std::to_string(fail_at) + " was told to fail"};
  }
  template <class T>
  Result<T> value(T value) {
    RONDO_TRY(next());
    return value;
  }

  mutable std::mutex mutex_;

 private:
  struct Piece {
    size_t bytes;
    int device;
    int file = -1;
  };
  static std::byte* map(const Piece& piece) {
    void* const memory =
        mmap(nullptr, piece.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, piece.file, 0);
    if (memory == MAP_FAILED) std::abort();
    return static_cast<std::byte*>(memory);
  }
  static int& current() {
    thread_local int device = 0;
    return device;
  }
  Status free(std::byte* memory) {
    const std::lock_guard lock(mutex_);
    // What frees is counted, but never fails: an error path must be able to rely on that.
    const auto found = memory_.find(memory);
    if (found == memory_.end()) return {Code::kSystem, "not allocated"};
    freed_while_imported += std::any_of(imported_.begin(), imported_.end(), [&](const auto& one) {
      return one.second.first == memory;
    });
    if (imports_elsewhere) {
      munmap(memory, found->second.bytes);
      close(found->second.file);
    } else {
      std::free(memory);
    }
    memory_.erase(found);
    return {};
  }
  Result<void*> make() {
    RONDO_TRY(next());
    const std::lock_guard lock(mutex_);
    objects_.push_back(std::make_unique<char>());
    return static_cast<void*>(objects_.back().get());
  }
  Status unmake(void* object) {
    const std::lock_guard lock(mutex_);
    const size_t found =
        std::erase_if(objects_, [&](const auto& each) { return each.get() == object; });
    return found == 1 ? Status() : Status(Code::kSystem, "no such stream or event");
  }

  std::map<std::byte*, Piece> memory_;
  std::set<std::byte*> mapped_;
  std::multimap<std::byte*, std::pair<std::byte*, size_t>> imported_;  // of which memory
  std::vector<std::unique_ptr<char>> objects_;
};

}  // namespace rondo::transport::test
