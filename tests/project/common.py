"""What tests of this folder have in common."""
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def check(holds, what):
    if not holds:
        sys.exit(str(what))


def run(*command, cwd=None, timeout=500, **environment):
    """What a program prints; one that fails ends the test, which shows that."""
    command = [str(word) for word in command]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=timeout, check=False, cwd=cwd, env={**os.environ, **environment})
    check(done.returncode == 0, f"{shlex.join(command)} gave {done.returncode}:\n{done.stdout}")
    return done.stdout


def commands(text):
    """Of the blocks of console: each command, and the lines below it."""
    found = []
    for indent, block in re.findall(r"^( *)```console\n(.*?)^ *```$", text, re.S | re.M):
        for line in (line.removeprefix(indent) for line in block.splitlines()):
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


class PageTest(unittest.TestCase):
    """A page's commands, which run in a folder of their own with the programs of the script's last argument."""

    VARIABLES = {}
    BIN = os.path.abspath(sys.argv[-1])

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_in_folder(self, *words, fails=False):
        environment = {name: text for name, text in os.environ.items() if name not in LAUNCHER}
        environment |= {"PATH": f"{self.BIN}:{environment['PATH']}", **self.VARIABLES}
        done = subprocess.run([str(word) for word in words], cwd=self.folder, env=environment, capture_output=True, text=True,
                              timeout=240, check=False)
        self.assertEqual(done.returncode != 0, fails, done.stdout + done.stderr)
        return done

    def document(self, name):
        return json.loads((self.folder / name).read_text(encoding="utf-8"))


def run_tests():
    unittest.main(argv=sys.argv[:-1])
