#!/usr/bin/env python3
"""scripts_test.py SOURCE: every script answers --help and refuses an unknown option, and neither writes a file; scripts/demo looks at its
variables first, skips what the machine lacks and always ends with its table; scripts/test chooses tests by tests/full_only.txt; a build
folder has the same compiler launcher whether a script or cmake configured it first."""
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from common import check


def stand_in(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def run(*command, **more):
    return subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=60, check=False, **more)


def options(source, work):
    for name in ("scripts", ".ci"):
        shutil.copytree(source / name, work / name, ignore=shutil.ignore_patterns("__pycache__"))
    programs = sorted(p for p in [*(work / "scripts").iterdir(), work / ".ci/run"] if p.is_file() and os.access(p, os.X_OK))
    check(len(programs) > 12, f"found only {programs}")
    stand_in(work / "apt-get", "exit 1")
    environment = {**os.environ, "PATH": f"{work}:{os.environ['PATH']}", "PYTHONDONTWRITEBYTECODE": "1"}
    (work / "elsewhere").mkdir()
    before = sorted(work.rglob("*"))
    for program in programs:
        relative = os.path.relpath(program, work / "elsewhere")
        done = run(relative, "--help", cwd=work / "elsewhere", env=environment)
        check(done.returncode == 0 and program.name in done.stdout and not done.stderr, f"{program.name} --help: {done}")
        done = run(relative, "--nonsense", cwd=work / "elsewhere", env=environment)
        check(done.returncode != 0, f"{program.name} --nonsense: {done}")
        check(sorted(work.rglob("*")) == before, f"{program.name} writes {set(work.rglob('*')) - set(before)}")


def demo_looks_first(source, _):
    """Before it installs or builds anything."""
    for given in ("RANKS=abc", "RANKS=0", "DATA=/nowhere"):
        name, _, value = given.partition("=")
        done = run(source / "scripts/demo", env={**os.environ, name: value})
        check(done.returncode == 1 and not done.stdout and done.stderr.startswith(f"demo: {given}"), f"{given}: {done}")


