// CUDA for tests without a GPU: host memory, devices by decree, and any call can be made to fail.
// Counts what is alive, so that a test sees what an error path forgets. Thread-safe. Nothing here
// takes time; tests/comm/device/fake_gpu.hpp has streams.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/transport/fake_driver_lock.hpp"
#include "transport/cuda_ipc/cuda_calls.hpp"
#include "transport/memory/unique_fd.hpp"

namespace rondo::transport::test {

class FakeCuda : public cuda_ipc::CudaCalls {
 public:
  FakeDriverLock driver_lock;
  using Stream = cuda_ipc::Stream;
  using Event = cuda_ipc::Event;
  using IpcHandle = cuda_ipc::IpcHandle;

  std::vector<cuda_ipc::DeviceInfo> devices = {{}};
  std::set<std::pair<int, int>> peers;                    // which device can access which
  std::set<std::pair<std::string, std::string>> nvlinks;  // by their PCI buses
  std::set<int> enabled;                                  // peers that access was enabled to
  std::set<const std::byte*> not_for_peers;               // memory, by its beginning
  size_t most_mapped = 0;                                 // pieces of host memory, at a time
  std::atomic<int> calls{0};
  int freed_while_imported = 0;
  bool keeps_places = false;  // renewed memory is imported only when what it was has been closed
  std::atomic<int> imports{0};
  /// Memory is what processes share: each import maps it once more, at another address.
  bool imports_elsewhere = false;
  std::atomic<int> fail_at{-1};  // the number of the call that fails, from 0; -1: none
  /// Whether there is room for an allocation on a device. Empty: there always is.
  std::function<bool(size_t bytes, int device)> has_room;

  /// Frees what is left, of which alive() tells.
  ~FakeCuda() override {
    while (!memory_.empty()) (void)free(memory_.begin()->first);
  }

  /// What has been made and not unmade.
  size_t alive() const {
    const std::lock_guard lock(mutex_);
    return memory_.size() + mapped_.size() + imported_.size() + objects_.size() + created_.size() +
           reserved_.size() + mapped_pieces_.size();
  }

  /// How many descriptors stand for device memory here, of which those that are exported do not count.
  size_t files() const {
    const std::lock_guard lock(mutex_);
    return (imports_elsewhere ? memory_.size() : 0) + created_.size();
  }

  /// Memory as cuMemCreate() and cuMemMap() make it, of whole pages: pieces, one after the other. It
  /// is the caller's, who destroys it; what others have mapped of it stays.
  std::byte* create_mapped(const std::vector<size_t>& pieces, int device) {
    size_t bytes = kGap;
    for (const size_t each : pieces) bytes += each;
    std::byte* const memory = set_aside(bytes);
    const std::lock_guard lock(mutex_);
    std::byte* at = memory;
    for (const size_t each : pieces) {
      Piece piece = {.bytes = each, .device = device};
      open_file(piece);
      created_[map(piece, at)] = piece;
      at += each;
    }
    return memory;
  }
  void destroy_mapped(std::byte* memory) {
    const std::lock_guard lock(mutex_);
    for (auto found = created_.find(memory); found != created_.end();
         found = created_.find(memory)) {
      munmap(memory, found->second.bytes);
      close(found->second.file);
      memory += found->second.bytes;
      created_.erase(found);
    }
    munmap(memory, kGap);
  }
  std::set<const std::byte*> without_descriptors;  // pieces, by their beginning: created without
  std::function<void()> after_export;              // of a piece
  /// Pieces of peers' memory that are mapped.
  size_t mapped_pieces() const {
    const std::lock_guard lock(mutex_);
    return mapped_pieces_.size();
  }

  size_t imported() const {
    const std::lock_guard lock(mutex_);
    return imported_.size();
  }

  /// Devices with a context: from the first call on that needs the thread's current device.
  std::set<int> contexts() const {
    const std::lock_guard lock(mutex_);
    return contexts_;
  }

  Result<int> device_count() override {
    RONDO_TRY(next_without_context());
    return static_cast<int>(devices.size());
  }
  Result<cuda_ipc::DeviceInfo> device_info(int device) override {
    RONDO_TRY(next_without_context());
    return devices.at(static_cast<size_t>(device));
  }
  Result<int> current_device() override {
    RONDO_TRY(next_without_context());
    return current();
  }
  Status set_device(int device) override {
    RONDO_TRY(next_without_context());
    make_current(device);
    return {};
  }
  Status enter_device(int device) override {
    RONDO_TRY(next_without_context());
    entered().push_back(current());
    make_current(device);
    return {};
  }
  Status leave_device() override {  // never fails, as what frees
    if (entered().empty()) return {Code::kSystem, "this thread has entered no device"};
    current() = entered().back();
    entered().pop_back();
    return {};
  }
  Result<bool> can_access_peer(int device, int peer) override {
    RONDO_TRY(next_without_context());
    return peers.count({device, peer}) > 0;
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
    RONDO_TRY(next());
    const std::lock_guard lock(mutex_);
    return not_for_peers.count(memory) == 0 && find(created_, memory) == created_.end();
  }

