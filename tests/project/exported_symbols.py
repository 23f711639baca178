#!/usr/bin/env python3
"""exported_symbols.py LIBRONDO.SO LIST: the shared library shows the C functions of LIST, exactly, C++ only of namespace rondo
and none of its inner ones, and nothing else."""
import re
import subprocess
import sys

library, listed = sys.argv[1:]
INNER = re.compile(r"rondo::(?:\w+::)*Impl\b|rondo::Work::State\b|rondo::[a-z]\w*::")  # types begin with a capital, namespaces do not

lines = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout.splitlines()
names = [line.split()[-1] for line in lines]
c = sorted(name for name in names if not name.startswith("_Z"))
mangled = [name for name in names if name.startswith("_Z")]
cpp = subprocess.run(["c++filt", *mangled], capture_output=True, text=True, check=True).stdout.splitlines()

with open(listed, encoding="utf-8") as file:
    wanted = sorted(line.strip() for line in file if line.strip())
problems = [f"{name} is shown, but not in {listed}: append it there if it belongs to the interface" for name in c if name not in wanted]
problems += [f"{name} is in {listed}, but the library does not have it: programs that use it would break" for name in wanted if name not in c]
problems += [f"{name} is shown, and is not the interface of namespace rondo" for name in cpp
             if not name.startswith("rondo::") or INNER.match(name)]
if not any(name.startswith("rondo::Communicator::run(") for name in cpp):
    problems.append("rondo::Communicator::run is hidden")
print("\n".join(problems) or f"{len(c)} C functions, {len(cpp)} C++ symbols")
sys.exit(1 if problems else 0)
