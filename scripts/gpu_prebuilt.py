"""Programs of scripts/gpu-check that are built on one machine and run on another, as one archive: --pack and --prebuilt."""
import json
import lzma
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

MANIFEST = "prebuilt.json"
MOST_BYTES = 56 << 20  # beside the tree, what a machine with a GPU may take
# Machine code for A100 and for H100 and H200, and PTX for later GPUs.
ARCHITECTURES = "80-real;90"
# The other machine has its own, as new as this one's or newer; these copies would be loaded instead, by its tools too. NCCL, which not
# every machine has, is three times as large as the archive may be.
ELSEWHERE = re.compile(r"^(ld-linux.*|linux-vdso|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|resolv|nccl))\.so")
UCX = "libucp.so.0"


def libraries_of(program):
    """{name: path} of the shared libraries that a program loads; None: it is not here."""
    done = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    lines = [line.strip().partition(" => ") for line in done.stdout.splitlines()] if done.returncode == 0 else []
    return {name: None if path.startswith("not found") else path.rpartition(" (")[0] for name, arrow, path in lines if arrow}


def lacking(program):
    return [name for name, path in libraries_of(program).items() if path is None]


def programs_of(test):
    """The names of the programs that a test of an archive runs."""
    return [word.removeprefix("{bin}/") for word in test["command"] if word.startswith("{bin}/")]


def portable(word, build, root):
    """A word of a test's command, with names in place of this machine's folders."""
    for folder, name in ((f"{build}/bin", "{bin}"), (str(root), "{root}")):
        word = word.replace(folder, name)
    return re.sub(r"^/\S*/(python3)[\d.]*$", r"\1", word)


def property_of(test, name, missing):
    return next((each["value"] for each in test.get("properties", []) if each["name"] == name), missing)


def copy_libraries_of(file, folder):
    for library, path in libraries_of(file).items():
        if ELSEWHERE.match(library):
            continue
        if path is None:
            sys.exit(f"gpu-check: {file.name} needs {library}, which is not here")
        shutil.copy(path, folder / library)


def ucx():
    """The libucp.so.0 that rondo would load; None: there is none. Its transports for TCP are in what ldd names, not in its modules."""
    tool = shutil.which("ldconfig", path=f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin")
    listed = subprocess.run([tool, "-p"], capture_output=True, text=True, check=False).stdout if tool else ""
    found = re.search(rf"^\s*{re.escape(UCX)} .* => (\S+)$", listed, re.MULTILINE)
    chosen = os.environ.get("RONDO_UCX") or (found and found[1])
    return chosen and pathlib.Path(chosen)


def pack(archive, build, root, wanted, tests, about):
    """Writes the archive. `wanted`: names of `programs`, those that are not there are left out, and `libraries` to preload; `tests`: as
    CTest lists them. Returns its size."""
    with tempfile.TemporaryDirectory() as folder:
        stage = pathlib.Path(folder)
        (stage / "bin").mkdir()
        (stage / "lib").mkdir()
        names = {pathlib.Path(word).name for test in tests for word in test["command"] if word.startswith(f"{build}/bin/")}
        packed = [name for name in sorted({*names, *wanted["programs"]}) if (build / "bin" / name).exists()]
        for name in packed:
            shutil.copy2(build / "bin" / name, stage / "bin" / name)
            subprocess.run(["strip", "--strip-unneeded", stage / "bin" / name], check=False, capture_output=True)
            copy_libraries_of(build / "bin" / name, stage / "lib")
        for library in wanted["libraries"]:
            shutil.copy(library, stage / "lib" / library.name)
            copy_libraries_of(library, stage / "lib")
        if own := ucx():  # loaded by its name, so ldd does not show it
            shutil.copy(own, stage / "lib" / UCX)
            copy_libraries_of(own, stage / "lib")
        listed = [{"name": test["name"], "command": [portable(word, build, root) for word in test["command"]],
                   "environment": property_of(test, "ENVIRONMENT", [])} for test in tests]
        (stage / MANIFEST).write_text(json.dumps({**about, "programs": packed, "tests": listed}, indent=1) + "\n")
        unfinished = archive.with_name(f"{archive.name}.new")
        with tarfile.open(unfinished, "w:xz", preset=3) as tar:
            for name in (MANIFEST, "bin", "lib"):
                tar.add(stage / name, name)
        unfinished.replace(archive)
    size = archive.stat().st_size
    if size > MOST_BYTES:
        archive.unlink()
        sys.exit(f"gpu-check: the archive has {size >> 20} MiB; at most {MOST_BYTES >> 20} are meant to be carried")
    return size


UNREADABLE = (OSError, EOFError, lzma.LZMAError, tarfile.TarError, ValueError)


def refuse(archive, error):
    sys.exit(f"gpu-check: {archive} is not what gpu-check --pack makes: {getattr(error, 'strerror', None) or error}")


def look_at(archive):
    """Ends the program unless the archive begins as those of pack(). Reads no more of it."""
    try:
        with tarfile.open(archive) as tar:
            first = tar.next()
    except UNREADABLE as error:
        refuse(archive, error)
    if first is None or first.name != MANIFEST:
        refuse(archive, f"it does not begin with {MANIFEST}")


def unpack(archive, folder, more_libraries=()):
    """The manifest of an archive, whose programs are then in folder/bin. Their libraries and UCX are found there, other libraries in
    folders of this machine, from now on."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(folder)
        manifest = json.loads((folder / MANIFEST).read_text())
    except UNREADABLE as error:
        refuse(archive, error)
    before = os.environ.get("LD_LIBRARY_PATH")
    os.environ["LD_LIBRARY_PATH"] = ":".join([str(folder / "lib"), *more_libraries, *([before] if before else [])])
    if (folder / "lib" / UCX).exists():
        os.environ["RONDO_UCX"] = os.environ.get("RONDO_UCX") or str(folder / "lib" / UCX)
    return manifest


def command_of(test, folder, root):
    words = [word.replace("{bin}", f"{folder}/bin").replace("{root}", str(root)) for word in test["command"]]
    return ["env", *test["environment"], *words]
