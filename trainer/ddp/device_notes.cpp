// See device_notes.hpp.
#include "trainer/ddp/device_notes.hpp"

#include <algorithm>
#include <utility>

namespace rondo::ddp {

DeviceNotes::DeviceNotes(Gpu& gpu, ReadinessLog& log, std::function<Status()> ranks)
    : gpu_(gpu), log_(log), ranks_(std::move(ranks)) {
  gpu.note_transfers([this](const DdpTransferMark& here) { note_transfer(here); });
}

DeviceNotes::~DeviceNotes() { gpu_.note_transfers({}); }

void DeviceNotes::begin() {
  steps_[now_].used = 0;
  steps_[now_].ended = false;
  open_ = true;
}

void DeviceNotes::note(const Note& here, Gpu::Stream stream) {
  if (!open_ || gpu_.is_captured()) return;
  StepEvents& step = steps_[now_];
  if (step.used == step.notes.size()) step.notes.emplace_back();
  Note& made = step.notes[step.used++];
  const Gpu::Event event = made.event;
  made = here;
  made.event = event;
  gpu_.take_time(made.event, stream);
}

void DeviceNotes::note_transfer(const DdpTransferMark& here) {
  constexpr NoteKind kAt[] = {kTransferReady, kTransferStarted, kTransferEnded};
  if (!here.gathers) note({kAt[static_cast<size_t>(here.at)], here.bucket}, here.stream);
}

void DeviceNotes::end(const std::vector<DdpBucketTimes>& /*buckets*/) {
  if (gpu_.is_captured()) return;
  note({kEnds});  // the compute stream has waited for all transfers
  open_ = false;
  steps_[now_].ended = true;
  now_ = (now_ + 1) % ReadinessLog::kKept;
}

Status DeviceNotes::settle() {
  RONDO_TRY(gpu_.status());
  for (size_t i = 0; i < ReadinessLog::kKept; ++i) {
    const StepEvents& step = steps_[(now_ + i) % ReadinessLog::kKept];  // the oldest first
    if (!step.ended) continue;
    RONDO_TRY(gpu_.await(step.notes[step.used - 1].event, ranks_));
    RONDO_TRY(read(step));
  }
  return {};
}

/// Counts from the first note, that of the first gradient.
Status DeviceNotes::read(const StepEvents& step) {
  log_.step_begins();
  std::vector<DdpBucketTimes> buckets;
  int64_t update_ns = 0;
  for (size_t i = 0; i < step.used; ++i) {
    const Note& note = step.notes[i];
    const int64_t ns = RONDO_TRY(gpu_.ns_between(step.notes[0].event, note.event));
    if (note.kind >= kTransferReady) buckets.resize(std::max(buckets.size(), note.index + 1));
    switch (note.kind) {
      case kReady:
        log_.ready(note.index, note.count, ns);
        break;
      case kBackwardEnds:
        log_.backward_ends(ns);
        break;
      case kUpdateBegins:
        update_ns -= ns;
        break;
      case kUpdateEnds:
        update_ns += ns;
        break;
      case kTransferReady:
        buckets[note.index].ready_ns = buckets[note.index].work.issued_ns = ns;
        break;
      case kTransferStarted:
        buckets[note.index].work.started_ns = ns;
        break;
      case kTransferEnded:
        buckets[note.index].work.ended_ns = ns;
        break;
      case kEnds:
        break;
    }
  }
  log_.step_ends(buckets, update_ns);
  return {};
}

}  // namespace rondo::ddp