def demo_reaches_its_table(source, work):
    """On a machine without UCX and GPUs where training fails: the programs, set-up and build are replaced."""
    shutil.copytree(source / "scripts", work / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    stand_in(work / "scripts/setup", "exit 0")
    (work / "bin").mkdir()
    stand_in(work / "bin/cmake", "exit 0")
    programs = work / "build/release/bin"
    programs.mkdir(parents=True)
    stand_in(programs / "rondo-run", "echo rondo-run 0; echo 'ucx: no, it is not there'; echo 'cuda: no, there is no GPU'")
    stand_in(programs / "rondo-train", "exit 3")
    stand_in(programs / "rondo-perf", "echo measured")
    done = run(work / "scripts/demo", env={**os.environ, "PATH": f"{work / 'bin'}:{os.environ['PATH']}"})
    check(done.returncode == 1 and done.stdout.count("this step failed with exit code 3") == 3, f"training fails: {done}")
    check(done.stdout.count("\nmeasured\n") == 2, f"a step ran after one that failed: {done}")
    for line in "training on a GPU is skipped: there is no GPU", "all-reduce between two hosts is skipped: it is not there":
        check(f"\ndemo: {line}\n" in done.stdout, f"'{line}' is missing: {done}")
    check(done.stdout.endswith("no step has left a measurement\n"), f"no table at the end: {done}")
    check(done.stderr.count("demo: failed: ") == 3, f"the failed steps are not listed: {done}")


def launcher_of(build):
    for line in (build / "CMakeCache.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("CMAKE_CXX_COMPILER_LAUNCHER:"):
            return line.partition("=")[2]
    return None


def choice_of_tests(source, work):
    """On stand-ins for set-up, cmake, and a ctest that says what it is asked for."""
    for name in ("scripts", "tests"):
        shutil.copytree(source / name, work / name, ignore=lambda _, names: [n for n in names if n in ("__pycache__", "comm", "trainer", "bench")])
    stand_in(work / "scripts/setup", "exit 0")
    (work / "bin").mkdir()
    stand_in(work / "bin/cmake", "exit 0")
    stand_in(work / "bin/ctest", 'echo "asked: $*"; case "$*" in *--show-only*) echo "  Test #1: plot" ;; esac')
    environment = {name: value for name, value in os.environ.items() if name not in ("CTEST_ARGS", "RONDO_CI_BASE")}
    environment |= {"PATH": f"{work / 'bin'}:{environment['PATH']}", "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a",
                    "GIT_COMMITTER_EMAIL": "a@b", "GIT_CONFIG_GLOBAL": "/dev/null"}

    def commit(date):
        for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "a change"]):
            done = run("git", *words, cwd=work, env={**environment, "GIT_COMMITTER_DATE": date, "GIT_AUTHOR_DATE": date})
            check(done.returncode == 0, done.stderr)

    def excluded(*arguments, **more):
        done = run(work / "scripts/test", *arguments, "debug", env={**environment, **more})
        check(done.returncode == 0, done)
        asked = next(line for line in done.stdout.splitlines() if line.startswith("asked: "))
        check(("left out" in done.stdout) == (" -E " in asked), done.stdout)
        return set(asked.split(" -E ^(")[1].split(")$")[0].split("|")) if " -E " in asked else set()

    spec = importlib.util.spec_from_file_location("choose_tests", source / "scripts/choose_tests.py")
    choose = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(choose)
    table = list(choose.lines())
    every = {name for names, _ in table for name in names.split("|")}
    commit("2026-01-01T00:00:00Z")
    (work / "scripts/plot").write_text("# other")
    commit("2026-01-05T00:00:00Z")
    check(excluded() == every, "scripts/test does not leave out all")
    check(not excluded("full") and not excluded(CTEST_ARGS="-R plot"), "tests are left out where all, or some, are asked for")
    changed = excluded("changed")
    check("plot" not in changed and changed < every and len(changed) > len(every) / 2, f"changed leaves out {changed}")
    turns = [set(choose.left_out(table, [], commits)) for commits in range(4)]
    check(not set.intersection(*turns), "some test is never chosen")
    if (source / ".git").exists():
        files = run("git", "-C", source, "ls-files").stdout.splitlines()
        for names, paths in table:
            for path in paths:
                check(any(re.search(path, file) for file in files), f"tests/full_only.txt: no file is a {path}, of {names}")


def launcher(source, work):
    """Of a project that includes cmake/ccache.cmake and nothing else."""
    (work / "CMakeLists.txt").write_text(f"cmake_minimum_required(VERSION 3.25)\nproject(p NONE)\ninclude({source}/cmake/ccache.cmake)\n")
    (work / "bin").mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "CMAKE_CXX_COMPILER_LAUNCHER"}

    def configured(build, *flags):
        path = f"{work / 'bin'}:{environment['PATH']}"
        done = run("cmake", "-G", "Ninja", "-S", work, "-B", work / build, *flags, env={**environment, "PATH": path})
        check(done.returncode == 0, done.stderr)
        return launcher_of(work / build)

    stand_in(work / "bin/ccache", "exit 1")
    check(configured("found") == str(work / "bin/ccache"), "ccache is not used")
    check(configured("given", "-DCMAKE_CXX_COMPILER_LAUNCHER=") == "", "an empty launcher is not taken")
    check(configured("given") == "", "configuring again changes the launcher")
    exported = run("bash", "-c", f"source {source}/scripts/common.sh; echo ${{CMAKE_CXX_COMPILER_LAUNCHER-}}",
                   env={**environment, "PATH": f"{work / 'bin'}:{environment['PATH']}"})
    check(exported.stdout == "\n", f"a script gives CMake a launcher that cmake --preset does not have: {exported}")


def main():
    source = pathlib.Path(sys.argv[1]).resolve()
    for scene in (options, demo_looks_first, demo_reaches_its_table, choice_of_tests, launcher):
        with tempfile.TemporaryDirectory() as work:
            scene(source, pathlib.Path(work))


if __name__ == "__main__":
    main()
