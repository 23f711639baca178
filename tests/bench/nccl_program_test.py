#!/usr/bin/env python3
"""rondo-perf-nccl PROGRAM: on a machine with GPUs right results of everything that it measures; without one a sentence and no success,
after which this ends with 77: CTest calls it skipped. What it refuses does not need a GPU."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile


def run(*words, **environment):
    return subprocess.run([sys.argv[1], *map(str, words)], capture_output=True, text=True, timeout=250, check=False,
                          env={**os.environ, **environment})


def fail(text, done):
    sys.exit(f"{text}: code {done.returncode}\n{done.stdout}\n{done.stderr}")


def main():
    launched = run("all_reduce", RANK="0", WORLD_SIZE="2", LOCAL_RANK="0", LOCAL_WORLD_SIZE="2")
    if launched.returncode == 0 or "one is enough" not in launched.stderr:
        fail("one of two processes went on", launched)
    if run("all_reduce", "--no-such-flag").returncode != 2:
        sys.exit("a mistake on the command line is not 2")
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "result.json"
        for collective in ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce"):
            done = run(collective, "-b", 8, "-e", "64K", "-f", 32, "-n", 5, "--json", path)
            if "there is no GPU here" in done.stderr:
                if done.returncode == 0 or done.stdout:
                    fail("no GPU, and yet something was done", done)
                document = json.loads(path.read_text())
                if document["results"] or "there is no GPU here" not in document["error"]:
                    fail(f"no GPU, and the document is {document}", done)
                print(f"skipped: {done.stderr.strip()}")
                return 77
            results = json.loads(path.read_text())["results"] if done.returncode == 0 else []
            if not results or any(row["out_of_place"]["nwrong"] != 0 for row in results):
                fail(collective, done)
        for words, sentence in ((["all_reduce", "-d", "int16"], "no type"), (["all_reduce", "-o", "mulsum"], "not measured"),
                                (["all_reduce", "-d", "int32", "-o", "bxor"], "no operator"),
                                (["all_to_all"], "only"), (["all_reduce", "--ranks", 1000], "has one rank per GPU")):
            refused = run(*words, "-b", 8, "-e", 8)
            if refused.returncode == 0 or sentence not in refused.stderr:
                fail(f"{words} was not refused", refused)
    return 0


if __name__ == "__main__":
    sys.exit(main())
