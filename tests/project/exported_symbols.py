#!/usr/bin/env python3
"""exported_symbols.py LIBRONDO.SO RONDO.H: the shared library shows the C functions that the header declares, exactly, C++ only of
namespace rondo and none of its inner ones, and nothing else."""
import pathlib
import re
import subprocess
import sys

library, header = sys.argv[1:]
INNER = re.compile(r"rondo::(?:\w+::)*Impl\b|rondo::Work::State\b|rondo::[a-z]\w*::")  # types begin with a capital, namespaces do not


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


names = [line.split()[-1] for line in output_of("nm", "-D", "--defined-only", library)]
c = {name for name in names if not name.startswith("_Z")}
cpp = output_of("c++filt", *(name for name in names if name.startswith("_Z")))
wanted = set(re.findall(r"^[a-z]\w*[ *]+(?:\w+[ *]+)?(rondo_\w+)\(", pathlib.Path(header).read_text(encoding="utf-8"), re.MULTILINE))

problems = [f"{name} is shown, but {header} does not declare it" for name in c - wanted]
problems += [f"{name} is declared in {header}, but the library does not have it" for name in wanted - c]
problems += [f"{name} is shown, and is not the interface of namespace rondo" for name in cpp
             if not name.startswith("rondo::") or INNER.match(name)]
if not any(name.startswith("rondo::Communicator::all_reduce(") for name in cpp):
    problems.append("rondo::Communicator::all_reduce is hidden")
print("\n".join(problems) or f"{len(c)} C functions, {len(cpp)} C++ symbols")
sys.exit(1 if problems else 0)
