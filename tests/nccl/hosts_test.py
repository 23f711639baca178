#!/usr/bin/env python3
"""hosts_test.py PROGRAM...: each program with two ranks on one host and one on another, over UCX."""
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "harness"))
from hosts import Hosts  # noqa: E402

KEPT = {name: text for name, text in os.environ.items() if not name.startswith(("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "RONDO_"))}


def outputs(program):
    """The ranks meet by the id that rank 0 leaves in a file named after this process."""
    ranks = [subprocess.Popen(HOSTS.on(rank // 2, [program]), env=KEPT | {"RANK": str(rank), "WORLD_SIZE": "3", "UCX_TLS": "tcp"}, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for rank in range(3)]
    try:
        return [rank.communicate(timeout=150)[0] for rank in ranks], [rank.returncode for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()


with Hosts(2) as HOSTS:
    for name in sys.argv[1:]:
        said, codes = outputs(name)
        if codes != [0, 0, 0] or not all("all right" in text for text in said):
            sys.exit(f"{name} on two hosts gave {codes}:\n" + "\n".join(said))
print("all right")
