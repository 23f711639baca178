"""rondo's programs, for the PATH: each command that pip makes becomes the program of that name inside the package."""
import os
import pathlib
import sys


def _become(name):
    program = pathlib.Path(__file__).parent / "bin" / name
    os.execv(program, [name, *sys.argv[1:]])


def rondo_run():
    _become("rondo-run")


def rondo_perf():
    _become("rondo-perf")


def rondo_plan():
    _become("rondo-plan")


def rondo_status():
    _become("rondo-status")


def rondo_train():
    _become("rondo-train")
