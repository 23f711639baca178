// A GPU for tests on machines without one: device memory is the host's, streams are queues with a
// thread each, and the kernel is the device engine, walked by a thread for each block. Streams can
// be held, and captured into graphs.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "comm/device/backend.hpp"
#include "tests/comm/device/host_blocks.hpp"
#include "tests/transport/fake_cuda.hpp"

namespace rondo::device::test {

class FakeGpu final : public transport::test::FakeCuda {
 public:
  using Task = std::function<void()>;
  using Graph = std::vector<Task>;

  /// What a kernel's clock goes on by whenever it looks; 0: no kernel ever loses its patience.
  std::atomic<uint64_t> ns_per_look{0};
  std::atomic<bool> first_block_is_late{false};       // by some milliseconds
  size_t staging_bytes = GpuBackend{}.staging_bytes;  // of communicators to come
  std::atomic<bool> copies_queue_after_waits{false};  // as where streams share a queue
  std::atomic<int> launches{0}, empty_launches{0};    // with work, and without any
  std::atomic<int> launches_by_ll{0};
  std::atomic<int> launches_on_one_gpu{0};  // whose fences need not reach beyond it
  /// The buffers that kernels have told peers of.
  std::set<const std::byte*> told() {
    const std::lock_guard lock(told_mutex_);
    return told_;
  }
  /// From here on what told() returned does not count.
  void forget_told() {
    const std::lock_guard lock(told_mutex_);
    told_.clear();
  }

  /// Only kernels of that rank may touch this memory at its address. How often others have.
  void belongs_to(uint32_t rank, const void* memory, size_t bytes) {
    const std::lock_guard lock(told_mutex_);
    owned_[static_cast<const std::byte*>(memory)] = {bytes, rank};
  }
  std::atomic<int> trespasses{0};

  explicit FakeGpu(int device_count = 1, int multiprocessors = 100) {
    devices.clear();
    for (int d = 0; d < device_count; ++d) {
      devices.push_back({});
      devices.back().uuid[0] = static_cast<std::byte>(d + 1);
      devices.back().multiprocessors = multiprocessors;
      for (int p = 0; p < device_count; ++p) peers.insert({d, p});
    }
  }
  ~FakeGpu() override {
    for (auto& [handle, queue] : queues_) finish(*queue);
  }

  /// Not 0: so many calls of backend(), one after the other, count as one process.
  int ranks_of_a_process = 0;
  GpuBackend backend(const std::shared_ptr<FakeGpu>& self, size_t program_bytes) {
    return {.cuda = self,
            .kernel = &kKernel,
            .threads = 1,
            .program_bytes = program_bytes,
            .staging_bytes = staging_bytes,
            .process = ranks_of_a_process > 0 ? 1 + backends_++ / ranks_of_a_process : 0};
  }

  Result<Stream> create_stream() override {
    Result<Stream> made = FakeCuda::create_stream();
    if (made.ok()) (void)queue(*made);
    return made;
  }
  Status destroy_stream(Stream stream) override {
    finish(queue(stream));
    {
      const std::lock_guard lock(queues_mutex_);
      queues_.erase(stream);
    }
    return FakeCuda::destroy_stream(stream);
  }
  Result<uint64_t> identity_of(Stream stream) override {
    RONDO_TRY(next());
    return queue(stream).identity;
  }
  /// Destroys a stream, whose work goes on, and creates one with the same handle. Returns a handle
  /// for the work.
  Stream replace(Stream stream) {
    const Stream old = *FakeCuda::create_stream();
    const std::lock_guard lock(queues_mutex_);
    std::swap(queues_[old], queues_[stream]);
    return old;
  }
  Status synchronize(Stream stream) override {
    drain(stream);
    return next();
  }
  Status synchronize_device() override {
    RONDO_TRY(next());
    while (!is_idle()) std::this_thread::yield();
    return {};
  }
  /// Whether all streams are.
  bool is_idle() {
    const std::lock_guard lock(queues_mutex_);
    return std::all_of(queues_.begin(), queues_.end(), [](const auto& each) {
      const std::lock_guard inner(each.second->mutex);
      return each.second->tasks.empty() && !each.second->busy;
    });
  }
  /// The same as no call of CUDA, which cannot fail.
  void drain(Stream stream) {
    Queue& q = queue(stream);
    std::unique_lock lock(q.mutex);
    q.changed.wait(lock, [&] { return q.tasks.empty() && !q.busy; });
  }
  Result<bool> is_done(Stream stream) override {
    RONDO_TRY(next());
    RONDO_TRY(outside_captures());
    return idle(stream);
  }
  bool idle(Stream stream) {
    Queue& q = queue(stream);
    const std::lock_guard lock(q.mutex);
    return q.tasks.empty() && !q.busy;
  }

