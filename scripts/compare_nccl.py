"""rondo on device memory beside NCCL, for scripts/compare: a rank on every GPU, or two on the only one, in one process of each library,
which run alternately. Unlike an MPI, NCCL is not in rondo's process: each round runs both once, and ratios are taken within a round."""
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

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
            lines = done.stderr.strip().splitlines() or done.stdout.strip().splitlines() or ["it printed nothing"]
            return f"{command[0]} ended with code {done.returncode}: {lines[-1]}"
        results = json.loads(path.read_text())["results"]
    return {row["size"]: row[place]["time"] for row in results if row.get(place)}


def measure(arguments, count, bin_dir):
    """[{'size', 'rondo_us', 'nccl_us', 'ratio'}], medians of the rounds; after a failure a string with the reason."""
    words = [arguments.collective, "-b", arguments.minbytes, "-e", arguments.maxbytes, "-f", arguments.stepfactor, "-d", arguments.datatype,
             "-o", arguments.op, "--ranks", str(ranks_on(count))]
    rondo = [str(bin_dir / PROGRAMS[0]), *words, "--device", "cuda", "--threads"]
    nccl = [str(bin_dir / PROGRAMS[1]), *words]
    place = "in_place" if arguments.in_place else "out_of_place"
    times = {}
    for _ in range(arguments.rounds):
        both = []
        for command in (rondo, nccl):
            both.append(run_once(command, place))
            if isinstance(both[-1], str):
                return both[-1]
        for size in both[0].keys() & both[1].keys():
            times.setdefault(size, []).append((both[0][size], both[1][size]))
    return [{"size": size, "rondo_us": statistics.median(own for own, _ in pairs), "nccl_us": statistics.median(peer for _, peer in pairs),
             "ratio": statistics.median(peer / own for own, peer in pairs)} for size, pairs in sorted(times.items())]


def table_of(rows):
    header = ["size", "rondo on GPUs", "NCCL"]
    return header, [[size_text(row["size"]), f"{row['rondo_us']:.2f}", f"{row['nccl_us']:.2f} ({row['ratio']:.2f})"] for row in rows]
