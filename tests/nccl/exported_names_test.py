#!/usr/bin/env python3
"""exported_names_test.py LIBRONDO-NCCL.SO LIST: the library exports the names of LIST, which are those of NCCL 2.32.3's own library,
and nothing else; pnccl* is nccl*; and its SONAME is NCCL's."""
import subprocess
import sys

library, listed = sys.argv[1:]
lines = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout.splitlines()
places = {name: place for place, _, name in (line.split() for line in lines)}
with open(listed, encoding="utf-8") as file:
    wanted = set(file.read().split())
problems = [f"{name} is exported, and not in {listed}" for name in sorted(places.keys() - wanted)]
problems += [f"{name} is in {listed}, and not exported" for name in sorted(wanted - places.keys())]
problems += [f"{name} is not {name[1:]}" for name in sorted(places) if name.startswith("p") and places[name] != places.get(name[1:])]
dynamic = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
if "soname: [libnccl.so.2]" not in dynamic:
    problems.append("its SONAME is not libnccl.so.2")
if "NEEDED" in (words := " ".join(line for line in dynamic.splitlines() if "libcud" in line)):
    problems.append(f"it does not start without CUDA: {words}")
print("\n".join(problems) or f"{len(places)} names")
sys.exit(1 if problems else 0)
