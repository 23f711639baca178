#!/usr/bin/env python3
"""documented_environment.py ROOT RONDO_RUN: the tables of docs/environment.md and of rondo-run --help-environment are the same, and the whole truth: every RONDO_ variable that the sources name as a string is in it, and no other."""
import pathlib
import re
import subprocess
import sys

LAYERS = ("include", "kernels", "transport", "comm", "trainer", "bench", "nccl")
TABLE = pathlib.Path("comm/launch/variables.hpp")

root, rondo_run = pathlib.Path(sys.argv[1]), sys.argv[2]
used = {}
for layer in LAYERS:
    for path in sorted(p for p in (root / layer).rglob("*") if p.suffix in (".hpp", ".cpp", ".h", ".c", ".cu")):
        if path.relative_to(root) == TABLE:
            continue
        for name in re.findall(r'"(RONDO_[A-Z0-9_]+)', path.read_text(encoding="utf-8")):
            used.setdefault(name, path.relative_to(root))
page = (root / "docs/environment.md").read_text(encoding="utf-8")
documented = dict((name, (default, meaning)) for name, default, meaning in
                  re.findall(r"^\| `(RONDO_[A-Z0-9_]+)` \| (.+?) \| (.+?) \|$", page.replace("\\|", "|"), re.MULTILINE))
shown = subprocess.run([rondo_run, "--help-environment"], capture_output=True, text=True, check=True).stdout
printed = dict((name, (default, meaning)) for name, default, meaning in
               re.findall(r"^(RONDO_[A-Z0-9_]+) {2,}(.+?) {2,}(.+)$", shown, re.MULTILINE))

problems = [f"{used[name]} reads {name}, which rondo-run --help-environment does not print" for name in sorted(used.keys() - printed.keys())]
problems += [f"{TABLE} lists {name}, which no source names" for name in sorted(printed.keys() - used.keys())]
for name in sorted(printed.keys() | documented.keys()):
    plain = tuple(text.replace("`", "") for text in documented.get(name, ()))
    if plain != printed.get(name):
        problems.append(f"{name} differs: docs/environment.md says {plain}, rondo-run --help-environment {printed.get(name)}")
if len(printed) != len(shown.splitlines()):
    problems.append("rondo-run --help-environment printed lines that are no row of a table")
print("\n".join(problems) or f"{len(printed)} variables, all documented")
sys.exit(1 if problems else 0)
