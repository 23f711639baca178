// A GPU for tests on machines without one: device memory is the host's, streams are queues with a
// thread each, and the kernel is the device engine, walked by a thread for each block. Streams can
// be held, and captured into graphs.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "comm/device/backend.hpp"
#include "tests/comm/device/fake_graph.hpp"
#include "tests/comm/device/fake_stream.hpp"
#include "tests/comm/device/host_blocks.hpp"
#include "tests/harness/sanitized.hpp"
#include "tests/transport/fake_cuda.hpp"

namespace rondo::device::test {

class FakeGpu final : public transport::test::FakeCuda {
 public:
  using Task = FakeGraph::Task;
  using Graph = transport::cuda_ipc::Graph;
  using ExecutableGraph = transport::cuda_ipc::ExecutableGraph;

  /// What a launch of a kernel that is not the device engine's does: called at the launch, for the
  /// task that the stream then runs. Empty: there are none.
  std::function<Task(const transport::cuda_ipc::Launch&)> other_kernels;
  /// Whether launches of these are refused unless the thread's device has loaded the kernel.
  std::atomic<bool> must_be_loaded{false};
  std::atomic<bool> can_capture_others{true};
  /// Something that the stream does, in its turn: a library's work.
  void enqueue(Stream stream, Task task) { submit(stream, std::move(task)); }
  /// As a library's first launch, which loads code. REQUIRES: driver_lock.exists.
  Status wait_for_everything() {
    return driver_lock.hold([this] { return is_idle(); });
  }

  /// What a kernel's clock goes on by whenever it looks; 0: no kernel ever loses its patience.
  std::atomic<uint64_t> ns_per_look{0};
  std::atomic<bool> first_block_is_late{false};  // by some milliseconds
  std::function<void(const std::byte* to, const std::byte* from)> before_copy;  // on its stream
  std::atomic<bool> makes_copies{true};
  std::atomic<int> launches{0}, empty_launches{0};  // with work, and without any
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
  std::optional<bool> gpu_direct{};  // of communicators to come: GpuBackend's
  GpuBackend backend(const std::shared_ptr<FakeGpu>& self, size_t program_bytes) {
    return {.cuda = self,
            .kernel = &kKernel,
            .threads = 1,
            .ll_kernel = &kLlKernel,
            .ll_threads = 1,
            .program_bytes = program_bytes,
            .gpu_direct = gpu_direct,
            .process = ranks_of_a_process > 0 ? 1 + backends_++ / ranks_of_a_process : 0};
  }

  Result<Stream> create_stream() override {
    Result<Stream> made = FakeCuda::create_stream();
    if (made.ok()) (void)queue(*made);
    return made;
  }
  Result<Stream> create_urgent_stream() override {
    const Result<Stream> made = FakeGpu::create_stream();
    if (made.ok()) queue(*made).urgent = true;
    return made;
  }
  bool is_urgent(Stream stream) { return queue(stream).urgent; }
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
    RONDO_TRY(outside_captures(stream));  // seen with CUDA 13.0
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
    RONDO_TRY(outside_captures(stream));
    drain(stream);
    return next();
  }
  /// Ends all captures, whatever the modes: it would wait for their streams.
  Status synchronize_device() override {
    RONDO_TRY(next());
    const Status allowed = outside_captures(true);
    if (!allowed.ok()) return {Code::kUnavailable, allowed.message()};
    while (!is_idle()) std::this_thread::yield();
    return {};
  }
  /// Whether all streams are.
  bool is_idle() {
    bool idle = true;
    for_queues([&](Queue& q) { idle = idle && is_idle(q); });
    return idle;
  }
  /// The same as no call of CUDA, which cannot fail.
  void drain(Stream stream) {
    Queue& q = queue(stream);
    std::unique_lock lock(q.mutex);
    q.changed.wait(lock, [&] { return q.tasks.empty() && !q.busy; });
  }
  Result<bool> is_done(Stream stream) override {
    RONDO_TRY(next());
    RONDO_TRY(outside_captures(stream));
    return idle(stream);
  }
  bool idle(Stream stream) { return is_idle(queue(stream)); }

  Status copy(std::byte* to, const std::byte* from, size_t bytes, Stream stream) override {
    RONDO_TRY(next());
    submit(stream, [=, this] {
      if (before_copy) before_copy(to, from);
      if (makes_copies) std::memcpy(to, from, bytes);
    });
    if (!driver_lock.exists || (is_known(to) && is_known(from))) return {};
    return driver_lock.hold([this, stream] { return idle(stream); });
  }
  Status clear(std::byte* memory, size_t bytes, Stream stream) override {
    RONDO_TRY(next());
    submit(stream, [=] { std::memset(memory, 0, bytes); });
    return {};
  }

