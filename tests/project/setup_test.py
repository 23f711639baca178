#!/usr/bin/env python3
"""setup_test.py SOURCE: scripts/setup where everything it calls is a stand-in: what it installs for whom, and how it ends on a
system without apt-get."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from common import check

TOOLS = ("bash", "cat", "cut", "dirname", "env", "grep", "mkdir", "sed", "sort", "tail")  # what Debian and every other system has
COMMANDS = ("g++", "cmake", "ninja", "pkg-config", "git")
ONLY_TESTS = {"catch2", "ccache", "libbenchmark-dev", "python3-venv", "python3-dev", "python3-torch",
              "python3-matplotlib", "groff-base", "dpkg-dev", "file", "doxygen", "clang",
              "libclang-rt-14-dev", "libpmix-dev", "libopenmpi-dev", "openmpi-bin", "libgloo-dev"}
BROWSER = {"chromium", "chromium-driver", "python3-selenium"}
LINT = {"clang-format", "clang-tidy", "shellcheck"}


class Machine:
    """A copy of the scripts, a PATH with nothing but stand-ins, and the calls of apt-get."""

    def __init__(self, source, work):
        self.tree, self.bin, self.calls = work / "tree", work / "bin", work / "calls"
        (self.tree / "scripts").mkdir(parents=True)
        for name in ("setup", "common.sh", "demo", "test"):
            shutil.copy(source / "scripts" / name, self.tree / "scripts")
        self.bin.mkdir()
        for name in TOOLS:
            (self.bin / name).symlink_to(shutil.which(name))

    def stand_in(self, name, text):
        (self.bin / name).write_text(f"#!{shutil.which('sh')}\n{text}\n")
        (self.bin / name).chmod(0o755)

    def has_apt(self, installed, unavailable="", update="true"):
        self.stand_in("sudo", 'exec "$@"')
        self.stand_in("dpkg-query", f'for last; do :; done; case " {installed} " in *" $last "*) echo "install ok installed" ;; *) exit 1 ;; esac')
        self.stand_in("apt-get", f'echo "$*" >>{self.calls}; case $1 in update) {update} ;; esac\n'
                      f'[ "$2" != --simulate ] || case " {unavailable} " in *" $3 "*) exit 100 ;; esac')

    def run(self, script, *words):
        """(exit code, stdout, stderr, set of packages that were installed)"""
        self.calls.write_text("")
        done = subprocess.run([self.tree / "scripts" / script, *words], env={"PATH": str(self.bin), "HOME": "/"}, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=60, check=False)
        installed = [line.split()[3:] for line in self.calls.read_text().splitlines() if line.startswith("install -y")]
        check(len(installed) <= 1, f"apt-get installs more than once: {installed}")
        return done.returncode, done.stdout, done.stderr, set(*installed)


def with_apt(machine):
    machine.has_apt("")
    code, said, error, demo = machine.run("setup", "demo")
    check(code == 0 and "g++" in demo and "libhwy-dev" in demo, f"demo: {code}, {said}, {error}, {demo}")
    check("libucx-dev" in demo, f"demo does not install UCX, whether libucx0 is there or not: {demo}")
    check(not demo & (ONLY_TESTS | LINT), f"demo installs what only tests use: {demo & (ONLY_TESTS | LINT)}")
    _, _, _, everything = machine.run("setup")
    check(everything == demo | ONLY_TESTS, f"for building and testing: {everything ^ (demo | ONLY_TESTS)} differ")
    check(machine.run("setup", "docs")[3] == {"doxygen", "python3"}, "docs needs other packages")
    page = machine.run("setup", "page")[3]
    check(BROWSER < page and page - BROWSER < everything, f"page needs {page}")
    check(machine.run("setup", "lint")[3] == everything | LINT, "lint adds other packages")

    machine.has_apt(" ".join(everything - {"catch2"}))
    check(machine.run("setup")[3] == {"catch2"}, "installs what is there already")
    machine.has_apt(" ".join(demo))
    code, said, _, installed = machine.run("setup", "demo")
    check((code, said, installed) == (0, "setup: everything needed is installed\n", set()) and not machine.calls.read_text(),
          f"nothing is missing, but: {code}, {said}, {installed}")

    machine.has_apt("", unavailable="python3-torch libgloo-dev")  # other releases have other archives
    code, said, _, installed = machine.run("setup")
    check(code == 0 and installed == everything - {"python3-torch", "libgloo-dev"}, f"no torch to be had: {code}, {installed}")
    check("no python3-torch; what needs it is skipped" in said, f"says\n{said}")
    # No network: fatal for what building needs only.
    machine.has_apt(" ".join(everything - {"python3-torch"}), update="exit 1")
    check(machine.run("setup")[0] == 0, "cannot do without an optional package")
    machine.has_apt(" ".join(everything - {"catch2"}), update="exit 1")
    code, _, error, _ = machine.run("setup")
    check(code == 1 and "missing: catch2" in error, f"without network: {code}, {error}")


def without_apt(machine):
    for name in COMMANDS:
        machine.stand_in(name, "exit 1")
    machine.stand_in("python3", "exit 1")  # imports nothing
    machine.stand_in("pkg-config", '[ "$2" != libsodium ]')
    for script, words in (("setup", ()), ("demo", ()), ("test", ())):
        code, said, error, _ = machine.run(script, *words)
        check(code == 1 and "no apt-get here" in error, f"{script} without apt-get: {code}, {error}")
        check(said.endswith("  libsodium-dev\n"), f"{script} goes on after the list, or lists something else:\n{said}")
        check("iproute2" in said and ("python3-torch" in said) == (script != "demo"), f"{script} says\n{said}")
    machine.stand_in("pkg-config", '[ "$2" != catch2-with-main ]')  # Catch2 2 has one file
    code, said, _, _ = machine.run("setup")
    check(code == 0 and "skipped" in said, f"all that is needed is there: {code}, {said}")
    (machine.bin / "ninja").unlink()
    code, said, _, _ = machine.run("setup")
    check(code == 1 and said.endswith("  ninja-build\n"), f"without Ninja: {code}, {said}")


def main():
    source = pathlib.Path(sys.argv[1])
    os.environ.pop("CMAKE_CXX_COMPILER_LAUNCHER", None)
    for scene in (with_apt, without_apt):
        with tempfile.TemporaryDirectory() as work:
            scene(Machine(source, pathlib.Path(work)))
    print("setup, with and without apt-get")


if __name__ == "__main__":
    main()
