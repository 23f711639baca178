// Memory of the caller's that all ranks of a communicator have registered, so that their kernels
// reach it also between processes: handles are exchanged and imported once, and where a peer's
// memory lies is in a table that kernels read. The caller carries what ranks tell each other, but
// for the descriptors of memory that was mapped by cuMemMap.
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
#include "comm/device/piece_exchange.hpp"
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
  uint64_t offset;  // in the allocation that `handle` stands for, or after the first piece's begin
  transport::cuda_ipc::IpcHandle handle;  // if there are no pieces
  uint32_t pieces;                        // physical allocations, mapped one after the other
  uint64_t mapped;                        // bytes of all of them
  uint32_t taken[transport::cuda_ipc::kMostRegistrations / 32];  // bits: places it still uses
};

/// The first error of all ranks, alike on each of them; ok: there is none.
Status first_error(std::span<const MemoryOffer> offers);
Status first_error(std::span<const RegistrationOutcome> outcomes);

/// Whether a communicator of this process has registered part of that memory. Thread-safe.
bool is_registered(const std::byte* memory, size_t bytes);

/// Registering, on every rank: offer(); map() with the offers of all; then, for each of piece_rounds()
/// rounds, send_pieces(), a meeting of the ranks, and map_pieces(); and settle().
///
/// Thread-safe, but for registering, which is one thread's.
class Registrations {
 public:
  struct RegistrationSettings {
    std::shared_ptr<CudaCalls> cuda;
    int device;
    uint32_t rank;
    std::vector<uint64_t> processes;  // by rank: the same number exactly for threads of one process
    bool exports;                     // there are several processes
    bool between_gpus;                // all ranks are threads of one process, on several GPUs
    bool process_has_gpus;            // this process has ranks on several GPUs
    std::unique_ptr<PieceExchange> exchange;  // null: there are no other processes
    Stream stream;                            // the communicator's own, on which nothing else waits
    std::function<Result<bool>()> is_idle;    // whether all that this rank has enqueued has ended
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
  /// Alike on all ranks: how often descriptors go around. REQUIRES: first_error(offers) is ok.
  uint32_t piece_rounds(std::span<const MemoryOffer> offers) const;
  /// Gives other processes the descriptors of a round's pieces of this rank's memory.
  Status send_pieces(uint32_t round);
  /// Maps what the others have sent. REQUIRES: all have met after send_pieces(), unless one has
  /// failed: then `all_sent` is false, and what has come is closed.
  Status map_pieces(uint32_t round, bool all_sent);
  /// The end of registering: if `all_mapped`, the memory is registered, else it is let go.
  void settle(bool all_mapped);

  /// Ends the newest registration that begins there: operations no longer use it. Peers' memory of
  /// this registration is let go by close_ended(). kInvalidArgument: it is not the beginning of a registration.
  Status remove(const void* pointer);
  /// Lets go of what remove() has ended, if this rank's kernels no longer use it.
  void close_ended();

  /// The newest registration that holds all of that memory, because an older one may be of memory
  /// which has been freed since; 0: none does.
  transport::cuda_ipc::RegistrationWord find(const std::byte* memory, size_t bytes) const;
  /// That registration, as copies by this process need it.
  struct Symmetric {
    transport::cuda_ipc::RegistrationWord word = 0;  // 0: none
    size_t offset = 0;                               // of the memory in this rank's part
    std::vector<std::span<std::byte>> parts{};       // [rank], at this process's address
  };
  Symmetric find_symmetric(const std::byte* memory, size_t bytes) const;
  /// Not null once there has been a registration between processes.
  const transport::cuda_ipc::PeerMapping* table() const { return table_; }

 private:
  /// A peer's memory here, to be let go of.
  struct Imported {
    uint32_t rank = 0;
    std::byte* base = nullptr;
    size_t reserved = 0;           // bytes of addresses, for pieces; 0: it came by a handle
    uint32_t pieces = 0;           // that are to be mapped there,
    std::vector<size_t> mapped{};  // and that are: their bytes, one after the other
    size_t mapped_bytes = 0;
  };
  struct Registered {
    transport::cuda_ipc::RegistrationWord word = 0;
    const std::byte* memory = nullptr;
    size_t bytes = 0;
    std::vector<Imported> imported{};
    std::vector<std::span<std::byte>> parts{};  // [rank], where this process has them
  };
  Status fill(MemoryOffer& offer, std::byte* memory, size_t bytes);
  Status fill_pieces(MemoryOffer& offer, std::byte* memory, size_t bytes);
  Result<Imported> import(uint32_t rank, const MemoryOffer& peer);
  Status map_received(const Pieces& received);
  Result<uint32_t> free_place(std::span<const MemoryOffer> offers) const;
  Status import(std::span<const MemoryOffer> offers, Registered& made);
  Status need_table();
  Status write_table(uint32_t place, std::span<const transport::cuda_ipc::PeerMapping> mappings);
  /// Closes what has ended when this rank's kernels have, within a second. Returns whether it has closed
  /// something, and nothing is left.
  bool await_ended();
  void let_go(const Registered& one);

  const RegistrationSettings settings_;
  mutable std::mutex mutex_;
  std::vector<Registered> all_, ended_;  // guarded by mutex_
  std::mutex table_mutex_;               // taken before mutex_; of the table's writers
  std::optional<Registered> pending_;
  std::vector<transport::cuda_ipc::Allocation> own_pieces_;  // of what is being registered
  uint32_t count_ = 0;                                 // registrations that all have offered, ever
  transport::cuda_ipc::PeerMapping* table_ = nullptr;  // [place][rank]
  transport::cuda_ipc::PeerMapping* staging_ = nullptr;  // [rank], on the host
};

}  // namespace rondo::device