  Result<Event> create_timed_event() override {
    const Event made = RONDO_TRY(FakeCuda::create_timed_event());
    const std::lock_guard lock(events_mutex_);
    events_[made].timed = true;
    return made;
  }
  Result<float> elapsed_ms(Event from, Event to) override {
    RONDO_TRY(next());
    const std::lock_guard lock(events_mutex_);
    for (const Event event : {from, to}) {
      const EventState& state = events_[event];
      if (!state.timed) return Status(Code::kSystem, "an event takes no time down");
      if (state.happened == 0 || state.happened < state.recorded) {
        return Status(Code::kSystem, "an event has not happened");
      }
    }
    const auto at = [&](Event event) {
      const auto since = events_[event].at.time_since_epoch();
      return since - since % tick;
    };
    return std::chrono::duration<float, std::milli>(at(to) - at(from)).count();
  }
  std::chrono::nanoseconds tick{1};  // the resolution of events' times
  std::function<std::chrono::steady_clock::time_point()> now = &std::chrono::steady_clock::now;
  Status destroy_event(Event event) override {
    {
      const std::lock_guard lock(events_mutex_);
      // Streams may still wait for it, and a later one have its handle.
      events_[event].timed = false;
      events_[event].captured = 0;
    }
    return FakeCuda::destroy_event(event);
  }
  Status record(Event event, Stream stream) override {
    RONDO_TRY(next());
    const std::lock_guard captures_lock(captures_mutex_);
    const std::lock_guard lock(events_mutex_);
    if (FakeCapture* const capture = find_capture(stream)) {
      events_[event].captured = queue(stream).capture;
      events_[event].captured_after = capture->ends(stream);
      return {};
    }
    events_[event].captured = 0;
    const uint64_t number = ++events_[event].recorded;
    submit(stream, [this, event, number] {
      const std::lock_guard inner(events_mutex_);
      events_[event].happened = std::max(events_[event].happened, number);
      events_[event].at = now();
      event_happened_.notify_all();
    });
    return {};
  }
  Status wait(Stream stream, Event event) override {
    RONDO_TRY(next());
    const std::lock_guard captures_lock(captures_mutex_);
    uint64_t number = 0;
    {
      const std::lock_guard lock(events_mutex_);
      const EventState& state = events_[event];
      if (state.captured != 0 || find_capture(stream) != nullptr) return join(stream, state);
      number = state.recorded;
    }
    submit(stream, [this, event, number, &q = queue(stream)] {
      q.waits_for_event = true;
      std::unique_lock lock(events_mutex_);
      event_happened_.wait(lock, [&] { return events_[event].happened >= number; });
      q.waits_for_event = false;
    });
    return {};
  }
  bool waits_for_event(Stream stream) { return queue(stream).waits_for_event; }
  Result<bool> has_happened(Event event) override {
    RONDO_TRY(next());
    RONDO_TRY(outside_captures());
    const std::lock_guard captures_lock(captures_mutex_);
    const std::lock_guard lock(events_mutex_);
    if (const uint64_t capture = events_[event].captured; capture != 0) {
      return invalidate(capture, "operation not permitted on an event last recorded in a capture");
    }
    return events_[event].happened >= events_[event].recorded;
  }

