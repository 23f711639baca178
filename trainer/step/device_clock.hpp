// What a step on a device took, and when, by events on the stream that computes and on that which
// communicates: the host only knows when it enqueued something. Draws the trace's spans of it.
//
// All of a step's times count from one event, its begin, on one clock, the GPU's: so spans of both
// streams are in the order in which they were, to the events' resolution (half a microsecond). On one
// stream the order is known, and is kept where two events have the same time. The begin counts from
// the end of the step before: differences of CUDA's events are floats, and over hours are coarse.
#pragma once

#include <cstdint>
#include <vector>

#include "rondo/ddp.hpp"
#include "trainer/base/device.hpp"
#include "trainer/models/model.hpp"
#include "trainer/report/measurements.hpp"
#include "trainer/report/report.hpp"
#include "trainer/report/timeline.hpp"

namespace rondo::trainer {

/// One thread. Two steps may be under way, after one that has ended. Borrows everything. A failure is
/// the device's.
class DeviceClock : public ForwardListener {
 public:
  /// Notes layers only where there is a timeline; transfers of `ddp`, if it is not null.
  DeviceClock(Device& device, DistributedDataParallel* ddp, Timeline timeline, bool draws);
  ~DeviceClock() override;
  DeviceClock(const DeviceClock&) = delete;
  DeviceClock& operator=(const DeviceClock&) = delete;

  /// Each notes when the stream gets there, from a step's begin to its end; else it does nothing. The
  /// begin of the first step, and of one after pause(), waits until the stream is there.
  void step_begins(uint64_t number);
  void forward_begins(int layer) override;
  void backward_layer_begins(int layer);
  void backward_ends() { mark(kBackwardEnds); }
  /// Gradients of this bucket are there, for which the stream has perhaps waited; parameters are
  /// changed with them. Without a bucket: of all. Then, with shards: peers' parameters are there.
  void waited(int bucket = kAll) { mark(kWaited, bucket); }
  void updated(int bucket = kAll) { mark(kUpdated, bucket); }
  void gathered() { mark(kGathered); }
  static constexpr int kAll = -1;
  Device::Event step_ends();
  /// The step that was begun is replayed from a graph, in which nothing is noted: its transfers were
  /// under way, hidden and exposed as long as those of the last one that was not.
  void replayed() { now_->replayed = true; }
  /// Something else follows: it is not the next step's, whose begin has the host's time.
  void pause() { pauses_ = true; }

  /// Of a step whose end has happened; every step's once, in order. `data_wait_ms`: the host's wait
  /// for samples. What the stream stood still without work counts as that as far as the host waited,
  /// else as another wait.
  StepTimes times(uint64_t number, double data_wait_ms, const Work::Times& headers);
  /// Median of what updates took, in steps that were not replayed.
  double optimizer_ms() const { return optimizer_ms_.median(); }
  /// Collective: the trace is written.
  Status close(Communicator& communicator) { return timeline_.close(communicator); }

 private:
  enum MarkKind : uint8_t {
    kBegins,
    kForwardLayer,
    kBackwardLayer,
    kBackwardEnds,
    kWaited,
    kUpdated,
    kGathered,
    kEnds,
    // Of a bucket's gradients, and of its parameters; the second and the third on the other stream.
    kReduceReady,
    kReduceStarted,
    kReduceEnded,
    kGatherReady,
    kGatherStarted,
    kGatherEnded
  };
  struct Mark {
    Device::Event event = nullptr;
    MarkKind kind = kBegins;
    int index = 0;         // of a layer or bucket
    bool computes = true;  // on the stream that computes
    int64_t ns = 0;        // when it happened
  };
  struct Marks {
    std::vector<Mark> marks;  // kept from step to step, for their events
    size_t used = 0;
    bool replayed = false;
    size_t buckets = 0;         // --bucket-cap-mb auto changes how many there are
    int64_t host_begin_ns = 0;  // the host's time of the begin; 0: it follows the step before
  };
  static bool is_phase(const Mark& mark) { return mark.kind <= kEnds; }
  void mark(MarkKind kind, int index = kAll) { mark(kind, index, device_.stream()); }
  void mark(MarkKind kind, int index, Device::Stream stream);
  void mark_transfer(const DdpTransferMark& here);
  void take_host_time();
  Result<int64_t> ns_between(Device::Event from, Device::Event to);
  void read(Marks& step);
  void use_layout(size_t buckets);
  void note_transfers(const Marks& step);
  void measure(const Marks& step);
  void draw(const Marks& step, uint64_t number, const Work::Times& headers);

  Device& device_;
  DistributedDataParallel* const ddp_;
  Timeline timeline_;
  const bool draws_;
  static constexpr size_t kSteps = 3;
  Marks steps_[kSteps];  // by the number of the step, in turn
  Marks* now_ = nullptr;
  Device::Event last_end_ = nullptr;  // of the last step that was read
  int64_t last_end_ns_ = 0;
  bool pauses_ = true;  // before the step that is next
  bool notes_ = false;  // in a step
  // Of the last step that was not replayed:
  std::vector<DdpBucketTimes> reductions_;  // by bucket
  std::vector<Work::Times> gathers_;        // likewise
  int64_t hidden_ns_ = 0, exposed_ns_ = 0;  // transfers, while the stream computed; while it waited
  Series optimizer_ms_;
};

}  // namespace rondo::trainer