  Result<std::byte*> allocate(size_t bytes) override {
    RONDO_TRY(next());
    if (has_room && !has_room(bytes, current())) {
      return Status(Code::kResourceExhausted, "out of memory");
    }
    Piece piece = {.bytes = bytes, .device = current()};
    std::byte* memory = nullptr;
    if (imports_elsewhere) {
      open_file(piece);
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
    for (const auto* all : {&memory_, &created_}) {
      const auto found = find(*all, memory);
      if (found == all->end()) continue;
      return cuda_ipc::Allocation{found->first, found->second.bytes, found->second.device};
    }
    return cuda_ipc::Allocation{nullptr, 0, -1};
  }
  Status release(std::byte* memory) override { return free(memory); }
  /// As freeing memory and allocating as much again, which happens to come to lie at the same
  /// address: what was imported of it stays what it was. REQUIRES: imports_elsewhere.
  void renew(std::byte* memory) {
    const std::lock_guard lock(mutex_);
    Piece& piece = memory_.at(memory);
    close(piece.file);
    open_file(piece);
    (void)map(piece, memory);
    for (const auto& [here, of] : imported_) {
      if (of.first == memory) outdated_.insert(here);
    }
  }
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
    contexts_.insert(current());
    return mapped_.erase(memory) == 1 ? Status() : Status(Code::kSystem, "not mapped");
  }

  Result<IpcHandle> export_memory(std::byte* memory) override {
    RONDO_TRY(next());
    const std::lock_guard lock(mutex_);
    if (memory_.count(memory) == 0) return Status(Code::kSystem, "not the start of an allocation");
    IpcHandle handle{};
    const Piece& piece = memory_.at(memory);
    const Exported exported = {memory, piece.bytes, piece.file, getpid()};
    std::memcpy(handle.bytes.data(), &exported, sizeof exported);
    return handle;
  }
  Result<std::byte*> import_memory(const IpcHandle& handle) override {
    RONDO_TRY(next());
    Exported exported{};
    std::memcpy(&exported, handle.bytes.data(), sizeof exported);
    std::byte* const memory = exported.memory;
    const std::lock_guard lock(mutex_);
    if (exported.process != getpid()) return import_from(exported);
    const auto found = memory_.find(memory);
    if (found == memory_.end()) return Status(Code::kSystem, "no such memory");
    for (const auto& [here, of] : imported_) {
      if (keeps_places && of.first == memory && outdated_.count(here) > 0) {
        return Status(Code::kSystem, "already mapped");  // cudaErrorAlreadyMapped
      }
    }
    std::byte* const here = imports_elsewhere ? map(found->second) : memory;
    ++imports;
    imported_.insert({here, {memory, found->second.bytes}});
    return here;
  }
  Status close_memory(std::byte* memory) override {
    const std::lock_guard lock(mutex_);  // never fails, as free()
    contexts_.insert(current());
    const auto found = imported_.find(memory);
    if (found == imported_.end()) return {Code::kSystem, "not imported"};
    if (imports_elsewhere) munmap(memory, found->second.second);
    imported_.erase(found);
    outdated_.erase(memory);
    return {};
  }