  Result<uint64_t> capture_of(Stream stream) override {
    RONDO_TRY(next());
    return queue(stream).capture.load();
  }
  Result<int> exchange_capture_mode(int mode) override {
    RONDO_TRY(next());
    return std::exchange(capture_mode(), mode);
  }
  /// By default as an application may: no thread makes calls meanwhile that may wait.
  Status begin_capture(Stream stream, int mode = 0) override {
    RONDO_TRY(next());
    const std::lock_guard lock(captures_mutex_);
    if (find_capture(stream) != nullptr) return {Code::kSystem, "it is being captured already"};
    queue(stream).capture = ++capture_numbers_;
    captures_.emplace(capture_numbers_, FakeCapture(stream, mode));
    return {};
  }
  Result<Graph> end_capture(Stream stream) override {
    RONDO_TRY(next());
    const std::lock_guard lock(captures_mutex_);
    FakeCapture* const capture = find_capture(stream);
    if (capture == nullptr) return Status(Code::kSystem, "it is not being captured");
    Result<FakeGraph> graph = capture->end(stream);
    captures_.erase(queue(stream).capture);
    for_queues([&, number = queue(stream).capture.load()](Queue& q) {
      if (q.capture == number) q.capture = 0;
    });
    RONDO_TRY(graph.status());
    const Graph made = RONDO_TRY(make());
    graphs_[made] = std::make_shared<const FakeGraph>(std::move(*graph));
    return made;
  }
  Status destroy_graph(Graph graph) override {
    const std::lock_guard lock(captures_mutex_);
    graphs_.erase(graph);
    return unmake(graph);
  }
  Result<ExecutableGraph> instantiate(Graph graph) override {
    RONDO_TRY(next());
    RONDO_TRY(outside_captures());
    if (--instances_left < 0) return Status(Code::kResourceExhausted, "no memory for a graph");
    const ExecutableGraph made = RONDO_TRY(make());
    const std::lock_guard lock(captures_mutex_);
    graphs_[made] = graphs_.at(graph);
    return made;
  }
  Status destroy_executable(ExecutableGraph graph) override { return destroy_graph(graph); }
  Status launch_graph(ExecutableGraph graph, Stream stream) override {
    RONDO_TRY(next());
    replay(graph, stream);
    ++graph_launches;
    return {};
  }
  /// Either kind of graph.
  void replay(void* graph, Stream stream) {
    submit(stream, [replayed = find_graph(graph)] { replayed->run(); });
  }
  std::atomic<int> graph_launches{0};
  std::atomic<int> instances_left{1 << 30};

  Result<std::byte*> allocate(size_t bytes) override {
    RONDO_TRY(outside_captures());
    return FakeCuda::allocate(bytes);
  }
  // As cudaFree, which waits for kernels: a peer's may still read the memory of a rank that has failed.
  // Not for long: kernels of some tests wait for what comes after this.
  Status release(std::byte* memory) override {
    RONDO_TRY(outside_captures());
    for (int turn = 0; turn < 500 && walking_ > 0; ++turn) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return FakeCuda::release(memory);
  }
  Status release_mapped(std::byte* memory) override { return release(memory); }

