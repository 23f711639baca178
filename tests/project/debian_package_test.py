#!/usr/bin/env python3
"""debian_package_test.py BUILD PROGRAMS: the package of `cpack -G DEB` in BUILD. dpkg unpacks and configures it under a
folder of its own as root, against a copy of this system's list of packages, so that dependencies count; its programs run, and
README's C program (in PROGRAMS) is built with its pkg-config, all from that folder; and after its removal nothing of it is there.
Not seen here: an installation in /usr itself; ldconfig is a stand-in that notes its calls. Exits with 77 where Debian's tools are missing."""
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

from common import check, run

SKIPPED = 77
DOCUMENTS = ("LICENSE", "README.md", "CHANGELOG.md", "docs/embedding.md")
PAGES = ("rondo-run", "rondo-status", "rondo-perf", "rondo-plan", "rondo-train", "all_reduce_perf")
NEEDED = ("libc6", "libstdc++6", "libhwloc", "libsodium", "libspdlog", "libfmt", "libopenblas")  # a package's name begins with it


def as_root(*command):
    return run(*(() if os.geteuid() == 0 else ("unshare", "-r")), *command)


def made(build, work):
    """Packs what BUILD holds."""
    run("cpack", "-G", "DEB", "--config", build / "CPackConfig.cmake", "-B", work / "packing", "-D", "CPACK_DEBIAN_COMPRESSION_TYPE=gzip")
    packages = list((work / "packing").glob("*.deb"))
    check(len(packages) == 1, f"cpack made {packages}")
    return packages[0]


def check_control(package):
    depends = run("dpkg-deb", "-f", package, "Depends")
    for name in NEEDED:
        check(re.search(rf"(^|, ){re.escape(name)}", depends), f"{package.name} depends on {depends}, without {name}")
    check(not re.search("mpi|gloo", depends), f"{package.name} depends on a peer: {depends}")
    listed = run("dpkg-deb", "-c", package)
    check(not re.search("rondo-perf-(mpi|gloo|nccl)", listed), f"a peer is in the package:\n{listed}")


def stand_in_for_ldconfig(work):
    """The package's scripts run without chroot, so the system's own would look at the system's folders."""
    calls = work / "ldconfig-calls"
    program = work / "stand-ins/ldconfig"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho called >>{calls}\n")
    program.chmod(0o755)
    return calls


def use(usr, programs, work):
    """What a user does with the installed package."""
    for name in DOCUMENTS:
        check((usr / "share/doc/rondo" / name).is_file(), f"share/doc/rondo/{name} is missing")
    for name in PAGES:
        check((usr / f"share/man/man1/{name}.1").exists(), f"{name} has no page")
        check((usr / f"share/bash-completion/completions/{name}").exists(), f"{name} has no completion for bash")
    check((usr / "share/zsh/site-functions/_rondo-perf").is_file(), "rondo-perf has no completion for zsh")
    run(usr / "bin/rondo-perf", "all_reduce", "-b", 8, "-e", 8, "-n", 2, "-w", 1, "--ranks", 2)
    said = run(usr / "bin/rondo-train", "--steps", 1, "--width", 16)
    text = usr / "share/rondo/licence.txt"
    check(f"trains on rondo's licence, {text}\n" in said.splitlines(keepends=True)[0], f"rondo-train says\n{said}")
    words = run("pkg-config", "--cflags", "--libs", "rondo", PKG_CONFIG_PATH=str(usr / "lib/pkgconfig"))
    program = work / "example"
    run("cc", programs / "readme_example.c", "-o", program, *shlex.split(words), f"-Wl,-rpath,{usr / 'lib'}")
    said = run(usr / "bin/rondo-run", "-n", 2, "--timeout", 60, "--", program)
    check(said.count("ok, the sum is 3") == 2, f"README's program printed\n{said}")


def main():
    tools = ("cpack", "dpkg", "dpkg-deb", "dpkg-shlibdeps", "file")  # cpack calls the last two
    lacking = [tool for tool in tools if not shutil.which(tool)]
    system = pathlib.Path("/var/lib/dpkg/status")
    if lacking or not system.exists():
        print(f"skipped: not a Debian system, or without {lacking}")
        sys.exit(SKIPPED)
    if os.geteuid() != 0 and subprocess.run(("unshare", "-r", "true"), check=False).returncode != 0:
        print("skipped: neither root nor allowed a user namespace")
        sys.exit(SKIPPED)
    build, programs = (pathlib.Path(path) for path in sys.argv[1:])
    os.chdir("/")
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        package = made(build, work)
        check_control(package)
        root = work / "root"
        administration = root / "var/lib/dpkg"
        for name in ("info", "updates", "triggers"):
            (administration / name).mkdir(parents=True)
        shutil.copy(system, administration / "status")
        calls = stand_in_for_ldconfig(work)
        dpkg = ("env", f"PATH={work}/stand-ins:{os.environ['PATH']}", "dpkg", f"--root={root}", "--force-bad-path",
                "--force-script-chrootless")
        as_root(*dpkg, "--install", package)
        check(calls.exists(), "the package did not call ldconfig")
        check("install ok installed" in run("dpkg-query", f"--admindir={administration}", "-W", "-f=${Status}", "rondo"), "not installed")
        use(root / "usr", programs, work)
        as_root(*dpkg, "--purge", "rondo")
        left = [path for path in root.rglob("*") if not path.is_relative_to(root / "var")]
        check(not left, f"after its removal these are left: {left}")
    print("installed, used, removed")


if __name__ == "__main__":
    main()
