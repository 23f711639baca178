// The RONDO_ environment variables, as rondo-run --help-environment prints them. docs/environment.md
// holds the same table, and a test compares both with the names that the sources read.
#pragma once

#include <string_view>

namespace rondo::comm {

struct EnvironmentVariable {
  const char *name, *value_when_absent, *meaning;
};

inline constexpr EnvironmentVariable kEnvironment[] = {
    {"RONDO_LOG", "warn", "level of rondo's own messages: debug, info, warn, error, off"},
    {"RONDO_PACE", "off",
     "BANDWIDTH,LATENCY, as in 1GB/s,20us: delays every message; Config::pace takes precedence"},
    {"RONDO_TIMEOUT", "600",
     "seconds without progress after which a call fails; a timeout set in the program takes "
     "precedence; time during which the rank is stopped (Ctrl-Z) does not count"},
    {"RONDO_BOOTSTRAP_TIMEOUT", "60",
     "seconds for which ranks wait for each other when a communicator is made; "
     "Config::bootstrap_timeout takes precedence"},
    {"RONDO_HOST_TIMEOUT", "10",
     "seconds without a message from another host after which its ranks count as lost; time during "
     "which this host's ranks are stopped does not count"},
    {"RONDO_ARENA_BYTES", "the machine's memory, less with many ranks",
     "address space for rondo::alloc, as in 64G; 0: no library memory"},
    {"RONDO_CMA", "1",
     "0: ranks do not copy each other's plain memory by system call (cross-memory attach)"},
    {"RONDO_KERNELS", "the CPU's best",
     "instruction set of the reductions: scalar, sse4, avx2, avx3"},
    {"RONDO_LINKS", "~/.config/rondo",
     "file that rondo-perf --calibrate wrote, by which rank 0 chooses algorithms for all ranks, or "
     "built-in; Config::links takes precedence"},
    {"RONDO_ALGORITHM", "auto",
     "algorithm of every operation that can go by it, as rank 0 has it set: ring, one-shot, "
     "two-shot, "
     "tree, star, flat, hierarchical, hierarchical-tree; Config::algorithm takes precedence"},
    {"RONDO_REPRODUCIBLE", "0",
     "1: reductions fold in rank order, the same bits whatever the size and the algorithm, as rank "
     "0 has it set; as Config::reproducible"},
    {"RONDO_UCX", "the system's libucp.so.0",
     "path of the libucp.so.0 that carries messages between hosts, as of the wheel libucx-cu13"},
    {"RONDO_GPUDIRECT", "0",
     "1: data between GPUs of several hosts go by GPUDirect, where UCX knows CUDA's memory and has "
     "RDMA; nobody has run it"},
    {"RONDO_CUBLASLT", "the toolkit's libcublasLt.so",
     "path of the cuBLASLt that multiplies matrices of rondo-train --device cuda"},
    {"RONDO_NCCL_HOST", "0",
     "1: librondo-nccl.so, in NCCL's place, takes pointers for host memory and needs no GPU"},
    {"RONDO_RENDEZVOUS", "the launcher's job",
     "where the ranks meet: a directory, or tcp://HOST:PORT, where rank 0 listens; set by "
     "rondo-run"},
    {"RONDO_INTERFACE", "by which hosts are reached",
     "network interface for other hosts, as in eth0, 10.0.0.0/8 or fd00::/8; of several, separated "
     "by commas, the first that the host has"},
    {"RONDO_PORTS", "any",
     "TCP ports to listen at, as in 20000-20100, for firewalls between hosts"},
    {"RONDO_SECRET", "none", "proves that ranks belong to the same job; set by rondo-run"},
    {"RONDO_SECRET_FILE", "none",
     "file that holds the secret, readable by its owner only; RONDO_SECRET takes precedence"},
    {"RONDO_STATUS_SOCKET", "none",
     "socket over which rank 0 registers a communicator's board, for rondo-status; set by "
     "rondo-run"},
    {"RONDO_TERMINAL", "none",
     "the pipes that lead to a terminal, for progress bars and colors; set by rondo-run when its "
     "stdout or stderr is one"},
    {"RONDO_RESTART_COUNT", "0",
     "number of this attempt; set by rondo-run --max-restarts, for the program to read"},
};

/// RONDO_ variables that are not rondo's, but its build's, tests' and scripts'; with all that begin
/// with one that ends in '_'.
inline constexpr std::string_view kForeignVariables[] = {
    "RONDO_TEST_",
    "RONDO_COMPARE_",
    "RONDO_BIN",
    "RONDO_NCCL_DIR",
    "RONDO_TESTS",
    "RONDO_BENCH",
    "RONDO_TRAINER",
    "RONDO_NCCL",
    "RONDO_INSTALL",
    "RONDO_WERROR",
    "RONDO_SANITIZE",
    "RONDO_CUDA",
    "RONDO_PYTHON",
    "RONDO_MPICXX",
    "RONDO_QUICK",
    "RONDO_SOURCE",
    "RONDO_ONE_INSTRUCTION_SET",
};

}  // namespace rondo::comm
