#!/usr/bin/env python3
"""rondo-train beside PyTorch, and beside its own parts alone, in interleaved rounds: the rows of ../results/*-training.md.

    bench/peers/compare_training.py --torch PYTHON [--rounds 7] [--only nano,mlp-sync,...] [--json FILE]

PYTHON is an interpreter that can import torch; without it the rows that need it are left out, and said so. A round runs every
contender of a row once; ratios are taken within a round, and the median of the rounds is shown with the smallest and largest.
One thread per rank.
"""
import argparse
import ctypes
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
NANO = "--model gpt --batch 16"
MLP = "--model mlp --layers 8 --width 1024 --batch 64"
GPT2 = "--model gpt --layers 12 --width 768 --heads 12 --context 64 --vocabulary 50257 --batch 4"


class Bench:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.sgemm, self.parameters, self.configs = None, None, {}

    def run(self, command):
        out = self.folder / "out.json"
        out.unlink(missing_ok=True)
        environment = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
        done = subprocess.run([*map(str, command), "--json", str(out)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, env=environment)
        if done.returncode != 0:
            sys.exit(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout[-2000:]}")
        return json.loads(out.read_text())

    def train(self, flags):
        """The summary of a run of rondo-train."""
        result = self.run([self.options.bin / "rondo-train", "--data", ROOT, "--log-every", "0", "--lr", "0.001", *flags.split()])
        self.configs["rondo"] = result["config"]
        self.parameters = result["summary"]["parameters"]
        return result["summary"]

    def torch(self, flags):
        """Milliseconds of PyTorch's step, for the model that rondo-train trained last."""
        result = self.run([self.options.torch, ROOT / "bench/peers/pytorch_train.py", *flags.split()])
        self.configs["torch"] = result["config"]
        if result["config"]["parameters"] != self.parameters:
            sys.exit(f"PyTorch's model has {result['config']['parameters']} parameters, rondo's {self.parameters}")
        return result["step_ms"]

    def all_reduce(self, size):
        """Milliseconds of the all-reduce alone, in place on library memory, as for buckets."""
        results = self.run([self.options.bin / "rondo-perf", "all_reduce", "--ranks", "2", "-b", size, "-e", size, "-n", "20", "-w", "5",
                            "--memory", "library"])["results"]
        return results[0]["in_place"]["time"] / 1e3

    def sgemm_gflops(self, shapes):
        """The matrix library's rate on these products (rows, in, out) and the two of their backward, one after another."""
        if self.sgemm is None:
            os.environ["OPENBLAS_NUM_THREADS"] = "1"
            self.sgemm = ctypes.CDLL("libopenblas.so.0").cblas_sgemm
        row_major, no, yes = 101, 111, 112
        operations, seconds = 0, 0.0
        for rows, inner, outer in shapes:
            x, w, y = ((ctypes.c_float * n)() for n in (rows * inner, outer * inner, rows * outer))
            for array in (x, w, y):
                ctypes.memset(array, 0x3c, ctypes.sizeof(array))
            for turn in range(2):
                begin = time.perf_counter()
                one, zero = ctypes.c_float(1), ctypes.c_float(0)
                self.sgemm(row_major, no, yes, rows, outer, inner, one, x, inner, w, inner, zero, y, outer)
                self.sgemm(row_major, no, no, rows, inner, outer, one, y, outer, w, inner, zero, x, inner)
                self.sgemm(row_major, yes, no, outer, inner, rows, one, y, outer, x, inner, zero, w, inner)
                if turn == 1:  # the first touches
                    seconds += time.perf_counter() - begin
                    operations += 3 * 2 * rows * inner * outer
        return operations / seconds / 1e9


def nano(bench):
    ours, theirs = bench.train(f"{NANO} --steps 40")["step_ms"], bench.torch(f"{NANO} --steps 30")
    return {"rondo_ms": ours, "torch_ms": theirs, "ratio": theirs / ours}


def mlp_sync(bench):
    summary = bench.train(f"{MLP} --ranks 2 --steps 40 --control-steps 20")
    accounting = summary["accounting"]
    alone = bench.all_reduce(summary["gradient_bytes_per_step"])
    added = accounting["measured_ms"] - accounting["compute_ms"]
    # Parts of it: the wait of the last rank to come, which waits for no other; how much slower ranks compute while they communicate. The rest
    # is the wait for the slower rank and for headers.
    exposed, slower = summary["exposed_cost_ms"], accounting["contention"] * accounting["compute_ms"]
    return {"step_ms": accounting["measured_ms"], "added_ms": added, "exposed_cost_ms": exposed, "computing_slower_ms": slower,
            "alone_ms": alone, "last_rank_ratio": (exposed + slower) / alone, "ratio": added / alone}


def mlp_ddp(bench):
    numbers = {"rondo_ms": bench.train(f"{MLP} --ranks 2 --steps 40")["step_ms"]}
    for cap in (1, 5, 25, 100):
        numbers[f"torch_{cap}_ms"] = bench.torch(f"{MLP} --ranks 2 --steps 30 --bucket-cap-mb {cap}")
    numbers["ratio"] = min(value for name, value in numbers.items() if name.startswith("torch")) / numbers["rondo_ms"]
    return numbers


def gpt2_gemm(bench):
    block = [(256, 768, 2304), (256, 768, 768), (256, 768, 3072), (256, 3072, 768)]
    before = bench.sgemm_gflops(12 * block + [(256, 768, 50257)])
    step = bench.train(f"{GPT2} --steps 4")
    after = bench.sgemm_gflops(12 * block + [(256, 768, 50257)])
    alone = (before + after) / 2
    return {"step_ms": step["step_ms"], "gflops": step["gemm_gflops_per_rank"], "sgemm_gflops": alone,
            "ratio": step["gemm_gflops_per_rank"] / alone}


def gpt2(bench):
    ours, theirs = bench.train(f"{GPT2} --steps 4")["step_ms"], bench.torch(f"{GPT2} --steps 4 --warm-up 1")
    return {"rondo_ms": ours, "torch_ms": theirs, "ratio": theirs / ours}


def paced_cap(bench):
    free = bench.train(f"{MLP} --ranks 2 --steps 12")
    # Two ranks send as many bytes as there are gradients; the pace makes that take half of backward.
    rate = free["gradient_bytes_per_step"] / (free["backward_ms"] / 2) / 1e6
    pace = f"--pace {rate:.3f}GB/s,20us"
    cap = bench.train(f"{MLP} --ranks 2 --steps 12 --control-steps 4 {pace}")["suggested_bucket_cap_mb"]
    at_cap = bench.train(f"{MLP} --ranks 2 --steps 30 --bucket-cap-mb {cap} {pace}")
    communication = at_cap["comm_us"] / 1e3
    return {"cap_mb": cap, "backward_ms": at_cap["backward_ms"], "comm_ms": communication, "exposed_ms": at_cap["exposed_comm_ms"],
            "ratio": at_cap["exposed_comm_ms"] / communication}


def buckets(bench):
    # A backward of tens of milliseconds, as with batch 16, hides 53 latencies of 50 us as well as 4, and both sides expose their last
    # all-reduce and the wait for the slower rank. So this row uses one sample, whose backward is about as long as the latencies, and the
    # wait of the rank that comes last.
    pace = "--model gpt --batch 1 --ranks 2 --steps 200 --pace 10GB/s,50us"
    one, each = (bench.train(f"{pace} --bucket-cap-mb {cap}") for cap in (25, 0))
    return {"buckets_ms": one["exposed_cost_ms"], "per_tensor_ms": each["exposed_cost_ms"], "backward_ms": one["backward_ms"],
            "buckets_comm_ms": one["accounting"]["cost_ms"], "per_tensor_comm_ms": each["accounting"]["cost_ms"],
            "ratio": each["exposed_cost_ms"] / one["exposed_cost_ms"]}


# name: (description, goal, whether torch is needed, the function that runs a round)
ROWS = {
    "nano": ("GPT nano, batch 16, one rank: PyTorch's step / rondo's", ">= 1.3", True, nano),
    "mlp-sync": ("MLP 8 x 1024, two ranks: what synchronising adds / the all-reduce alone", "<= 1.2", False, mlp_sync),
    "mlp-ddp": ("the same step: PyTorch DDP's, best cap of 1, 5, 25, 100 MB / rondo's", ">= 1.6", True, mlp_ddp),
    "gpt2-gemm": ("GPT-2 124M, batch 4 x 64: matrix products per second / sgemm's on the shapes", ">= 0.8", False, gpt2_gemm),
    "gpt2": ("the same: PyTorch's step / rondo's", "none", True, gpt2),
    "paced-cap": ("MLP, communication half as long as backward, suggested cap: exposed share", "< 0.15", False, paced_cap),
    "buckets": ("GPT nano, batch 1, 50 us latency: exposed with one all-reduce per tensor / with buckets", ">= 5", False, buckets),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", help="a Python that can import torch")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default=",".join(ROWS), help="rows, separated by commas: " + ", ".join(ROWS))
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    names = options.only.split(",")
    if unknown := [name for name in names if name not in ROWS]:
        parser.error(f"--only: no row '{unknown[0]}'; there are {', '.join(ROWS)}")
    if not (options.bin / "rondo-train").exists():
        parser.error(f"--bin: {options.bin} has no rondo-train; build first (cmake --preset release && cmake --build --preset release)")
    left_out = [name for name in names if ROWS[name][2] and not options.torch]
    results = {name: [] for name in names if name not in left_out}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, pathlib.Path(folder))
        for round_number in range(options.rounds):
            for name, rounds in results.items():
                rounds.append(ROWS[name][3](bench))
                print(f"round {round_number + 1}, {name}: " + ", ".join(f"{k} {v:.3g}" for k, v in rounds[-1].items()), file=sys.stderr)
    print("| row | goal | median | least, most | medians of its parts |\n| --- | --- | ---: | ---: | --- |")
    for name, rounds in results.items():
        ratios = [r["ratio"] for r in rounds]
        parts = ", ".join(f"{key} {statistics.median(r[key] for r in rounds):.3g}" for key in rounds[0] if key != "ratio")
        print(f"| {ROWS[name][0]} | {ROWS[name][1]} | {statistics.median(ratios):.2f} | {min(ratios):.2f}, {max(ratios):.2f} | {parts} |")
    for name in left_out:
        print(f"left out: {name}, which needs --torch", file=sys.stderr)
    if options.json:
        options.json.write_text(json.dumps({"rounds": results, "configs": bench.configs}, indent=1))


if __name__ == "__main__":
    main()
