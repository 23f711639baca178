// Programs where kernels can read them: in device memory that is taken when the communicator is
// made, since allocating may wait for kernels that run.
#pragma once

#include <map>
#include <memory>
#include <utility>

#include "comm/device/backend.hpp"
#include "comm/engine/interpreter.hpp"
#include "comm/engine/operation.hpp"

namespace rondo::device {

struct Uploaded {
  engine::ProgramView view;
  const schedule::Geometry* geometries;  // [channel]
  int channels;                          // those with something to do are the first ones
  uint64_t bytes_moved;                  // of payload, between this rank and others
  std::shared_ptr<const engine::Prepared> keep_alive;
};

/// Thread rule: the communicator's. Ends with every kernel that reads a program.
class Programs {
 public:
  /// On the current device. `stream`: the communicator's own, on which nothing else waits.
  static Result<std::unique_ptr<Programs>> create(std::shared_ptr<CudaCalls> cuda, size_t bytes,
                                                  Stream stream);
  ~Programs();
  Programs(const Programs&) = delete;
  Programs& operator=(const Programs&) = delete;

  /// The plan, one of `owner`'s, on the device. The first call for it copies it there and waits for
  /// the copy, some microseconds. `captured`: it is for a graph, which may come back to it at any
  /// time, so it stays for ever. kResourceExhausted: there is no room; forget() makes some, unless
  /// graphs have it all.
  Result<const Uploaded*> find(const engine::Plan& plan,
                               const std::shared_ptr<const engine::Prepared>& owner, int ranks,
                               bool captured);
  /// Bytes that find() would take for the plan; 0: it is there. And how many there are.
  size_t needed(const engine::Plan& plan) const;
  size_t room() const { return high_ - low_; }
  /// REQUIRES: no kernel reads a program any more, but those of graphs.
  void forget();

  /// What barriers pass round: a few bytes to read, as many to write.
  std::byte* scratch_in() const { return memory_; }
  std::byte* scratch_out() const { return memory_ + kScratch / 2; }

 private:
  static constexpr size_t kScratch = 256;

  Programs(std::shared_ptr<CudaCalls> cuda, size_t bytes, Stream stream)
      : cuda_(std::move(cuda)), stream_(stream), low_(kScratch), high_(bytes) {}
  Status copy(std::byte* to, size_t bytes);

  const std::shared_ptr<CudaCalls> cuda_;
  const Stream stream_;
  std::byte* memory_ = nullptr;
  std::byte* staging_ = nullptr;  // on the host
  size_t low_, high_;             // free is what lies between: below, what may be forgotten
  std::map<const engine::Plan*, Uploaded> plain_, captured_;
};

}  // namespace rondo::device
