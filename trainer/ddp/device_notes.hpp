// When gradients were final, and what carrying and updating them took, on a GPU: by events on its two
// streams, which are read when all steps that count are enqueued. What is captured is not noted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "trainer/ddp/gpu.hpp"
#include "trainer/ddp/step_notes.hpp"

namespace rondo::ddp {

/// One thread. Borrows its arguments; on `gpu` it hears of transfers while it lives. A failure is the
/// GPU's.
class DeviceNotes final : public StepNotes {
 public:
  /// `ranks`: what else may keep the streams from ending, as Communicator::status().
  DeviceNotes(Gpu& gpu, ReadinessLog& log, std::function<Status()> ranks);
  ~DeviceNotes() override;
  DeviceNotes(const DeviceNotes&) = delete;
  DeviceNotes& operator=(const DeviceNotes&) = delete;

  void begin() override;
  void ready(size_t tensor, size_t count) override { note({kReady, tensor, count}); }
  void backward_ends() override { note({kBackwardEnds}); }
  void update_begins() override { note({kUpdateBegins}); }
  void update_ends() override { note({kUpdateEnds}); }
  void end(const std::vector<DdpBucketTimes>& buckets) override;
  /// Waits until the streams have done the last step.
  Status settle() override;

 private:
  enum NoteKind : uint8_t {
    kReady,
    kBackwardEnds,
    kUpdateBegins,
    kUpdateEnds,
    kEnds,
    // Of a bucket; the second and the third on the other stream.
    kTransferReady,
    kTransferStarted,
    kTransferEnded
  };
  struct Note {
    NoteKind kind = kReady;
    size_t index = 0, count = 0;  // of a tensor and its elements, or of a bucket
    Gpu::Event event = nullptr;
  };
  struct StepEvents {
    std::vector<Note> notes;  // kept from step to step, for their events
    size_t used = 0;
    bool ended = false;
  };
  void note(const Note& here) { note(here, gpu_.compute()); }
  void note(const Note& here, Gpu::Stream stream);
  void note_transfer(const DdpTransferMark& here);
  Status read(const StepEvents& step);

  Gpu& gpu_;
  ReadinessLog& log_;
  const std::function<Status()> ranks_;
  StepEvents steps_[ReadinessLog::kKept];  // in turn
  size_t now_ = 0;                         // the one under way, or that is next
  bool open_ = false;
};

}  // namespace rondo::ddp
