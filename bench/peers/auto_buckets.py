#!/usr/bin/env python3
"""rondo-train with --bucket-cap-mb auto beside fixed caps, in interleaved rounds: eight models and paces.

    bench/peers/auto_buckets.py [--rounds 5] [--bin build/release/bin] [--only mlp-8x1024-2GB,...]

Prints a table in Markdown: the step in milliseconds with auto and with the best fixed cap (each the median over rounds of a run's
median after its tenth step), their ratio, and the share of communication that is exposed. Two ranks, one thread each: leave the
machine alone meanwhile.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
MLP, WIDE, GPT, DEEP = ("--model mlp --batch 64", "--model mlp --layers 8 --width 1024 --batch 64", "--model gpt --batch 8",
                        "--model gpt --layers 8 --width 256 --heads 8 --batch 4")
CASES = {
    "mlp-2x512": f"{MLP}",
    "mlp-2x512-1GB": f"{MLP} --pace 1GB/s,20us",
    "mlp-8x1024": f"{WIDE}",
    "mlp-8x1024-2GB": f"{WIDE} --pace 2GB/s,50us",
    "mlp-8x1024-500MB": f"{WIDE} --pace 500MB/s,100us",
    "gpt-nano-1GB": f"{GPT} --pace 1GB/s,20us",
    "gpt-8x256-2GB": f"{DEEP} --pace 2GB/s,50us",
    "gpt-8x256-500MB": f"{DEEP} --pace 500MB/s,100us",
}
CAPS = ["0.5", "1", "2", "5", "10", "25"]
STEPS = 40


def run(options, flags, cap, folder):
    """One run: (median step, exposed share) after the tenth step."""
    out = folder / "out.json"
    command = [options.bin / "rondo-train", *flags.split(), "--ranks", "2", "--steps", str(STEPS), "--data", ROOT / "docs",
               "--log-every", "0", "--lr", "0.001", "--bucket-cap-mb", cap, "--json", out]
    done = subprocess.run(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                          env=dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1"))
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stderr[-2000:]}")
    steps = json.loads(out.read_text())["steps"][10:]
    carried = statistics.median(step["comm_ms"] for step in steps)
    exposed = statistics.median(step["exposed_comm_ms"] for step in steps)
    return statistics.median(step["step_ms"] for step in steps), exposed / carried if carried > 0 else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--only", default=",".join(CASES), help="names of cases, separated by commas")
    options = parser.parse_args()
    unknown = set(options.only.split(",")) - set(CASES)
    if unknown:
        parser.error(f"no case {', '.join(sorted(unknown))}: there are {', '.join(CASES)}")
    print("| case | auto: step (ms) | exposed | best cap | step (ms) | exposed | auto / best | 25 MiB: step (ms) |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only.split(","):
            rounds = []
            for number in range(options.rounds):
                caps = ["auto", *CAPS] if number % 2 == 0 else [*reversed(CAPS), "auto"]  # none is always the first
                rounds.append({cap: run(options, CASES[name], cap, pathlib.Path(folder)) for cap in caps})
            step = {cap: statistics.median(r[cap][0] for r in rounds) for cap in rounds[0]}
            exposed = {cap: statistics.median(r[cap][1] for r in rounds) for cap in rounds[0]}
            best = min(CAPS, key=step.get)
            ratio = statistics.median(r["auto"][0] / r[best][0] for r in rounds)
            print(f"| {name} | {step['auto']:.2f} | {exposed['auto']:.2f} | {best} | {step[best]:.2f} | {exposed[best]:.2f} "
                  f"| {ratio:.3f} | {step['25']:.2f} |", flush=True)


if __name__ == "__main__":
    main()
