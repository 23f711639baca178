"""choose_tests.py [changed]: a regular expression of the tests that scripts/test leaves out, by tests/full_only.txt. With `changed`, less
those that .ci/run adds: the lines with a path that the change touches, and every fourth of the others, by the number of commits."""
import os
import pathlib
import re
import subprocess
import sys

TABLE = pathlib.Path(__file__).parent.parent / "tests/full_only.txt"


def lines():
    """(names, [path, ...]) of each line, as regular expressions."""
    for line in TABLE.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            names, *paths = line.split()
            yield names, paths


def git(*words):
    done = subprocess.run(["git", *words], cwd=TABLE.parent.parent, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.splitlines()


def touched():
    """The files that the change touches: the commits since RONDO_CI_BASE, by default those of the last day before HEAD."""
    base = os.environ.get("RONDO_CI_BASE")
    if not base:
        last = int(git("log", "-1", "--format=%ct")[0])
        base = next(iter(git("rev-list", "-1", f"--before={last - 24 * 3600}", "HEAD")), None)
    return git("diff", "--name-only", f"{base}..HEAD") if base else git("ls-files")


def left_out(table, files, commits):
    """The names of the lines that no file touches, less a quarter of them; with no files, of all."""
    if files is None:
        return [names for names, _ in table]
    others = [names for names, paths in table if not any(re.search(path, file) for path in paths for file in files)]
    return [names for place, names in enumerate(others) if place % 4 != commits % 4]


def main():
    table = list(lines())
    if sys.argv[1:] == ["changed"]:
        names = left_out(table, touched(), int(git("rev-list", "--count", "HEAD")[0]))
    elif not sys.argv[1:]:
        names = left_out(table, None, 0)
    else:
        sys.exit(__doc__)
    print(f"^({'|'.join(names)})$")


if __name__ == "__main__":
    main()
