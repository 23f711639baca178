// Memory of the caller's that all ranks of a communicator have registered, so that their kernels
// reach it also between processes: handles are exchanged and imported once, and where a peer's
// memory lies is in a table that kernels read. The caller carries what ranks tell each other.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "comm/device/backend.hpp"
#include "rondo/status.hpp"
#include "transport/cuda_ipc/layout.hpp"

namespace rondo::device {

/// How a rank's part of a registration has gone. Sent as bytes.
struct RegistrationOutcome {
  int32_t code;   // Code
  char why[508];  // cut off after that

  static RegistrationOutcome of(const Status& status);
};

/// A rank's memory, for the others. Sent as bytes of one build of rondo.
struct MemoryOffer {
  RegistrationOutcome outcome;  // not ok: the rest says nothing
  std::byte* memory;            // where its process has it
  uint64_t bytes;
  uint64_t offset;  // in the allocation that `handle` stands for
  transport::cuda_ipc::IpcHandle handle;
  uint32_t taken[transport::cuda_ipc::kMostRegistrations / 32];  // bits: places it still uses
};

/// The first error of all ranks, alike on each of them; ok: there is none.
Status first_error(std::span<const MemoryOffer> offers);
Status first_error(std::span<const RegistrationOutcome> outcomes);

/// Whether a communicator of this process has registered part of that memory. Thread-safe.
bool is_registered(const std::byte* memory, size_t bytes);

/// Thread-safe, but for registering: offer(), map() and settle() are one thread's.
class Registrations {
 public:
  struct RegistrationSettings {
    std::shared_ptr<CudaCalls> cuda;
    int device;
    uint32_t rank;
    std::vector<uint64_t> processes;  // by rank: the same number exactly for threads of one process
    bool exports;                     // there are several processes
    bool between_gpus;                // some peer's GPU is another one
    Stream stream;                    // the communicator's own, on which nothing else waits
    std::function<Result<bool>()> is_idle;  // whether all that this rank has enqueued has ended
  };
  explicit Registrations(RegistrationSettings settings) : settings_(std::move(settings)) {}
  /// REQUIRES: no kernel of this rank uses the table or peers' memory.
  ~Registrations();
  Registrations(const Registrations&) = delete;
  Registrations& operator=(const Registrations&) = delete;

  /// This rank's part of a registration, or why there is none. Waits for no peer.
  MemoryOffer offer(void* pointer, size_t bytes);
  /// Makes all ranks' memory usable here. REQUIRES: first_error(offers) is ok. After an error, and
  /// until settle(), nothing is registered. May wait for kernels that run on this GPU.
  Status map(std::span<const MemoryOffer> offers);
  /// The end of registering: if `all_mapped`, the memory is registered, else it is let go.
  void settle(bool all_mapped);

  /// From now on operations do not use it. Peers' memory of this registration is let go by
  /// close_ended(). kInvalidArgument: it is not the beginning of a registration.
  Status remove(const void* pointer);
  /// Lets go of what remove() has ended, if this rank's kernels no longer use it.
  void close_ended();

  /// The registration that holds all of that memory; 0: none does.
  transport::cuda_ipc::RegistrationWord find(const std::byte* memory, size_t bytes) const;
  /// Not null once there has been a registration between processes.
  const transport::cuda_ipc::PeerMapping* table() const { return table_; }

 private:
  struct Registered {
    transport::cuda_ipc::RegistrationWord word = 0;
    const std::byte* memory = nullptr;
    size_t bytes = 0;
    std::vector<std::byte*> imported{};  // to be closed
  };
  Status fill(MemoryOffer& offer, std::byte* memory, size_t bytes);
  Result<uint32_t> free_place(std::span<const MemoryOffer> offers) const;
  Status import(std::span<const MemoryOffer> offers, Registered& made);
  Status need_table();
  Status write_table(uint32_t place, std::span<const transport::cuda_ipc::PeerMapping> mappings);
  void let_go(const Registered& one);

  const RegistrationSettings settings_;
  mutable std::mutex mutex_;
  std::vector<Registered> all_, ended_;
  std::optional<Registered> pending_;
  uint32_t count_ = 0;                                 // registrations that all have offered, ever
  transport::cuda_ipc::PeerMapping* table_ = nullptr;  // [place][rank]
  transport::cuda_ipc::PeerMapping* staging_ = nullptr;  // [rank], on the host
};

}  // namespace rondo::device
