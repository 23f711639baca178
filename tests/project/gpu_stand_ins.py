"""Stand-ins of gpu_check_test for a GPU machine: programs as shell scripts, and what the benchmarks write."""
# `behave NAME` does what the file NAME in $STUBS says: nothing, a failure, or never ending, deaf to SIGTERM and with a child.
BEHAVE = """\
behave() {
  echo "$*" >>"$STUBS/calls"
  case $(cat "$STUBS/$1" 2>/dev/null) in
    fails) echo "$1 is broken"; exit 3 ;;
    hangs) trap '' TERM; (trap '' TERM; while :; do sleep 1000; done) & echo "$! $$" >"$STUBS/pids"; while :; do wait; done ;;
    refuses) echo "========= Error: Device not supported."; exit 1 ;;
    skips) echo "1/1 Test #1: x ***Skipped"; exit 0 ;;
    unable) echo "--device cuda is not in this build, which knows CPU memory only"; exit 2 ;;
  esac
}
json() { while [ $# -gt 1 ]; do if [ "$1" = --json ]; then cat >"$2"; fi; shift; done; }
"""
TOOLS = {
    "nvidia-smi": 'if [ -e "$STUBS/no-gpu" ]; then echo "No devices were found"; exit 6; fi\n'
                  'for _ in $(cat "$STUBS/gpus" 2>/dev/null || echo 1); do echo "Stub GPU 9000, 580.1, $(cat "$STUBS/memory" 2>/dev/null || echo 81920), 9.0"; done',
    # `deaf`: a daemon that keeps its output open, and does not quit; `mute`: nothing ends.
    "nvidia-cuda-mps-control": """
case "$1 $(cat "$STUBS/mps" 2>/dev/null)" in
  "-d deaf") setsid sleep 1000 & echo $! >"$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid"; echo $! >"$STUBS/pids" ;;
  *deaf|*mute) exec sleep 1000 ;;
esac
behave mps "$@" "$CUDA_MPS_PIPE_DIRECTORY" "$(cat)"
""",
    "nvcc": 'echo "Cuda compilation tools, release 13.0, V13.0.88"',
    "compute-sanitizer": "behave compute-sanitizer; exec true",
    # Where libraries are; empty: the program has none.
    "ldd": 'case $1 in */two_test|*/rondo-perf-nccl) cat "$STUBS/libraries" 2>/dev/null ;; */libucp.so.0) cat "$STUBS/libraries-of-ucx" ;; *) exit 1 ;; esac',
    "ldconfig": 'cat "$STUBS/ldconfig" 2>/dev/null',
    # Configuring makes the folder; --target help names what can be built; building puts the programs there.
    "cmake": """
case "$*" in
  *"--target help"*) for t in one_test two_test kernels_bench_cuda device_engine_bench rondo-perf layers_bench_cuda rondo-train rank_threads_cuda; do echo "$t: phony"; done ;;
  --build*) behave build "$@"; mkdir -p "$2/bin" "$2/nccl"; cp "$STUBS/programs/"* "$2/bin"
    if [ -e "$STUBS/librondo-nccl.so" ]; then cp "$STUBS/librondo-nccl.so" "$2/nccl"; fi ;;
  *) behave configure; mkdir -p "$4" ;;
esac""",
    "ctest": """
case "$*" in
  *show-only*) if [ ! -e "$2/bin/one_test" ]; then echo '{"tests": [{"name": "one_test"}, {"name": "two_test"}]}'; exit; fi
    echo '{"tests": [{"name": "one_test", "command": ["'"$2/bin/one_test"'", "cases"], "properties": [{"name": "ENVIRONMENT", "value": ["ONE=1"]}]},' \
      '{"name": "two_test", "command": ["/usr/bin/python3.11", "'"$SOURCE/scripts/origin.py"'", "'"$2/bin/two_test"'"]},' \
      '{"name": "kernels_cuda_test", "command": ["'"$2/bin/kernels_cuda_test"'"]}, {"name": "device_engine_test", "command": ["'"$2/bin/device_engine_test"'"]},' \
      '{"name": "communicator_device_cuda_test", "command": ["'"$2/bin/communicator_device_cuda_test"'"]}]}' ;;
  *"^one_test$"*) behave one_test ;;
  *"^two_test$"*) behave two_test ;;
esac""",
}
KERNELS = {"device": "Stub", "bytes": 256 << 20, "copy_gb_per_s": 4000.0, "results": [
    {"type": "float", "redop": "sum", "sources": 2, "destinations": 1, "gb_per_s": 3900.0, "of_copy": 0.975},
    {"type": "half", "redop": "sum", "sources": 8, "destinations": 1, "gb_per_s": 3600.0, "of_copy": 0.9},
    {"type": "float", "redop": "max", "sources": 2, "destinations": 1, "gb_per_s": 3640.0, "of_copy": 0.91},
    {"type": "int32", "redop": "avg", "sources": 2, "destinations": 1, "gb_per_s": 1200.0, "of_copy": 0.3},
    {"type": "int8", "redop": "sum", "sources": 2, "destinations": 1, "gb_per_s": 2000.0, "of_copy": 0.5}]}
