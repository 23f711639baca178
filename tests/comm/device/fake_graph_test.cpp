// What the fake CUDA runtime refuses around captures, as CUDA does. If it refused nothing, tests of
// captured communicators could not fail.
#include <functional>
#include <thread>

#include "tests/comm/device/world.hpp"

namespace rondo::device::fake_graph_test {
namespace {

using namespace test;

struct Streams {
  FakeGpu gpu;
  const Stream first = gpu.create_stream().value(), second = gpu.create_stream().value();
  const Event forked = gpu.create_event().value(), joined = gpu.create_event().value();

  // Tests in which calls fail may have left another one to this thread.
  const int mode_before = gpu.exchange_capture_mode(0).value();

  void begin(int mode = CudaCalls::kThreadLocal) { must(gpu.begin_capture(first, mode)); }
  void end_well() { must(gpu.destroy_graph(gpu.end_capture(first).value())); }
  void end_badly(const char* why) { says(gpu.end_capture(first).status(), why); }
};

}  // namespace

TEST_CASE("A capture that leaves a stream unjoined is no graph") {
  Streams s;
  s.begin();
  must(s.gpu.record(s.forked, s.first));
  must(s.gpu.wait(s.second, s.forked));
  s.gpu.enqueue(s.second, [] {});
  s.end_badly("unjoined");
}

TEST_CASE("Nothing depends on both sides of a capture's edge") {
  Streams s;
  must(s.gpu.record(s.joined, s.second));
  s.begin();
  CHECK_FALSE(s.gpu.wait(s.first, s.joined).ok());
  s.end_badly("invalid");
  s.begin();
  must(s.gpu.record(s.forked, s.first));
  s.end_well();
  CHECK_FALSE(s.gpu.wait(s.second, s.forked).ok());
  CHECK_FALSE(s.gpu.has_happened(s.forked).ok());
}

TEST_CASE("What may wait is forbidden to the thread that captures, others go on") {
  Streams s;
  std::byte* const memory = s.gpu.allocate(64).value();
  const std::function<bool()> calls[] = {[&] { return s.gpu.allocate(64).ok(); },
                                         [&] { return s.gpu.release(memory).ok(); },
                                         [&] { return s.gpu.synchronize(s.second).ok(); },
                                         [&] { return s.gpu.has_happened(s.joined).ok(); },
                                         [&] { return s.gpu.synchronize_device().ok(); }};
  for (const auto& call : calls) {
    s.begin();
    CHECK_FALSE(call());
    s.end_badly("invalid");
  }
  s.begin();
  std::thread([&] { CHECK(s.gpu.has_happened(s.joined).ok()); }).join();
  s.end_well();
  s.begin(0);  // global: of all threads
  std::thread([&] { CHECK_FALSE(s.gpu.has_happened(s.joined).ok()); }).join();
  s.end_badly("invalid");
  s.begin(CudaCalls::kRelaxed);
  std::thread([&] { CHECK_FALSE(s.gpu.synchronize_device().ok()); }).join();
  s.end_badly("invalid");
}

}  // namespace rondo::device::fake_graph_test
