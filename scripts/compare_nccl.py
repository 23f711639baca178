"""rondo on device memory beside NCCL, for scripts/compare: a rank on every GPU, as threads and as processes, or two threads on the only
one. Unlike an MPI, NCCL is not in rondo's process: each round runs every program once, and ratios are taken within a round."""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from stages import last_line
from tables import size_text

PROGRAMS = ("rondo-perf", "rondo-perf-nccl")
# From 2.30 on several ranks of NCCL share a GPU if they are told so; rondo-perf-nccl says which NCCL it has.
SHARES_A_GPU = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}


def gpus():
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines()) if listed.returncode == 0 else 0


def ranks_on(count):
    return max(count, 2)


def why_left_out(count, bin_dir):
    """The reason, or an empty string if NCCL can be measured."""
    if count == 0:
        return "NCCL is left out: there is no GPU here"
    for program in PROGRAMS:
        if not (bin_dir / program).exists():
            return f"NCCL is left out: {bin_dir} has no {program} (-DRONDO_NCCL_DIR says where NCCL is)"
    return ""


def run_once(command, place):
    """{size: microseconds}; after a failure a string with the reason."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "result.json"
        try:
            done = subprocess.run([*command, "--json", str(path)], capture_output=True, text=True, timeout=600, check=False,
                                  env={**os.environ, **SHARES_A_GPU})
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        if done.returncode != 0:
            return f"{command[0]} ended with code {done.returncode}: {last_line(done.stderr.strip() or done.stdout)}"
        results = json.loads(path.read_text())["results"]
    return {row["size"]: row[place]["time"] for row in results if row.get(place)}


def ways_of(count):
    """{how rondo's ranks run: its flags}. Processes on one GPU take turns without MPS, which scripts/gpu-check starts."""
    return {"threads": ["--threads"], **({"processes, registered memory": ["--memory", "library"]} if count > 1 else {})}


def measure(arguments, count, bin_dir):
    """[{'size', 'nccl_us', 'rondo': {way: {'us', 'ratio'}}}], medians of the rounds; after a failure a string with the reason."""
    words = [arguments.collective, "-b", arguments.minbytes, "-e", arguments.maxbytes, "-f", arguments.stepfactor, "-d", arguments.datatype,
             "-o", arguments.op, "--ranks", str(ranks_on(count))]
    rondo, nccl = ([str(bin_dir / program), *words] for program in PROGRAMS)
    commands = {way: [*rondo, "--device", "cuda", *flags] for way, flags in ways_of(count).items()}
    place = "in_place" if arguments.in_place else "out_of_place"
    rounds = []
    while len(rounds) < arguments.rounds:
        times = {}
        for way, command in [*commands.items(), ("NCCL", nccl)]:
            times[way] = run_once(command, place)
            if isinstance(times[way], str):
                if "--memory library" not in times[way] or way not in commands:
                    return times[way]
                print(f"compare: without {way}: {times.pop(way)}", file=sys.stderr)  # GPUs that do not share memory
                del commands[way]
                break
        else:
            rounds.append(times)
    rounds = [{way: times[way] for way in [*commands, "NCCL"]} for times in rounds]
    sizes = set.intersection(*(set(each) for times in rounds for each in times.values()))

    def median(value, size):
        return statistics.median(value({way: each[size] for way, each in times.items()}) for times in rounds)

    return [{"size": size, "nccl_us": median(lambda us: us["NCCL"], size),
             "rondo": {way: {"us": median(lambda us: us[way], size), "ratio": median(lambda us: us["NCCL"] / us[way], size)} for way in commands}}
            for size in sorted(sizes)]


def table_of(rows):
    ways = list(rows[0]["rondo"]) if rows else []
    header = ["size", "NCCL", *(f"rondo, {way}" for way in ways)]
    return header, [[size_text(row["size"]), f"{row['nccl_us']:.2f}",
                     *(f"{row['rondo'][way]['us']:.2f} ({row['rondo'][way]['ratio']:.2f})" for way in ways)] for row in rows]