  Result<cuda_ipc::Allocation> piece_at(const std::byte* memory) override {
    RONDO_TRY(next());
    const std::lock_guard lock(mutex_);
    const auto found = find(created_, memory);
    if (found == created_.end()) return cuda_ipc::Allocation{nullptr, 0, -1};
    const int device = without_descriptors.count(found->first) > 0 ? -1 : found->second.device;
    return cuda_ipc::Allocation{found->first, found->second.bytes, device};
  }
  Result<int> export_piece(const std::byte* memory) override {
    RONDO_TRY(next());
    UniqueFd descriptor;
    {
      const std::lock_guard lock(mutex_);
      const auto found = find(created_, memory);
      if (found == created_.end()) return Status(Code::kSystem, "no such memory");
      descriptor.reset(fcntl(found->second.file, F_DUPFD_CLOEXEC, 0));
    }
    if (!descriptor.valid()) return Status(Code::kSystem, "no descriptor");
    if (after_export) after_export();
    return descriptor.release();
  }
  Result<std::byte*> reserve(size_t bytes) override {
    RONDO_TRY(next());
    std::byte* const memory = set_aside(bytes);
    const std::lock_guard lock(mutex_);
    reserved_[memory] = {.bytes = bytes, .device = current()};
    return memory;
  }
  Status free_reserved(std::byte* memory, size_t bytes) override {  // never fails, as free()
    const std::lock_guard lock(mutex_);
    const auto found = reserved_.find(memory);
    const auto inside = mapped_pieces_.lower_bound(memory);
    const bool is_free = inside == mapped_pieces_.end() || inside->first >= memory + bytes;
    if (found == reserved_.end() || found->second.bytes != bytes || !is_free) {
      return {Code::kSystem, "not reserved, or something is mapped there"};
    }
    munmap(memory, bytes);
    reserved_.erase(found);
    return {};
  }
  Status map_piece(std::byte* at, size_t bytes, int descriptor, int device) override {
    RONDO_TRY(next());
    struct stat facts {};
    const std::lock_guard lock(mutex_);
    const auto room = find(reserved_, at);
    if (room == reserved_.end() || at + bytes > room->first + room->second.bytes ||
        find(mapped_pieces_, at) != mapped_pieces_.end() || device != current() ||
        fstat(descriptor, &facts) != 0 || facts.st_size != static_cast<off_t>(bytes)) {
      return {Code::kSystem, "nothing can be mapped there"};
    }
    const Piece piece = {.bytes = bytes, .device = device, .file = descriptor};
    mapped_pieces_[map(piece, at)] = piece;
    return {};
  }
  Status unmap_piece(std::byte* at, size_t bytes) override {  // never fails, as free()
    const std::lock_guard lock(mutex_);
    contexts_.insert(current());
    const auto found = mapped_pieces_.find(at);
    if (found == mapped_pieces_.end() || found->second.bytes != bytes) {
      return {Code::kSystem, "not the whole of what is mapped there"};
    }
    mprotect(at, bytes, PROT_NONE);
    mapped_pieces_.erase(found);
    return {};
  }

  Status copy(std::byte* to, const std::byte* from, size_t bytes, Stream) override {
    RONDO_TRY(next());
    std::memcpy(to, from, bytes);
    return {};
  }
  cuda_ipc::RemoteWrites writes = cuda_ipc::RemoteWrites::kImpossible;
  std::atomic<int> flushes{0};
  Result<cuda_ipc::RemoteWrites> remote_writes(int) override {
    RONDO_TRY(next());
    return writes;
  }
  Status flush_remote_writes() override {
    RONDO_TRY(next());
    ++flushes;
    return {};
  }
  Status clear(std::byte* memory, size_t bytes, Stream) override {
    RONDO_TRY(next());
    std::memset(memory, 0, bytes);
    return {};
  }

  Result<Stream> create_stream() override { return make(); }
  Result<Stream> create_urgent_stream() override { return make(); }
  Status destroy_stream(Stream stream) override { return unmake(stream); }
  Result<uint64_t> identity_of(Stream stream) override {
    return value(uint64_t{reinterpret_cast<uintptr_t>(stream)});
  }
  Result<bool> is_done(Stream) override { return value(true); }
  Status synchronize(Stream) override { return next(); }
  Status synchronize_device() override { return next(); }
  Result<Event> create_event() override { return make(); }
  Result<Event> create_timed_event() override { return make(); }
  Result<float> elapsed_ms(Event, Event) override { return value(0.0F); }
  Status destroy_event(Event event) override { return unmake(event); }
  Status record(Event, Stream) override { return next(); }
  Status wait(Stream, Event) override { return next(); }
  Result<bool> has_happened(Event) override { return value(true); }
  Result<uint64_t> capture_of(Stream) override { return value(uint64_t{0}); }
  Result<int> exchange_capture_mode(int mode) override { return value(mode); }
  Status begin_capture(Stream, int) override { return next(); }
  Result<cuda_ipc::Graph> end_capture(Stream) override { return make(); }
  Status destroy_graph(cuda_ipc::Graph graph) override { return unmake(graph); }
  Result<cuda_ipc::ExecutableGraph> instantiate(cuda_ipc::Graph) override { return make(); }
  Status upload(cuda_ipc::ExecutableGraph, Stream) override { return next(); }
  Status destroy_executable(cuda_ipc::ExecutableGraph graph) override { return unmake(graph); }
  Status launch_graph(cuda_ipc::ExecutableGraph, Stream) override { return next(); }
  Result<int> resident_blocks(const void*, int, size_t) override { return value(1); }
  Status load(const void*) override { return next(); }
  Status allow_shared(const void* kernel, size_t bytes) override {
    RONDO_TRY(next());
    const size_t most = devices.at(static_cast<size_t>(current())).most_shared_bytes;
    if (bytes > most) return {Code::kSystem, "invalid argument"};
    const std::lock_guard lock(mutex_);
    shared_[{current(), kernel}] = bytes;
    return {};
  }
  Status launch(const cuda_ipc::Launch&) override { return next(); }

