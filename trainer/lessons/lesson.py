#!/usr/bin/env python3
"""lesson.py NAME [--folder DIR] [--program RONDO_TRAIN] [--device DEVICE]: runs a lesson's trainings and prints what they show;
`list` names the lessons. rondo-train --lesson NAME runs this. What the trainings read and write stays in DIR, by default
build/lessons/NAME, so that the printed commands can be repeated. Fails where the symptom did not show."""
import argparse
import json
import os
import pathlib
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import textwrap

from lessons import LESSONS, Run

PROJECT = pathlib.Path(__file__).resolve().parents[2]
FIRST, WIDTH = 32, 79


def mix(x):
    """As trainer/base/random.hpp: the same data on every machine."""
    mask = (1 << 64) - 1
    x = (x + 0x9E3779B97F4A7C15) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


def text_of(size, seed):
    words = [b"ring ", b"rank ", b"sum ", b"bucket ", b"step ", b"wait.\n"]
    return b"".join(words[mix(seed ^ mix(i)) % 6] for i in range(size))[:size]


def write_bars(folder, count, seed):
    """IDX files of pictures in four classes: class c has a brighter bar of two rows. Exposure differs from picture to picture, so
    that the statistics of a few pictures say little about those of many."""
    side = 8
    keys = [mix(seed ^ mix(i)) for i in range(count)]
    pixels = bytes(mix(key ^ 1) % 160 + mix(key ^ (p + 2)) % 48 + (40 if p // (2 * side) == key % 4 else 0)
                   for key in keys for p in range(side * side))
    folder.mkdir(exist_ok=True)
    (folder / "t-images-idx3-ubyte").write_bytes(struct.pack(">4I", 0x803, count, side, side) + pixels)
    (folder / "t-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, count) + bytes(key % 4 for key in keys))


def write_data(folder):
    text = text_of(32768, 1)
    (folder / "text").write_bytes(text)
    (folder / "short").write_bytes(text[:16 + 320])
    (folder / "share-0").write_bytes(text[:16 + 128])
    (folder / "share-1").write_bytes(text[1000:1000 + 16 + 96])
    write_bars(folder / "pictures", 512, 1)
    write_bars(folder / "validation", 256, 2)


def read_json(path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def train(program, flags, folder, name):
    words = [flag.replace("{folder}", str(folder)).replace("{run}", name) for flag in flags]
    words += ["--log-every", "0", "--json", str(folder / f"{name}.json")]
    (folder / f"{name}.trace").unlink(missing_ok=True)
    made = subprocess.run([program, *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                          encoding="utf-8", errors="replace", check=False)
    (folder / f"{name}.err").write_text(made.stderr, encoding="utf-8")
    run = Run(shlex.join([shortest(program), *words]), made.returncode == 0, made.stderr, read_json(folder / f"{name}.json"),
              read_json(folder / f"{name}.trace"))
    if run.succeeded and not run.summary:
        sys.exit(f"lesson: '{run.command}' left no results: {made.stderr}")
    return run


def shortest(program):
    """What starts it from here."""
    found = shutil.which(os.path.basename(program))
    if found and os.path.samefile(found, program):
        return os.path.basename(program)
    return min("./" + os.path.relpath(program), os.path.abspath(program), key=len)


def in_words(value):
    if value is None:
        return "too little to tell"
    if isinstance(value, str):
        return value
    return "-" if value != value else "%.5g" % value  # NaN


def table(lesson, runs):
    """A row per figure, a column per run; texts that are too long for a column below the rows."""
    column = (WIDTH - FIRST) // len(lesson.runs) - 2
    lines = [" " * FIRST + "".join(f"| {name:<{column}}" for name, _ in lesson.runs)]
    rest = []
    for figure, of in lesson.figures:
        line = f"{figure:<{FIRST}}"
        for (name, _), run in zip(lesson.runs, runs):
            value = in_words(of(run))
            if len(value) > column:
                rest += [f"{figure}, {name}:", textwrap.fill(value, WIDTH, initial_indent="  ", subsequent_indent="  ")]
                value = "see below"
            line += f"| {value:<{column}}"
        lines.append(line)
    return "\n".join(lines + rest)


def teach(lesson, program, device, folder):
    print(textwrap.fill(f"Lesson {lesson.name}: {lesson.broken}", WIDTH) + "\n", flush=True)
    runs = []
    common = [*lesson.common, *lesson.on_cpus] if device == "cpu" else ["--device", device, *lesson.common]
    for i, (name, flags) in enumerate(lesson.runs):
        runs.append(train(program, common + flags, folder, f"run{i}"))
        print(f"{name}:\n  {runs[-1].command}", flush=True)
        if not runs[0].succeeded:
            sys.exit(f"lesson: the healthy run failed: {runs[0].error()}")
    print(f"\n{table(lesson, runs)}\n")
    if not lesson.shows(runs):
        sys.exit(f"lesson: the symptom of '{lesson.name}' did not show: the numbers above and {folder} say what happened instead")
    if lesson.says:
        print(textwrap.fill(lesson.says(runs), WIDTH))
    if lesson.not_judged(runs):
        print(textwrap.fill(lesson.not_judged(runs), WIDTH))
    print(textwrap.fill(f"Look first: {lesson.look_first}", WIDTH, subsequent_indent=" " * 12))
    print(f"More: {PROJECT / 'trainer/TROUBLESHOOTING.md'}, section '{lesson.name}'\nData and results stay in {folder}")


def main():
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` is no error
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the trainings get it, too
    parser = argparse.ArgumentParser(prog="lesson")
    parser.add_argument("name")
    parser.add_argument("--folder", type=pathlib.Path)
    parser.add_argument("--program", default=str(PROJECT / "build/release/bin/rondo-train"))
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    names = "\n".join(f"{lesson.name:<20} {lesson.broken}" for lesson in LESSONS)
    if options.name == "list":
        print(names)
        return
    chosen = [lesson for lesson in LESSONS if lesson.name == options.name]
    if not chosen:
        sys.exit(f"lesson: --lesson '{options.name}' is unknown; the lessons are:\n{names}")
    lesson = chosen[0]
    folder = (options.folder or PROJECT / "build/lessons" / options.name).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_data(folder)
    except OSError as error:
        sys.exit(f"lesson: cannot write the lesson's data into '{folder}': {error.strerror}")
    teach(lesson, options.program, options.device, folder)


if __name__ == "__main__":
    main()
