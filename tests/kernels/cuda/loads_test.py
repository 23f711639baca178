#!/usr/bin/env python3
"""What nvcc makes of the folds of kernels/cuda/move.hpp, by the machine code of folds.cu for sm_90: that nothing is spilled, and that
the next source is loaded while one is folded. A 128-bit load under a predicate is one that the compiler has merged with the buffer's
earlier contents: it is issued only after the previous source has arrived. That no step's vectors lie in local memory, that two small
floats are converted by one instruction, and that a maximum is one. Needs nvcc, and cuobjdump for what is not in ptxas's report.
    loads_test.py SOURCE NVCC FLAGS..."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77
MOST_FRAME_BYTES = 127
SOURCE, NVCC, FLAGS = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3:]
FOLDS = SOURCE / "tests/kernels/cuda/folds.cu"
WIDE_LOAD = re.compile(r"\bLDG?\.E\.(?:\w+\.)*128\b")
# Of two registers: with RZ it rounds one value.
ROUNDS_TWO = re.compile(r"\bF2FP\.(BF16\.F32|F16\.F32|BF16|F16)\S* R\d+, R\d+, R\d+")
PREDICATED = re.compile(r"@!?U?P\w+\s+LDG?\.E\.(?:\w+\.)*128\b")


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def main():
    folds = FOLDS.read_text().count("template __global__")
    with tempfile.TemporaryDirectory() as folder:
        cubin = pathlib.Path(folder) / "folds.cubin"
        report = run(NVCC, *FLAGS, "-arch=sm_90", "-Xptxas=-v", "-cubin", "-I", SOURCE, "-I", SOURCE / "include", "-o", cubin, FOLDS)
        spills = [int(bytes) for bytes in re.findall(r"(\d+) bytes spill (?:stores|loads)", report)]
        if len(spills) < 2 * folds:
            sys.exit(f"nvcc reports on {len(spills) // 2} functions; {FOLDS.name} has {folds} kernels:\n{report}")
        if any(spills):
            sys.exit(f"registers are spilled:\n{report}")
        # What a function keeps in local memory by its nature is smaller than a step's vectors, which belong into registers.
        frames = [int(bytes) for bytes in re.findall(r"(\d+) bytes stack frame", report)]
        if max(frames) > MOST_FRAME_BYTES:
            sys.exit(f"a function keeps {max(frames)} bytes in local memory, {MOST_FRAME_BYTES} at most:\n{report}")
        tool = shutil.which("cuobjdump", path=f"{os.environ.get('PATH', '')}:{NVCC.parent}")
        if tool is None:
            print(f"{folds} folds spill nothing. Skipped: their loads, because cuobjdump is neither in PATH nor beside nvcc")
            return SKIPPED
        code = run(tool, "-sass", cubin)
    loads, merged = WIDE_LOAD.findall(code), [line.strip() for line in code.splitlines() if PREDICATED.search(line)]
    # Two buffers of at least two vectors in each fold.
    if len(loads) < 4 * folds:
        sys.exit(f"only {len(loads)} loads of 128 bits in {folds} folds")
    if merged:
        sys.exit(f"{len(merged)} of {len(loads)} loads of 128 bits are predicated, such as\n" + "\n".join(merged[:4]))
    pairs = ROUNDS_TWO.findall(code)
    for kind in ("BF16", "F16"):
        # Four vectors of four pairs in a sum, two in a maximum.
        if sum(found.startswith(kind) for found in pairs) < 8:
            sys.exit(f"{kind}: {len(pairs)} instructions that round two values, {pairs[:4]}")
    # Sums of fp8: two vectors of eight pairs, of each source and of the result.
    for instruction in ("F2FP.F16.E4M3.UNPACK_B", "F2FP.SATFINITE.E4M3.F32.PACK_AB"):
        if code.count(instruction) < 16:
            sys.exit(f"{code.count(instruction)} instructions {instruction}")
    maxima = code.count("FMNMX.NAN")
    if maxima < 16:  # two vectors of halves
        sys.exit(f"{maxima} instructions that take a maximum and keep a NaN")
    print(f"{folds} folds spill nothing; none of their {len(loads)} loads of 128 bits is predicated")
    return 0


if __name__ == "__main__":
    sys.exit(main())
