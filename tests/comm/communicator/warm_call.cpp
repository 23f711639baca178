// Prints where warm all-reduces of 8 bytes go: the address of every instruction, in order, a line
// for each call. way_test.py reads it. The processor's trap flag gives a signal after each
// instruction. A busy system loses the flag now and then: calls that ended without it are left
// out, and a line may still lack some instructions.
#include <link.h>
#include <ucontext.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

#include "rondo/communicator.hpp"

namespace {

constexpr size_t kMost = 1 << 20;
std::vector<uintptr_t> addresses(kMost);
volatile size_t count = 0;

void note(int, siginfo_t*, void* context) {
  if (count == kMost) return;
  addresses[count] =
      static_cast<uintptr_t>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
  count = count + 1;
}

/// Whether it was set. Not below the stack pointer: a leaf function keeps data there.
[[gnu::noinline]] bool set_trap_flag(bool on) {
  const uint64_t flags = __builtin_ia32_readeflags_u64();
  constexpr uint64_t kTrap = 0x100;
  __builtin_ia32_writeeflags_u64(on ? flags | kTrap : flags & ~kTrap);
  return (flags & kTrap) != 0;
}

int load_bias(dl_phdr_info* program, size_t, void* bias) {
  *static_cast<uintptr_t*>(bias) = program->dlpi_addr;
  return 1;  // the first one is this program
}

struct Called {
  bool ok;     // with the right result
  bool whole;  // traced to its end
};

Called all_reduce(rondo::Communicator& communicator, bool traced) {
  const double in = 1;
  double out = 0;
  if (traced) set_trap_flag(true);
  const rondo::Status status = communicator.all_reduce(&in, &out, 1, rondo::DataType::kFloat64);
  const bool whole = set_trap_flag(false);
  return {status.ok() && out == 2, whole};
}

/// Rank 0's traced calls.
std::vector<std::vector<uintptr_t>> run(rondo::Config config, int rank) {
  config.rank = rank;
  auto made = rondo::Communicator::create(config);
  std::vector<std::vector<uintptr_t>> calls;
  constexpr int kCalls = 60;
  for (int call = 0; made.ok() && call < kCalls; ++call) {
    const bool traced = rank == 0 && call > kCalls / 2;
    if (traced) count = 0;
    const Called called = all_reduce(*made, traced);
    if (!called.ok) return {};
    if (!called.whole) continue;
    calls.emplace_back(addresses.begin(), addresses.begin() + static_cast<ptrdiff_t>(count));
  }
  return calls;
}

}  // namespace

int main() {
  struct sigaction action {};
  action.sa_sigaction = note;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGTRAP, &action, nullptr);
  auto id = rondo::make_unique_id();
  if (!id.ok()) return 1;
  rondo::Config config;
  config.world_size = 2;
  config.unique_id = *id;
  std::thread other([&] { (void)run(config, 1); });
  const std::vector<std::vector<uintptr_t>> calls = run(config, 0);
  other.join();
  uintptr_t bias = 0;
  dl_iterate_phdr(load_bias, &bias);
  for (const auto& call : calls) {
    for (const uintptr_t address : call) std::printf("%#zx ", address - bias);
    std::printf("\n");
  }
  return calls.empty() ? 1 : 0;
}
