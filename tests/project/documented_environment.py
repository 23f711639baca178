#!/usr/bin/env python3
"""README's table of environment variables is the whole truth: every RONDO_ variable that the sources name as a string stands
in it, and nothing stands in it that the sources do not name."""
import pathlib
import re
import sys

LAYERS = ("include", "kernels", "transport", "comm", "trainer", "bench")

root = pathlib.Path(sys.argv[1])
used = {}
for layer in LAYERS:
    for path in sorted((root / layer).rglob("*.[ch]pp")):
        for name in re.findall(r'"(RONDO_[A-Z0-9_]+)', path.read_text(encoding="utf-8")):
            used.setdefault(name, path.relative_to(root))
documented = set(re.findall(r"^\| `(RONDO_[A-Z0-9_]+)`", (root / "README.md").read_text(encoding="utf-8"), re.MULTILINE))

problems = [f"{used[name]} reads {name}, which README.md does not list" for name in sorted(used.keys() - documented)]
problems += [f"README.md lists {name}, which no source names" for name in sorted(documented - used.keys())]
print("\n".join(problems) or f"{len(used)} variables, all documented")
sys.exit(1 if problems else 0)
