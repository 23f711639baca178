// CUDA's graphs for the fake GPU: what streams get while they are captured, in the order that events
// make between them. Refuses what CUDA refuses; only tasks are nodes.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rondo/status.hpp"
#include "transport/cuda_ipc/cuda_calls.hpp"

namespace rondo::device::test {

class FakeGraph {
 public:
  using Stream = transport::cuda_ipc::Stream;
  using Task = std::function<void()>;

  size_t size() const { return nodes_.size(); }
  /// After those nodes, which are earlier ones. Returns its number.
  size_t add(Stream stream, Task task, std::vector<size_t> after) {
    nodes_.push_back({stream, std::move(task), std::move(after)});
    return nodes_.size() - 1;
  }
  const std::vector<size_t>& after(size_t node) const { return nodes_[node].after; }

  /// Runs each task after those that it follows. What came from different streams runs at the same
  /// time, as far as events allow it.
  void run() const {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<bool> done(nodes_.size());
    const auto run_stream = [&](Stream stream) {
      for (size_t n = 0; n < nodes_.size(); ++n) {
        const Node& node = nodes_[n];
        if (node.stream != stream) continue;
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] {
          return std::all_of(node.after.begin(), node.after.end(),
                             [&](size_t earlier) { return done[earlier]; });
        });
        lock.unlock();
        node.task();
        lock.lock();
        done[n] = true;
        changed.notify_all();
      }
    };
    std::set<Stream> streams;
    for (const Node& node : nodes_) streams.insert(node.stream);
    std::vector<std::thread> threads;
    for (const Stream stream : streams) threads.emplace_back(run_stream, stream);
    for (std::thread& thread : threads) thread.join();
  }

 private:
  struct Node {
    Stream stream;
    Task task;
    std::vector<size_t> after;
  };
  std::vector<Node> nodes_;
};

/// A capture that begins with one stream, which others join when they wait for its events.
class FakeCapture {
 public:
  using Stream = FakeGraph::Stream;
  /// The nodes after which something comes.
  using Ends = std::set<size_t>;

  FakeCapture(Stream origin, int mode)
      : origin_(origin), mode_(mode), thread_(std::this_thread::get_id()) {
    ends_[origin];
  }

  /// Whether this thread, in that mode, may make calls that touch no captured stream.
  bool allows_others(int thread_mode) const {
    constexpr int kGlobal = 0;
    return thread_mode == transport::cuda_ipc::CudaCalls::kRelaxed ||
           (mode_ != kGlobal && thread_ != std::this_thread::get_id());
  }

  void add(Stream stream, FakeGraph::Task task) {
    Ends& ends = ends_[stream];
    ends = {graph_.add(stream, std::move(task), {ends.begin(), ends.end()})};
  }
  Ends ends(Stream stream) const { return ends_.at(stream); }
  void wait(Stream stream, const Ends& event) {
    ends_[stream].insert(event.begin(), event.end());  // perhaps it joins
  }
  /// The end will be an error.
  Status invalidate(const char* why) {
    if (invalid_.empty()) invalid_ = why;
    return {Code::kSystem, why};
  }

  Result<FakeGraph> end(Stream stream) {
    if (stream != origin_) return Status(Code::kSystem, "the capture began on another stream");
    if (thread_ != std::this_thread::get_id()) {
      return Status(Code::kSystem, "the capture began in another thread");
    }
    if (!invalid_.empty()) return Status(Code::kSystem, "the capture is invalid: " + invalid_);
    const std::vector<bool> joined = before(ends_[origin_]);
    if (std::find(joined.begin(), joined.end(), false) != joined.end()) {
      return Status(Code::kSystem, "capturing stream has unjoined work");
    }
    return std::move(graph_);
  }

 private:
  /// By node: it is one of these or comes before one.
  std::vector<bool> before(const Ends& last) const {
    std::vector<bool> found(graph_.size());
    for (const size_t node : last) found[node] = true;
    for (size_t node = graph_.size(); node-- > 0;) {
      if (!found[node]) continue;
      for (const size_t earlier : graph_.after(node)) found[earlier] = true;
    }
    return found;
  }

  const Stream origin_;
  const int mode_;
  const std::thread::id thread_;
  FakeGraph graph_;
  std::map<Stream, Ends> ends_;
  std::string invalid_;
};

}  // namespace rondo::device::test
