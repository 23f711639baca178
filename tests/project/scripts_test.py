#!/usr/bin/env python3
"""scripts_test.py SOURCE: every script answers --help and refuses an unknown option, and neither writes a file; scripts/demo looks at its
variables first, skips what the machine lacks and always ends with its table; a build folder has the same compiler launcher whether a script or cmake configured it first."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile


def check(holds, what):
    if not holds:
        sys.exit(what)


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
    for scene in (options, demo_looks_first, demo_reaches_its_table, launcher):
        with tempfile.TemporaryDirectory() as work:
            scene(source, pathlib.Path(work))


if __name__ == "__main__":
    main()
