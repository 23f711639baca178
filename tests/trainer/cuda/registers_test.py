#!/usr/bin/env python3
"""That the arrays of the trainer's kernels stay in registers, by what nvcc reports of their machine code for sm_90: a loop that is
not unrolled moves the array that it indexes to memory, a kernel that needs too many registers spills them.
    registers_test.py SOURCE NVCC FLAGS..."""
import pathlib
import re
import subprocess
import sys
import tempfile

SOURCE, NVCC, FLAGS = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
# layers_half.cu has the same templates for another type of two bytes.
FILES = ("trainer/layers/cuda/layers.cu", "trainer/optim/cuda/flat.cu")
REPORT = re.compile(r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", re.S)


def main():
    kernels = []
    with tempfile.TemporaryDirectory() as folder:
        for file in FILES:
            command = [NVCC, *FLAGS, "-arch=sm_90", "-Xptxas=-v", "-cubin", "-I", SOURCE, "-I", SOURCE / "include", "-o",
                       pathlib.Path(folder) / "cubin", SOURCE / file]
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
            if done.returncode != 0:
                sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
            found = REPORT.findall(done.stdout + done.stderr)
            if not found:
                sys.exit(f"nvcc reports on no kernel of {file}:\n{done.stdout}{done.stderr}")
            kernels += found
    in_memory = [f"{name}: {frame} bytes of arrays, {stores} and {loads} of spills"
                 for name, frame, stores, loads in kernels if (frame, stores, loads) != ("0", "0", "0")]
    if in_memory:
        sys.exit("not only in registers:\n" + "\n".join(in_memory))
    print(f"{len(kernels)} kernels keep their arrays in registers")


if __name__ == "__main__":
    main()
