#include "comm/device/programs.hpp"

#include <cstring>
#include <utility>

namespace rondo::device {
namespace {

constexpr size_t kAlign = 64;

size_t aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

template <class T>
size_t put(std::byte* at, const std::vector<T>& values) {
  if (!values.empty()) std::memcpy(at, values.data(), values.size() * sizeof(T));
  return aligned(values.size() * sizeof(T));
}

size_t bytes_of(const schedule::Program& program) {
  return aligned(sizeof(engine::StoredProgram)) +
         aligned(program.instructions.size() * sizeof(schedule::Instruction)) +
         aligned(program.operands.size() * sizeof(schedule::Location)) +
         aligned(program.channels.size() * sizeof(schedule::Geometry));
}

// Channels after the last one with rounds do nothing, on any rank.
int busy_channels(const schedule::Program& program) {
  size_t busy = 1;
  for (size_t c = 0; c < program.channels.size(); ++c) {
    if (program.channels[c].rounds > 0) busy = c + 1;
  }
  return static_cast<int>(busy);
}

}  // namespace

Result<std::unique_ptr<Programs>> Programs::create(std::shared_ptr<CudaCalls> cuda, size_t bytes,
                                                   Stream stream) {
  std::unique_ptr<Programs> made(new Programs(std::move(cuda), bytes, stream));
  CudaCalls& calls = *made->cuda_;
  made->memory_ = RONDO_TRY(calls.allocate(bytes));
  made->staging_ = RONDO_TRY(calls.allocate_mapped(bytes));
  // CUDA may load code for its first clearing, and its first copy within a GPU, and wait for kernels.
  RONDO_TRY(calls.clear(made->memory_, kScratch, stream));
  RONDO_TRY(calls.copy(made->scratch_out(), made->scratch_in(), kScratch / 2, stream));
  RONDO_TRY(calls.synchronize(stream));
  return made;
}

Programs::~Programs() {
  // A copy that was given up may still be on its way.
  if (staging_ != nullptr) (void)cuda_->synchronize(stream_);
  if (staging_ != nullptr) (void)cuda_->release_mapped(staging_);
  if (memory_ != nullptr) (void)cuda_->release(memory_);
}

Result<const Uploaded*> Programs::find(const engine::ExecutionPlan& plan,
                                       const std::shared_ptr<const engine::Prepared>& owner,
                                       int ranks, bool captured) {
  auto& known = captured ? captured_ : plain_;
  if (const auto found = known.find(&plan); found != known.end()) return &found->second;
  const schedule::Program& program = plan.program;
  const size_t all = bytes_of(program);
  if (all > room()) {
    return Status(Code::kResourceExhausted,
                  "a program of " + std::to_string(all) +
                      " bytes does not fit beside the others: " + std::to_string(room()) +
                      " are left for those of graphs and of other calls");
  }
  const size_t place = captured ? high_ - all : low_;
  std::byte *const at = memory_ + place, *const staged = staging_ + place;
  const size_t head = aligned(sizeof(engine::StoredProgram));
  size_t bytes = head + put(staged + head, program.instructions);
  Uploaded uploaded = {
      .stored = reinterpret_cast<const engine::StoredProgram*>(at),
      .view = {.instructions = reinterpret_cast<const schedule::Instruction*>(at + head),
               .operands = reinterpret_cast<const schedule::Location*>(at + bytes),
               .instruction_count = static_cast<uint32_t>(program.instructions.size()),
               .operand_count = static_cast<uint32_t>(program.operands.size())},
      .geometries = nullptr,
      .channels = busy_channels(program),
      .bytes_moved = schedule::traffic_of(program, ranks).elements_moved * owner->element_bytes,
      .keep_alive = owner};
  bytes += put(staged + bytes, program.operands);
  uploaded.geometries = reinterpret_cast<const schedule::Geometry*>(at + bytes);
  bytes += put(staged + bytes, program.channels);
  const engine::StoredProgram stored = {
      .view = uploaded.view,
      .geometries = uploaded.geometries,
      .protocol = plan.by_ll ? engine::Protocol::kLl : engine::Protocol::kSimple};
  std::memcpy(staged, &stored, sizeof stored);
  if (captured) {
    RONDO_TRY(copy_and_wait(*cuda_, at, staged, bytes, stream_, "a program"));
    high_ -= all;
  } else {
    low_ += all;
  }
  return &known.emplace(&plan, std::move(uploaded)).first->second;
}

size_t Programs::needed(const engine::ExecutionPlan& plan, bool captured) const {
  return (captured ? captured_ : plain_).contains(&plan) ? 0 : bytes_of(plan.program);
}

void Programs::forget() {
  plain_.clear();
  low_ = copied_ = kScratch;
}

Status Programs::copy_new() {
  RONDO_TRY(cuda_->copy(memory_ + copied_, staging_ + copied_, low_ - copied_, stream_));
  copied_ = low_;
  return {};
}

}  // namespace rondo::device
