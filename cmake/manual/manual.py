#!/usr/bin/env python3
"""manual.py --version V --readme README.md --out DIR [--alias PROGRAM=NAME...] PATH...: writes for each program, from what its
--help prints, DIR/man1/PROGRAM.1, DIR/bash/PROGRAM and DIR/zsh/_PROGRAM. README's table of programs has what each is for, and an
example. An alias is another name of a program: it gets a page and a completion, too."""
import argparse
import pathlib
import re
import subprocess

import completions
import help_text
import man_page


def programs_of(readme):
    """README's table: program -> (what it does; empty, if the row is about several; examples)."""
    rows = {}
    for line in readme.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| `rondo-") and len(cells) == 3:
            programs = re.findall(r"`(rondo-[\w-]+)`", cells[0])
            for program in programs:
                purpose = cells[1].replace("`", "").partition(";")[0] if len(programs) == 1 else ""
                rows[program] = (purpose, [words for words in re.findall(r"`([^`]+)`", cells[2]) if f"{program} " in words + " "])
    return rows


def environment_of(path):
    """rondo-run's table: (variable, default, meaning)."""
    shown = subprocess.run([path, "--help-environment"], stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout
    return [re.split(r" {2,}", line) for line in shown.splitlines()]


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def link(path, target):
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--version", required=True)
    parser.add_argument("--readme", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--alias", action="append", default=[])
    parser.add_argument("programs", type=pathlib.Path, nargs="+")
    asked = parser.parse_args()
    table = programs_of(asked.readme)
    names = [path.name for path in asked.programs]
    for path in asked.programs:
        program = path.name
        if program not in table:
            raise SystemExit(f"manual: {asked.readme} has no row for {program}")
        help_ = help_text.help_of(program, path)
        aliases = [alias.partition("=")[2] for alias in asked.alias if alias.startswith(program + "=")]
        purpose, examples = table[program]
        environment = environment_of(path) if help_.runs_a_program() else []
        others = [name for name in names if name != program and not name.startswith("rondo-perf-")]  # peers may not be installed
        write(asked.out / f"man1/{program}.1",
              man_page.page(help_, purpose or help_.first_sentence(), examples, others, environment, asked.version))
        write(asked.out / f"bash/{program}", completions.bash(help_, aliases))
        write(asked.out / f"zsh/_{program}", completions.zsh(help_, aliases))
        for alias in aliases:
            link(asked.out / f"man1/{alias}.1", f"{program}.1")
            link(asked.out / f"bash/{alias}", program)


if __name__ == "__main__":
    main()