 protected:
  Status next() {
    RONDO_TRY(driver_lock.pass());
    {
      const std::lock_guard lock(mutex_);
      contexts_.insert(current());
    }
    return next_without_context();
  }
  /// Whether it is memory of these calls: none that CUDA would have to pin.
  bool is_known(const std::byte* memory) {
    const std::lock_guard lock(mutex_);
    return find(memory_, memory) != memory_.end() || find(created_, memory) != created_.end();
  }
  Status next_without_context() {
    const std::lock_guard lock(mutex_);
    if (calls++ != fail_at) return {};
    return {Code::kSystem, "call " + std::to_string(fail_at) + " was told to fail"};
  }
  template <class T>
  Result<T> value(T value) {
    RONDO_TRY(next());
    return value;
  }
  /// Whether launches of the kernel may ask for so much.
  bool is_allowed(const void* kernel, size_t shared_bytes) {
    const std::lock_guard lock(mutex_);
    const auto allowed = shared_.find({current(), kernel});
    return shared_bytes <= (allowed == shared_.end() ? size_t{48} << 10 : allowed->second);
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
    return found == 1 ? Status() : Status(Code::kSystem, "no such stream, event or graph");
  }

  static int& current() {
    thread_local int device = 0;
    return device;
  }

  mutable std::mutex mutex_;

 private:
  static std::vector<int>& entered() {
    thread_local std::vector<int> before;  // the devices to come back to
    return before;
  }
  void make_current(int device) {
    current() = device;
    const std::lock_guard lock(mutex_);
    contexts_.insert(device);
  }

  struct Piece {
    size_t bytes;
    int device;
    int file = -1;
  };
  struct Exported {
    std::byte* memory;
    size_t bytes;
    int file;
    pid_t process;
  };
  /// Of a test's forked process. REQUIRES: mutex_, and imports_elsewhere in both.
  Result<std::byte*> import_from(const Exported& exported) {
    const std::string path =
        "/proc/" + std::to_string(exported.process) + "/fd/" + std::to_string(exported.file);
    Piece piece = {.bytes = exported.bytes, .device = current()};
    piece.file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (piece.file < 0) return Status(Code::kSystem, "no such process or memory");
    std::byte* const here = map(piece);
    close(piece.file);
    ++imports;
    imported_.insert({here, {exported.memory, exported.bytes}});
    return here;
  }
  static void open_file(Piece& piece) {
    piece.file = memfd_create("fake-gpu", MFD_CLOEXEC);
    if (ftruncate(piece.file, static_cast<off_t>(piece.bytes)) != 0) std::abort();
  }
  static std::byte* map(const Piece& piece, std::byte* in_place_of = nullptr) {
    void* const memory = mmap(in_place_of, piece.bytes, PROT_READ | PROT_WRITE,
                              MAP_SHARED | (in_place_of != nullptr ? MAP_FIXED : 0), piece.file, 0);
    if (memory == MAP_FAILED) std::abort();
    return static_cast<std::byte*>(memory);
  }
  static constexpr size_t kGap = 4096;  // after created memory: what follows is not part of it
  /// Addresses with nothing there.
  static std::byte* set_aside(size_t bytes) {
    void* const memory =
        mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    return static_cast<std::byte*>(memory);
  }
  using Pieces = std::map<std::byte*, Piece>;
  /// The one that holds that byte.
  static Pieces::const_iterator find(const Pieces& pieces, const std::byte* memory) {
    auto after = pieces.upper_bound(const_cast<std::byte*>(memory));
    if (after == pieces.begin()) return pieces.end();
    --after;
    return memory < after->first + after->second.bytes ? after : pieces.end();
  }
  Status free(std::byte* memory) {
    const std::lock_guard lock(mutex_);
    contexts_.insert(current());
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

  std::set<int> contexts_;
  Pieces memory_;
  Pieces created_, reserved_, mapped_pieces_;  // create_mapped(); reserve(), map_piece()
  std::set<std::byte*> mapped_;
  std::multimap<std::byte*, std::pair<std::byte*, size_t>> imported_;  // of which memory
  std::set<std::byte*> outdated_;  // of imported_: the memory has been renewed since
  std::vector<std::unique_ptr<char>> objects_;
  std::map<std::pair<int, const void*>, size_t> shared_;  // by device and kernel
};

}  // namespace rondo::transport::test
