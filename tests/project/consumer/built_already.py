#!/usr/bin/env python3
"""built_already.py BUILD PROJECT FOLDER SOURCE COPY COMPILER ARGUMENTS: the compiler launcher of PROJECT, a build folder in which rondo is
FOLDER ("" or "rondo/"), from COPY, where the files of SOURCE are. For a source of rondo it copies the object from BUILD, after a check that the same command made it there; it compiles
other sources. Compiling rondo again would take minutes and make the same objects."""
import json
import pathlib
import shlex
import shutil
import subprocess
import sys

NOT_EMBEDDED = {"-Werror", "-Werror=all-warnings"}  # RONDO_WERROR is off there


def output_of(words):
    return words[words.index("-o") + 1]


def main():
    build, project, folder, source, copy, *command = sys.argv[1:]
    output = output_of(command)
    if not output.startswith(folder):
        sys.exit(subprocess.run(command, check=False).returncode)

    there = {}
    for entry in json.loads(pathlib.Path(build, "compile_commands.json").read_text()):
        words = shlex.split(entry["command"])
        there[output_of(words)] = words
    words = list(command)
    for flag in ("-MT", "-MF"):  # they only name the file that lists the headers
        del words[words.index(flag):words.index(flag) + 2]
    rondo = f"{project}/{folder}".rstrip("/")
    here = [word.replace(rondo, build).replace(copy, source).removeprefix(folder) for word in words if word != "-MD"]
    expected = [word for word in there.get(output.removeprefix(folder), []) if word not in NOT_EMBEDDED]
    if here != expected:
        sys.exit(f"{output}: as a part of another project it is compiled by\n{shlex.join(here)}\nand alone by\n{shlex.join(expected)}")
    shutil.copy(pathlib.Path(build, output.removeprefix(folder)), output)
    pathlib.Path(command[command.index("-MF") + 1]).write_text(f"{output}:\n")


main()
