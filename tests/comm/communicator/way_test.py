#!/usr/bin/env python3
"""The files through which a warm all-reduce passes are those that comm/README.md lists.

way_test.py WARM_CALL SOURCE_DIR: ends with 77 (skipped) where the program has no line numbers.
"""
import pathlib
import re
import subprocess
import sys

MOST = 10
SIMD = "kernels/host/move-inl"  # stands for all that it inlines


def without_suffix(path):
    return str(path.with_suffix(""))


def listed(root):
    """The table's files. A header and its source are one."""
    text = (root / "comm/README.md").read_text()
    table = text.split("\n## ", 1)[0]
    files = re.findall(r"^\| \d+ \| `([^`]+)`", table, re.M)
    for file in files:
        path = root / "comm" / file if (root / "comm" / file).exists() else root / file
        if not path.exists():
            sys.exit(f"comm/README.md lists {file}, which does not exist")
        yield without_suffix(path.relative_to(root))


def passed(program, root):
    """The files of all instructions, inlined functions included, in the order of their first."""
    addresses = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    unique = dict.fromkeys(addresses.split())
    lines = subprocess.run(["addr2line", "-i", "-e", program], input="\n".join(unique), check=True,
                           capture_output=True, text=True).stdout
    known = [line.split(":")[0] for line in lines.splitlines() if not line.startswith("?")]
    if not any(file.endswith("host_engine.cpp") for file in known):
        print("the library was built without line numbers")
        sys.exit(77)
    for file in known:
        path = pathlib.Path(file).resolve()
        if not path.is_file() or not path.is_relative_to(root):
            continue  # generated, or the standard library's
        name = without_suffix(path.relative_to(root))
        if name.startswith(("kernels/host/", "kernels/element")):
            yield SIMD
        elif name.startswith(("comm/", "transport/", "kernels/")):
            yield name


def main():
    program, root = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
    promised = list(listed(root))
    found = list(dict.fromkeys(passed(program, root)))
    print("passed, in order of first use:", *found, sep="\n  ")
    missing = [file for file in found if file not in promised]
    surplus = [file for file in promised if file not in found]
    if missing or surplus:
        sys.exit(f"comm/README.md lacks {missing} and lists {surplus} in vain")
    if len(found) > MOST:
        sys.exit(f"{len(found)} files; at most {MOST} are allowed")


main()
