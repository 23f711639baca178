// The fake GPU's graphs: what it captures, what it refuses as CUDA does, and the order of a replay.
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/comm/device/fake_gpu.hpp"
#include "tests/harness/catch.hpp"

namespace rondo::device::fake_graph_test {
namespace {

using test::FakeGpu;

struct Rig {
  FakeGpu gpu;
  const Stream first = gpu.create_stream().value(), second = gpu.create_stream().value();
  const Event forked = gpu.create_event().value(), joined = gpu.create_event().value();

  // Tests in which calls fail may have left another one to this thread.
  const int mode_before = gpu.exchange_capture_mode(0).value();

  ~Rig() {
    for (const Stream stream : {first, second}) CHECK(gpu.destroy_stream(stream).ok());
    for (const Event event : {forked, joined}) CHECK(gpu.destroy_event(event).ok());
    CHECK(gpu.alive() == 0);
  }
  Status fork() {
    RONDO_TRY(gpu.record(forked, first));
    return gpu.wait(second, forked);
  }
  Status join() {
    RONDO_TRY(gpu.record(joined, second));
    return gpu.wait(first, joined);
  }
};

bool says(const Status& status, const std::string& words) {
  return status.message().find(words) != std::string::npos;
}

}  // namespace

TEST_CASE("A replay keeps the order that events made between captured streams") {
  Rig rig;
  FakeGpu& gpu = rig.gpu;
  std::atomic<int> stage{0}, wrong{0};
  const auto from_to = [&](int from, int to) {
    return [&, from, to] { wrong += stage.exchange(to) == from ? 0 : 1; };
  };
  std::atomic<bool> met[2];
  const auto meet = [&](int own) {  // ends only if both run at the same time
    return [&met, own] {
      met[own] = true;
      while (!met[1 - own]) std::this_thread::yield();
    };
  };
  REQUIRE(gpu.begin_capture(rig.first, CudaCalls::kThreadLocal).ok());
  gpu.enqueue(rig.first, from_to(0, 1));
  REQUIRE(rig.fork().ok());
  CHECK(*gpu.capture_of(rig.second) == *gpu.capture_of(rig.first));
  gpu.enqueue(rig.second, from_to(1, 2));
  gpu.enqueue(rig.second, meet(1));
  gpu.enqueue(rig.first, meet(0));
  REQUIRE(rig.join().ok());
  gpu.enqueue(rig.first, from_to(2, 3));
  const FakeGpu::Graph graph = gpu.end_capture(rig.first).value();
  CHECK((*gpu.capture_of(rig.first) == 0 && *gpu.capture_of(rig.second) == 0));
  CHECK(gpu.size_of_graph(graph) == 5);
  const FakeGpu::ExecutableGraph executable = gpu.instantiate(graph).value();
  CHECK(gpu.destroy_graph(graph).ok());
  gpu.drain(rig.first);
  CHECK(stage == 0);
  for (int replay = 0; replay < 3; ++replay) {
    stage = 0;
    met[0] = met[1] = false;
    REQUIRE(gpu.launch_graph(executable, rig.first).ok());
    gpu.drain(rig.first);
    CHECK((stage == 3 && wrong == 0));
  }
  CHECK(gpu.graph_launches == 3);
  CHECK(gpu.destroy_executable(executable).ok());
}

TEST_CASE("A capture that leaves a stream unjoined is no graph, and streams go on") {
  Rig rig;
  REQUIRE(rig.gpu.begin_capture(rig.first, CudaCalls::kThreadLocal).ok());
  REQUIRE(rig.fork().ok());
  rig.gpu.enqueue(rig.second, [] {});
  CHECK(says(rig.gpu.end_capture(rig.first).status(), "unjoined"));
  std::atomic<bool> ran{false};
  rig.gpu.enqueue(rig.second, [&ran] { ran = true; });
  rig.gpu.drain(rig.second);
  CHECK(ran);
}

TEST_CASE("Nothing depends on both sides of a capture's edge") {
  Rig rig;
  FakeGpu& gpu = rig.gpu;
  REQUIRE(gpu.record(rig.joined, rig.second).ok());
  REQUIRE(gpu.begin_capture(rig.first, CudaCalls::kThreadLocal).ok());
  CHECK_FALSE(gpu.wait(rig.first, rig.joined).ok());
  CHECK(says(gpu.end_capture(rig.first).status(), "invalid"));
  REQUIRE(gpu.begin_capture(rig.first, CudaCalls::kThreadLocal).ok());
  REQUIRE(gpu.record(rig.forked, rig.first).ok());
  CHECK(gpu.destroy_graph(*gpu.end_capture(rig.first)).ok());
  CHECK_FALSE(gpu.wait(rig.second, rig.forked).ok());
  CHECK_FALSE(gpu.has_happened(rig.forked).ok());
  REQUIRE(gpu.record(rig.forked, rig.first).ok());  // as any other event again
  CHECK(gpu.wait(rig.second, rig.forked).ok());
}

TEST_CASE("What may wait is forbidden to the thread that captures, others go on") {
  Rig rig;
  FakeGpu& gpu = rig.gpu;
  std::byte* const memory = gpu.allocate(64).value();
  const std::function<bool()> calls[] = {[&] { return gpu.allocate(64).ok(); },
                                         [&] { return gpu.release(memory).ok(); },
                                         [&] { return gpu.synchronize(rig.second).ok(); },
                                         [&] { return gpu.has_happened(rig.joined).ok(); }};
  for (const auto& call : calls) {
    REQUIRE(gpu.begin_capture(rig.first, CudaCalls::kThreadLocal).ok());
    CHECK_FALSE(call());
    CHECK(says(gpu.end_capture(rig.first).status(), "invalid"));
  }
  REQUIRE(gpu.begin_capture(rig.first, CudaCalls::kThreadLocal).ok());
  std::thread([&] {
    CHECK(gpu.has_happened(rig.joined).ok());
    CHECK(gpu.synchronize(rig.second).ok());
  }).join();
  CHECK(gpu.destroy_graph(*gpu.end_capture(rig.first)).ok());
  REQUIRE(gpu.begin_capture(rig.first).ok());
  std::thread([&] { CHECK_FALSE(gpu.has_happened(rig.joined).ok()); }).join();
  CHECK(says(gpu.end_capture(rig.first).status(), "invalid"));
  CHECK(gpu.release(memory).ok());
}

TEST_CASE("A wait for the whole device ends captures of all threads and modes") {
  Rig rig;
  FakeGpu& gpu = rig.gpu;
  REQUIRE(gpu.begin_capture(rig.first, CudaCalls::kRelaxed).ok());
  std::thread([&] {
    (void)gpu.exchange_capture_mode(CudaCalls::kRelaxed);
    CHECK_FALSE(gpu.synchronize_device().ok());
  }).join();
  CHECK(says(gpu.end_capture(rig.first).status(), "invalid"));
  CHECK(gpu.synchronize_device().ok());
}

}  // namespace rondo::device::fake_graph_test
