// Every variable of rondo's own that the environment may hold: what rondo-run --help-environment
// prints. README.md holds the same table, and a test compares both with what the sources read.
#pragma once

namespace rondo::comm {

struct EnvironmentVariable {
  const char *name, *value_when_absent, *meaning;
};

inline constexpr EnvironmentVariable kEnvironment[] = {
    {"RONDO_LOG", "warn", "level of rondo's own messages: debug, info, warn, error, off"},
    {"RONDO_PACE", "off",
     "BANDWIDTH,LATENCY, as in 1GB/s,20us: delays every message; Config::pace goes first"},
    {"RONDO_TIMEOUT", "600",
     "seconds without any movement after which a call fails; a timeout set in the program goes "
     "first"},
    {"RONDO_ARENA_BYTES", "the machine's memory",
     "address space for rondo::alloc, as in 64G; 0: no library memory"},
    {"RONDO_CMA", "1",
     "0: the kernel is not asked to copy between ranks' plain memory (cross-memory attach)"},
    {"RONDO_KERNELS", "the CPU's best",
     "instruction set of the reductions: scalar, sse4, avx2, avx3"},
    {"RONDO_LINKS", "built in",
     "link profile that rondo-perf --calibrate wrote, by which rank 0 lets all ranks choose "
     "algorithms; Config::links goes first"},
    {"RONDO_RENDEZVOUS", "the launcher's job",
     "where the ranks meet: a directory, or tcp://HOST:PORT, where rank 0 listens; set by "
     "rondo-run"},
    {"RONDO_SECRET", "none",
     "shared by the ranks of one job, proves that they belong together; set by rondo-run"},
    {"RONDO_SECRET_FILE", "none",
     "file that holds the secret, readable by its owner only; RONDO_SECRET goes first"},
    {"RONDO_STATUS_SOCKET", "none",
     "where rank 0 tells its launcher of a communicator's board, for rondo-status; set by "
     "rondo-run"},
    {"RONDO_TERMINAL", "none",
     "which pipe leads to a terminal, for progress bars; set by rondo-run when its stderr is one"},
    {"RONDO_RESTART_COUNT", "0",
     "which attempt this is; set by rondo-run --max-restarts, for the program to read"},
};

}  // namespace rondo::comm
