#!/usr/bin/env python3
"""reference_test.py SOURCE: the API reference that scripts/docs builds: it warns of nothing, holds every function of the C API, and
has a text for each function that takes an argument; a wrong comment makes scripts/docs fail."""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml

from common import check

SKIPPED = 77


def tree(source, work):
    """A copy of what scripts/docs reads."""
    for name in ("include", "docs/reference"):
        shutil.copytree(source / name, work / name)
    (work / "scripts").mkdir()
    for name in ("docs", "common.sh"):
        shutil.copy(source / "scripts" / name, work / "scripts")
    (work / "scripts/setup").write_text("#!/bin/sh\n")  # doxygen is here
    (work / "scripts/setup").chmod(0o755)
    return work


def docs(work):
    return subprocess.run([work / "scripts/docs", work / "out"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=100, check=False)


def texts(folder):
    """{qualified name: texts of all members that have it}, and the functions with arguments that have none"""
    found, silent = {}, []
    for file in folder.glob("*.xml"):
        for member in xml.parse(file).iter():
            if member.tag not in ("memberdef", "enumvalue") or member.get("prot") != "public":
                continue
            parts = [part for part in (member.find("briefdescription"), member.find("detaileddescription")) if part is not None]
            text = "".join("".join(part.itertext()) for part in parts).strip()
            name = member.findtext("name")
            found.setdefault(name, []).append(text)
            is_plain = member.findtext("type") and not name.startswith("operator") and member.findtext("argsstring")
            if member.get("kind") == "function" and is_plain and member.find("param") is not None and not text:
                silent.append(f"{name}{member.findtext('argsstring')} ({file.name})")
    return found, silent


def main():
    source = pathlib.Path(sys.argv[1])
    if not shutil.which("doxygen"):
        print("no doxygen here")
        sys.exit(SKIPPED)
    with tempfile.TemporaryDirectory() as folder:
        work = tree(source, pathlib.Path(folder))
        done = docs(work)
        check(done.returncode == 0 and (work / "out/html/index.html").is_file(), done.stdout)
        found, silent = texts(work / "out/xml")
        check(not silent, f"without a word: {silent}")
        header = (source / "include/rondo/rondo.h").read_text()
        functions = set(re.findall(r"^[a-z]\w*[ *]+(?:\w+[ *]+)?(rondo_\w+)\(", header, re.M))
        check(len(functions) > 50, f"found only {functions}")
        missing = {name for name in functions if not all(found.get(name, [""]))}
        check(not missing, f"rondo.h has them, the reference does not, or has no word of them: {missing}")
        for name, part in (("kFloat8E4M3", "up to 448"), ("RONDO_BOOL", "one byte"), ("barrier_async", "Asynchronous forms"),
                           ("rondo_size", "-1 for a null communicator")):
            check(part in "".join(found[name]), f"the comment of {name} is lost: {found[name]}")
        broken = work / "include/rondo/named_calls.hpp"
        broken.write_text(broken.read_text().replace("  /// Returns when every rank", "  /// @param nobody\n  /// Returns when every rank"))
        done = docs(work)
        check(done.returncode != 0 and "nobody" in done.stdout, f"a wrong comment is no error: {done.returncode}, {done.stdout}")


if __name__ == "__main__":
    main()