  Status copy(std::byte* to, const std::byte* from, size_t bytes, Stream stream) override {
    RONDO_TRY(next());
    submit(stream, [=, this] {
      while (copies_queue_after_waits && waits_for_words_ > 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
      std::memcpy(to, from, bytes);
    });
    return {};
  }
  Status clear(std::byte* memory, size_t bytes, Stream stream) override {
    RONDO_TRY(next());
    submit(stream, [=] { std::memset(memory, 0, bytes); });
    return {};
  }

  Status record(Event event, Stream stream) override {
    RONDO_TRY(next());
    if (capture(stream) != 0) return {};  // the order of a graph's tasks is theirs already
    const std::lock_guard lock(events_mutex_);
    const uint64_t number = ++events_[event].recorded;
    submit(stream, [this, event, number] {
      const std::lock_guard inner(events_mutex_);
      events_[event].happened = std::max(events_[event].happened, number);
      event_happened_.notify_all();
    });
    return {};
  }
  Status wait(Stream stream, Event event) override {
    RONDO_TRY(next());
    if (capture(stream) != 0) return {};
    uint64_t number = 0;
    {
      const std::lock_guard lock(events_mutex_);
      number = events_[event].recorded;
    }
    submit(stream, [this, event, number, &q = queue(stream)] {
      q.waits_for_event = true;
      std::unique_lock lock(events_mutex_);
      event_happened_.wait(lock, [&] { return events_[event].happened >= number; });
      q.waits_for_event = false;
    });
    return {};
  }
  Status wait_for_word(Stream stream, const uint32_t* word, uint32_t value) override {
    RONDO_TRY(next());
    ++waits_for_words_;
    submit(stream, [this, word, value] {
      // Acquire: pairs with the release of whoever lets the stream go on.
      const std::atomic_ref<uint32_t> there(*const_cast<uint32_t*>(word));
      while (static_cast<int32_t>(there.load(std::memory_order_acquire) - value) < 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
      --waits_for_words_;
    });
    return {};
  }
  bool waits_for_event(Stream stream) { return queue(stream).waits_for_event; }
  Result<bool> has_happened(Event event) override {
    RONDO_TRY(next());
    RONDO_TRY(outside_captures());
    const std::lock_guard lock(events_mutex_);
    return events_[event].happened >= events_[event].recorded;
  }

  Result<uint64_t> capture_of(Stream stream) override {
    RONDO_TRY(next());
    return capture(stream);
  }
  Result<int> exchange_capture_mode(int mode) override {
    RONDO_TRY(next());
    return std::exchange(capture_mode(), mode);
  }
  void begin_capture(Stream stream) { queue(stream).capture = ++captures_; }
  Graph end_capture(Stream stream) {
    queue(stream).capture = 0;
    return std::exchange(queue(stream).graph, {});
  }
  void replay(const Graph& graph, Stream stream) {
    for (const Task& task : graph) submit(stream, task);
  }

  Status launch(const transport::cuda_ipc::Launch& launch) override {
    RONDO_TRY(next());
    if (launch.kernel != &kKernel) return {Code::kSystem, "no such kernel"};
    const auto links = *static_cast<const engine::DeviceLinks*>(launch.arguments[0]);
    const auto group = *static_cast<const engine::DeviceGroup*>(launch.arguments[1]);
    submit(launch.stream, [this, links, group, blocks = launch.blocks] {
      const bool is_empty = group.operation_count == 0 && group.lane_count == 0;
      ++(is_empty ? empty_launches : launches);
      launches_on_one_gpu += links.one_gpu;
      for (uint32_t i = 0; i < group.operation_count; ++i) {
        launches_by_ll += group.operations[i].protocol == engine::Protocol::kLl;
      }
      std::vector<std::thread> threads;
      for (int block = 1; block < blocks; ++block) {
        threads.emplace_back([&, block] { walk(links, group, block); });
      }
      walk(links, group, 0);
      for (std::thread& thread : threads) thread.join();
    });
    return {};
  }

  /// From here on the stream stands still, until let_go().
  void hold(Stream stream) {
    Queue& q = queue(stream);
    q.held = true;
    submit(stream, [&q] { q.held.wait(true); });
  }
  void let_go(Stream stream) {
    queue(stream).held = false;
    queue(stream).held.notify_all();
  }

 private:
  struct Queue {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Task> tasks;
    bool busy = false, ends = false;
    std::atomic<bool> held{false}, waits_for_event{false};
    std::atomic<uint64_t> capture{0};
    Graph graph;
    uint64_t identity = 0;
    std::thread worker;
  };
  struct EventState {
    uint64_t recorded = 0, happened = 0;
  };

  // Sees what a rank touches.
  struct WatchedBlock : engine::test::HostBlock {
    FakeGpu& gpu;
    uint32_t rank;

    void move(DataType type, ReduceOp op, const kernels::Move& whole) {
      for (uint32_t i = 0; i < whole.source_count; ++i) gpu.check(rank, whole.sources[i]);
      for (uint32_t i = 0; i < whole.destination_count; ++i) gpu.check(rank, whole.destinations[i]);
      HostBlock::move(type, op, whole);
    }
  };
  void check(uint32_t rank, const std::byte* memory) {
    const std::lock_guard lock(told_mutex_);
    auto after = owned_.upper_bound(memory);
    if (after == owned_.begin()) return;
    const auto& [begin, piece] = *--after;
    if (memory < begin + piece.first && piece.second != rank) ++trespasses;
  }

  static constexpr char kKernel = 0;
  static int& capture_mode() {
    thread_local int mode = 0;  // global
    return mode;
  }

  void walk(const engine::DeviceLinks& links, const engine::DeviceGroup& group, int block) {
    if (block == 0 && first_block_is_late) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    engine::test::HostBlockMemory memory(1);
    const auto channel = static_cast<size_t>(block);
    const transport::cuda_ipc::SegmentLayout layout(links.shape);
    const uint64_t before = links.shape.ranks == 0
                                ? 0
                                : reinterpret_cast<const transport::cuda_ipc::StateLine*>(
                                      links.segments[links.rank] + layout.state(channel))
                                      ->epoch;
    WatchedBlock host{{memory, 0, 1, ns_per_look}, *this, links.rank};
    engine::walk_group<WatchedBlock, engine::test::HostAccess>(links, group,
                                                               static_cast<uint32_t>(block), host);
    if (links.shape.ranks == 0) return;  // an empty launch
    const size_t place = layout.peer(channel, links.rank);
    for (uint32_t peer = 0; peer < links.shape.ranks; ++peer) {
      if (peer == links.rank) continue;
      const auto& line =
          *reinterpret_cast<const transport::cuda_ipc::PeerLine*>(links.segments[peer] + place);
      if (line.epoch <= before) continue;  // of an earlier launch
      const std::lock_guard lock(told_mutex_);
      told_.insert({line.in, line.out});
    }
  }

  Status outside_captures() {
    const std::lock_guard lock(queues_mutex_);
    const bool captures = std::any_of(queues_.begin(), queues_.end(),
                                      [](const auto& each) { return each.second->capture != 0; });
    if (!captures || capture_mode() == kRelaxed) return {};
    return {Code::kSystem, "operation not permitted when stream is capturing"};
  }

  // The default stream is a null one.
  Queue& queue(Stream stream) {
    const std::lock_guard lock(queues_mutex_);
    std::unique_ptr<Queue>& q = queues_[stream];
    if (!q) {
      q = std::make_unique<Queue>();
      q->identity = ++streams_;
      q->worker = std::thread([&q = *q] { work(q); });
    }
    return *q;
  }
  uint64_t capture(Stream stream) { return queue(stream).capture; }

  void submit(Stream stream, Task task) {
    Queue& q = queue(stream);
    const std::lock_guard lock(q.mutex);
    if (q.capture != 0) {
      q.graph.push_back(std::move(task));
      return;
    }
    q.tasks.push_back(std::move(task));
    q.changed.notify_all();
  }
  static void work(Queue& q) {
    std::unique_lock lock(q.mutex);
    while (true) {
      q.changed.wait(lock, [&] { return q.ends || !q.tasks.empty(); });
      if (q.tasks.empty()) return;
      const Task task = std::move(q.tasks.front());
      q.tasks.pop_front();
      q.busy = true;
      lock.unlock();
      task();
      lock.lock();
      q.busy = false;
      q.changed.notify_all();
    }
  }
  static void finish(Queue& q) {
    {
      const std::lock_guard lock(q.mutex);
      q.ends = true;
      q.changed.notify_all();
    }
    if (q.worker.joinable()) q.worker.join();
  }

  std::mutex queues_mutex_;
  std::map<Stream, std::unique_ptr<Queue>> queues_;
  uint64_t streams_ = 0;
  std::atomic<uint64_t> backends_{0};
  std::atomic<uint64_t> captures_{0};
  std::atomic<int> waits_for_words_{0};  // enqueued, and not passed
  std::mutex told_mutex_;
  std::set<const std::byte*> told_;
  std::map<const std::byte*, std::pair<size_t, uint32_t>> owned_;
  std::mutex events_mutex_;
  std::condition_variable event_happened_;
  std::map<Event, EventState> events_;
};

}  // namespace rondo::device::test
