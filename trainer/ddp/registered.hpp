// Device memory that ranks have registered with their communicator, so that they reduce and gather in
// place also where they are processes of their own. Knows when the memory may be freed.
#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <vector>

#include "rondo/communicator.hpp"
#include "trainer/ddp/routes.hpp"

namespace rondo::ddp {

/// Whether registering memory makes a difference, on every rank alike. Not where ranks are threads of
/// one process, which access each other's memory, nor where they are on several hosts.
bool is_worth_registering(const Communicator& communicator);

/// One thread. Ranks meet at the end by a communicator of their own, because a late rank would fail the
/// caller's: a communicator fails with a barrier for which one rank does not come in time.
class RegisteredMemory {
 public:
  static constexpr std::chrono::milliseconds kPatience{10'000};

  /// REQUIRES: `routes` has a GPU, which outlives this.
  explicit RegisteredMemory(const Routes& routes, std::chrono::milliseconds patience = kPatience)
      : routes_(routes), patience_(patience) {}
  /// Waits until the GPU's streams are done (Gpu::end()), ends all registrations, and waits for the
  /// other ranks to have done so, also after errors, at most `patience`. Memory that another rank may
  /// still map is left (Gpu::leave()): to free it would be undefined.
  ~RegisteredMemory();
  RegisteredMemory(const RegisteredMemory&) = delete;
  RegisteredMemory& operator=(const RegisteredMemory&) = delete;

  /// Collective. Memory of the GPU, which it keeps until this ends. What cannot be registered is no
  /// error: rank 0 says so once.
  Status add(std::span<std::byte> memory);

 private:
  const Routes routes_;
  const std::chrono::milliseconds patience_;
  std::optional<Communicator> meeting_;    // there once another rank may map this rank's memory
  std::vector<std::span<std::byte>> all_;  // that others may map
  bool is_refused_ = false;
};

}  // namespace rondo::ddp