ENGINE = {"copy_gb_per_s": 4000.0, "channels": 16, "slot_bytes": 131072, "depth": 8, "floors": [{"ranks": 8, "channels": 4, "us": 3.25}], "results": [
    {"ranks": ranks, "algorithm": algorithm, "bytes": size, "us": us, "bound_us": 0.8 * us, "right": right}
    for ranks in (2, 4, 8) for algorithm, size, us, right in (("two_shot", 1 << 30, 1000.0, True), ("ring", 1 << 30, 100.0, False),
                                                              ("one_shot", 8 << 10, 9.5, True))]}
PERF = {"results": [{"size": 8192, "algorithm": "one_shot", "backend": "rondo",
                     "out_of_place": {"time": 12.5, "alg_bw": 0.7, "bus_bw": 1.2, "nwrong": 0},
                     "in_place": {"time": 11.5, "alg_bw": 0.7, "bus_bw": 1.2, "nwrong": None}},
                    {"size": 1 << 30, "algorithm": "two_shot", "backend": "rondo",
                     "out_of_place": {"time": 1250.0, "alg_bw": 0.7, "bus_bw": 1.2, "nwrong": 0}, "in_place": None}]}
LAYERS = {"device": "Stub", "step_ms": 26.5,
          "results": [{"layer": "GELU", "us": 50.0, "bytes": 2e8, "operations": 0.0, "of_bound": 0.9},
                      {"layer": "attention", "us": 400.0, "bytes": 1e8, "operations": 2e10, "of_bound": 0.5},
                      {"layer": "convolution, forward", "us": 400.0, "bytes": 1e8, "operations": 2e10, "of_bound": 0.1}]}
TRAIN = {"steps": [{"step": i + 1, "step_ms": 50.0 if i < 10 else 30.0, "loss": 5.0 - i / 100} for i in range(40)],
         "summary": {"ranks": 2, "hidden_fraction": 0.85, "comm_us": 2000.0, "exposed_comm_ms": 0.3, "gemm_gflops_per_rank": 4e5}}
PROGRAMS = {"layers_bench_cuda": ("layers", LAYERS), "rondo-train": ("train", TRAIN), "rank_threads_cuda": ("train", TRAIN), "kernels_bench_cuda": ("kernels", KERNELS), "device_engine_bench": ("engine", ENGINE), "rondo-perf": ("perf", PERF),
            "kernels_cuda_test": ("", {}), "device_engine_test": ("", {}), "communicator_device_cuda_test": ("", {}), "one_test": ("one_test", {}), "two_test": ("", {})}


def write_program(path, text):
    path.write_text(f"#!/bin/bash\n{BEHAVE}{text}\n")
    path.chmod(0o755)