  Status load(const void* kernel) override {
    RONDO_TRY(next());
    const std::lock_guard lock(loaded_mutex_);
    loaded_.insert({current(), kernel});
    return {};
  }
  Status launch(const transport::cuda_ipc::Launch& launch) override {
    RONDO_TRY(next());
    const bool only_ll = launch.kernel == &kLlKernel;
    if (launch.kernel != &kKernel && !only_ll) {
      if (!other_kernels) return {Code::kSystem, "no such kernel"};
      if (must_be_loaded && !is_loaded(launch.kernel)) {
        return {Code::kSystem, "the kernel's first launch would load it, and may wait for others"};
      }
      if (!is_allowed(launch.kernel, launch.shared_bytes)) {
        return {Code::kSystem, "invalid argument"};
      }
      if (!can_capture_others && queue(launch.stream).capture != 0) {
        return {Code::kSystem, "operation not permitted when stream is capturing"};
      }
      submit(launch.stream, other_kernels(launch));
      return {};
    }
    const auto links = *static_cast<const engine::DeviceLinks*>(launch.arguments[0]);
    const auto group = *static_cast<const engine::DeviceGroup*>(launch.arguments[1]);
    submit(launch.stream, [this, links, group, only_ll, blocks = launch.blocks] {
      const bool is_empty = group.operation_count == 0 && group.lane_count == 0;
      ++(is_empty ? empty_launches : launches);
      launches_on_one_gpu += links.one_gpu;
      for (uint32_t i = 0; i < group.operation_count; ++i) {
        launches_by_ll += group.operations[i].protocol == engine::Protocol::kLl;
      }
      std::vector<std::thread> threads;
      for (int block = 1; block < blocks; ++block) {
        threads.emplace_back([&, block] { walk(links, group, block, only_ll); });
      }
      walk(links, group, 0, only_ll);
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
  using Queue = FakeQueue;
  using EventState = FakeEvent;
  // Sees what a rank touches.
  struct WatchedBlock : engine::test::HostBlock {
    FakeGpu& gpu;
    uint32_t rank;

    uint64_t now_ns() { return clock += gpu.ns_per_look; }
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

  bool is_loaded(const void* kernel) {
    const std::lock_guard lock(loaded_mutex_);
    return loaded_.count({current(), kernel}) > 0;
  }

  static constexpr char kKernel = 0, kLlKernel = 0;
  static int& capture_mode() {
    thread_local int mode = 0;  // global
    return mode;
  }

  void walk(const engine::DeviceLinks& links, const engine::DeviceGroup& group, int block,
            bool only_ll) {
    ++walking_;
    const std::shared_ptr<void> walked(nullptr, [this](void*) { --walking_; });
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
    WatchedBlock host{{memory, 0, 1}, *this, links.rank};
    using Access = engine::test::HostAccess;
    const auto walk = only_ll ? engine::walk_ll_group<WatchedBlock, Access>
                              : engine::walk_group<WatchedBlock, Access>;
    walk(links, group, static_cast<uint32_t>(block), host);
    if (links.shape.ranks == 0) return;  // an empty launch
    const size_t place = layout.peer(channel, links.rank);
    for (uint32_t peer = 0; peer < links.shape.ranks; ++peer) {
      if (peer == links.rank || links.segments[peer] == nullptr) continue;
      const auto& line =
          *reinterpret_cast<const transport::cuda_ipc::PeerLine*>(links.segments[peer] + place);
      if (line.epoch <= before) continue;  // of an earlier launch
      const std::lock_guard lock(told_mutex_);
      told_.insert({line.in, line.out});
    }
  }

  /// What is forbidden is refused, and ends the captures that forbid it; `all`: whatever they do.
  Status outside_captures(bool all = false) {
    const std::lock_guard lock(captures_mutex_);
    Status refused;
    for (auto& [number, capture] : captures_) {
      if (!all && capture.allows_others(capture_mode())) continue;
      refused = capture.invalidate("operation not permitted when stream is capturing");
    }
    return refused;
  }
  /// And not about a stream that is captured.
  Status outside_captures(Stream stream) {
    RONDO_TRY(outside_captures());
    const std::lock_guard lock(captures_mutex_);
    FakeCapture* const capture = find_capture(stream);
    return capture == nullptr ? Status() : capture->invalidate("nothing to ask a captured stream");
  }
  std::shared_ptr<const FakeGraph> find_graph(void* graph) {
    const std::lock_guard lock(captures_mutex_);
    return graphs_.at(graph);
  }
  /// REQUIRES: captures_mutex_, as the next two.
  FakeCapture* find_capture(Stream stream) {
    const auto found = captures_.find(queue(stream).capture);
    return found == captures_.end() ? nullptr : &found->second;
  }
  Status invalidate(uint64_t capture, const char* why) {
    const auto found = captures_.find(capture);
    return found != captures_.end() ? found->second.invalidate(why) : Status(Code::kSystem, why);
  }
  /// Makes the stream wait inside of a capture.
  Status join(Stream stream, const EventState& event) {
    Queue& q = queue(stream);
    const auto capture = captures_.find(event.captured);
    if (capture != captures_.end() && (q.capture == 0 || q.capture == event.captured)) {
      q.capture = event.captured;
      capture->second.wait(stream, event.captured_after);
      return {};
    }
    const char* const why = "dependency between a capture and what is outside of it";
    (void)invalidate(q.capture, why);
    return invalidate(event.captured, why);
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
  template <class Call>
  void for_queues(const Call& call) {
    const std::lock_guard lock(queues_mutex_);
    for (const auto& [stream, q] : queues_) call(*q);
  }

  void submit(Stream stream, Task task) {
    Queue& q = queue(stream);
    if (const uint64_t number = q.capture; number != 0) {
      const std::lock_guard lock(captures_mutex_);
      return captures_.at(number).add(stream, std::move(task));
    }
    const std::lock_guard lock(q.mutex);
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
      lag();
      task();
      lock.lock();
      q.busy = false;
      q.changed.notify_all();
    }
  }
  /// Where sanitizers watch, streams are late now and then: what the host frees too early shows.
  static void lag() {
    if (!rondo::testing::kSanitized) return;
    thread_local uint32_t tasks = 0;
    if (++tasks % 32 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  static bool is_idle(Queue& q) {
    const std::lock_guard lock(q.mutex);
    return q.tasks.empty() && !q.busy;
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
  std::atomic<int> walking_{0};  // kernels
  std::map<Stream, std::unique_ptr<Queue>> queues_;
  uint64_t streams_ = 0;
  std::atomic<uint64_t> backends_{0};
  std::mutex captures_mutex_;  // before the others
  uint64_t capture_numbers_ = 0;
  std::map<uint64_t, FakeCapture> captures_;  // under way
  std::map<void*, std::shared_ptr<const FakeGraph>> graphs_;
  std::mutex loaded_mutex_;
  std::set<std::pair<int, const void*>> loaded_;  // on which device
  std::mutex told_mutex_;
  std::set<const std::byte*> told_;
  std::map<const std::byte*, std::pair<size_t, uint32_t>> owned_;
  std::mutex events_mutex_;
  std::condition_variable event_happened_;
  std::map<Event, EventState> events_;
};

}  // namespace rondo::device::test
