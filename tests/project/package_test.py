#!/usr/bin/env python3
"""rondo in other people's projects. README's C and C++ programs are built and run on two ranks:
    package_test.py installed SOURCE BUILD PROGRAMS   against what `cmake --install BUILD` installs, after it has been moved:
                                                      find_package and pkg-config, the shared and the static library
    package_test.py embedded SOURCE BUILD PROGRAMS    with rondo as a folder of their own project (add_subdirectory)
    package_test.py wheel SOURCE BUILD PROGRAMS       against what `pip install .` installs, by the interpreter that runs this test
    package_test.py sdist SOURCE BUILD PROGRAMS       the same from an unpacked sdist, whose files are compared with SOURCE's
PROGRAMS holds readme_example.c and readme_example.cpp."""
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile

from common import check, run

SUM = "import rondo; c = rondo.Communicator(); print(*c.all_reduce(bytes([c.rank, 1])))"


def says(wanted, *command, **environment):
    said = run(*command, **environment)
    check(said == wanted, f"{command} printed {said!r}, not {wanted!r}")


def check_program(rondo_run, program, is_static, **environment):
    """Two ranks of the program agree, and it needs librondo.so.0.2 or, as a static one, does not."""
    needed = re.findall(r"NEEDED.*\[librondo([^]]*)\]", run("readelf", "-d", program))
    check(needed == ([] if is_static else [".so.0.2"]), f"{program}: librondo{needed} is needed at run time, static: {is_static}")
    output = run(rondo_run, "-n", 2, "--timeout", 60, "--", program, **environment)
    for rank in range(2):
        line = f"[{rank}] rank {rank} of 2: ok, the sum is 3\n"
        check(line in output, f"{program} printed\n{output}without {line}")


def check_toy(rondo_run, program, checkpoint):
    """Three ranks find the line, count what travelled, and leave a checkpoint that holds it."""
    output = run(rondo_run, "-n", 3, "--timeout", 60, "--", program, checkpoint)
    check(output.count("w 3.00 b -1.00") == 3, f"toy_ddp printed\n{output}without three times w 3.00 b -1.00")
    # 34 steps in each of 5 epochs, and two gradients that take a cache line each.
    check(output.count(f"{5 * 34 * 2 * 64} bytes of gradients") == 3, f"toy_ddp's hook counted otherwise:\n{output}")
    check(b'"momentum.w"' in checkpoint.read_bytes(), "toy_ddp's checkpoint lacks the optimizer's state")


def check_consumer(source, programs, build, rondo_run, languages, *settings):
    """Builds consumer/ with CMake and runs its programs."""
    run("cmake", "-G", "Ninja", "-S", source / "tests/project/consumer", "-B", build, f"-DLANGUAGES={languages}",
        f"-DPROGRAMS={programs}", f"-DTOY={source / 'trainer/examples/toy_ddp.cpp'}", *settings)
    run("cmake", "--build", build)
    for form in ("shared", "static") if "CXX" in languages else ("shared",):
        for language in ("c", "cpp") if "CXX" in languages else ("c",):
            check_program(rondo_run, build / f"{language}_{form}", form == "static")
    if "CXX" in languages:
        check_toy(rondo_run, build / "toy_ddp", build / "toy.safetensors")


def check_pkg_config(prefix, programs, work):
    library = prefix / "lib"
    paths = os.pathsep.join(filter(None, [str(library / "pkgconfig"), os.environ.get("PKG_CONFIG_PATH")]))
    for compiler, suffix in (("gcc", ["c", "-std=c99", "-pedantic-errors"]), ("g++", ["cpp", "-std=c++20"])):
        name, *flags = suffix
        for is_static in (False, True):
            asked = ["--static"] if is_static else []
            words = run("pkg-config", "--cflags", "--libs", *asked, "rondo", PKG_CONFIG_PATH=paths)
            if is_static:  # as docs/embedding.md says: by its file name, since both forms are there
                words = words.replace("-lrondo", "-l:librondo.a")
            program = work / f"pkg_config_{name}_{'static' if is_static else 'shared'}"
            run(compiler, *flags, "-Wall", "-Werror", programs / f"readme_example.{name}", "-o", program, *shlex.split(words))
            check_program(prefix / "bin/rondo-run", program, is_static, LD_LIBRARY_PATH=str(library))


def check_nccl(library):
    """The one in NCCL's place finds rondo's, wherever both lie; and ldconfig, which looks in `library`, does not make it the system's."""
    asks = "import ctypes; v = ctypes.c_int(); print(ctypes.CDLL('libnccl.so.2').ncclGetVersion(ctypes.byref(v)), v.value)"
    says("0 23203\n", sys.executable, "-c", asks, LD_LIBRARY_PATH=str(library / "rondo"))
    found = [path.name for path in library.iterdir() if "nccl" in path.name]
    check(not found, f"{library} holds {found}")


def check_documents(folder):
    """The relative links of the installed pages lead to installed files."""
    pages = sorted(folder.rglob("*.md"))
    links = [(page, link) for page in pages for link in re.findall(r"\]\((?!https?:)([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))]
    dead = [f"{page.name}: {link}" for page, link in links if not (page.parent / link).exists()]
    check(not dead, f"installed pages link to what is not installed: {dead}")
    check(len(pages) >= 7 and len(links) >= 20, f"only {len(links)} links in {pages}")


def check_versions(programs, version, **environment):
    for program in programs:
        said = run(program, "--version", **environment)
        check(said.startswith(f"{pathlib.Path(program).name} {version}\n"), f"{program} --version printed {said!r}")


def installed(source, build, programs, work):
    run("cmake", "--install", build, "--prefix", work / "first")
    prefix = work / "moved here"
    (work / "first").rename(prefix)
    text = (prefix / "lib/cmake/rondo/rondo-static.cmake").read_text()
    check(str(build) not in text and str(source) not in text, "the installed package names the tree that it was built in")
    for languages in ("C;CXX", "C"):
        check_consumer(source, programs, work / f"find_package_{languages[-1]}", prefix / "bin/rondo-run", languages,
                       f"-DCMAKE_PREFIX_PATH={prefix}")
    check_documents(prefix / "share/doc/rondo")
    check_pkg_config(prefix, programs, work)
    check_nccl(prefix / "lib")
    run(prefix / "bin/rondo-perf", "all_reduce", "-b", 8, "-e", 8, "-n", 2, "-w", 1, "--ranks", 2)
    version = run("pkg-config", "--modversion", "rondo", PKG_CONFIG_PATH=str(prefix / "lib/pkgconfig")).strip()
    programs_here = sorted(path for path in (prefix / "bin").iterdir() if path.name.startswith("rondo-"))
    check(len(programs_here) == 5, programs_here)
    check(f'PACKAGE_VERSION "{version}"' in (prefix / "lib/cmake/rondo/rondoConfigVersion.cmake").read_text(), version)
    has_debug_information = "CMAKE_BUILD_TYPE:STRING=Release" not in (build / "CMakeCache.txt").read_text()
    for path in () if has_debug_information else (*programs_here, prefix / "lib/librondo.so"):
        found = re.search(re.escape(str(source)).encode() + rb"/[\w/-]+[.][ch]pp", path.read_bytes())
        check(not found, f"{path.name} names {found}, a file of the machine that built it")
    check_versions(programs_here, version)
    links = sorted(path for path in (prefix / "bin").iterdir() if path.name.endswith("_perf"))
    check(len(links) == 9 and all(os.readlink(path) == "rondo-perf" for path in links),
          f"of nccl-tests' nine names these are installed as links: {links}")
    for path in links:
        run(path, "-b", 8, "-e", 8, "-n", 2, "-w", 1, "-t", 2)


def as_built(source, build, project, folder, copy=None):
    """Settings for CMake by which rondo, as FOLDER of the build folder PROJECT, is not compiled again: consumer/built_already.py takes
    each object from BUILD, where it was compiled by the same command. So what these commands depend on is set as it is there. With COPY,
    it is this copy of SOURCE that is built."""
    cache = dict(re.findall(r"^(\w+):\w+=(.*)$", (build / "CMakeCache.txt").read_text(), re.MULTILINE))
    depends = re.compile(r"CMAKE_(BUILD_TYPE|UNITY_BUILD.*|(C|CXX|CUDA)_((HOST_)?COMPILER|FLAGS.*)|CUDA_ARCHITECTURES)"
                         r"|RONDO_(CUDA|ONE_INSTRUCTION_SET)")
    launcher = f"{source / 'tests/project/consumer/built_already.py'};{build};{project};{folder};{source};{copy or source}"
    return {"CMAKE_CXX_COMPILER_LAUNCHER": launcher, "CMAKE_CUDA_COMPILER_LAUNCHER": launcher,
            **{name: value for name, value in cache.items() if depends.fullmatch(name)}}


def embedded(source, build, programs, work):
    settings = as_built(source, build, work / "embedded", "rondo/")
    check_consumer(source, programs, work / "embedded", build / "bin/rondo-run", "C;CXX", f"-DRONDO_SOURCE={source}",
                   *(f"-D{name}={value}" for name, value in settings.items()))


def pip_install(source, build, work, copy=None):
    """Installs SOURCE, or its COPY, below WORK; gives the folder of its packages, and the environment in which they are found."""
    settings = as_built(source, build, work / "build", "", copy)
    prefix = work / "prefix"
    run(sys.executable, "-m", "pip", "install", "--no-build-isolation", "--no-deps", "--no-index", "--no-warn-script-location",
        "--prefix", prefix, f"-Cbuild-dir={work / 'build'}", *(f"-Ccmake.define.{name}={value}" for name, value in settings.items()),
        copy or source)
    packages = next(prefix.glob("lib*/python3*/site-packages"))
    return packages, {"PYTHONPATH": str(packages), "PATH": f"{prefix / 'bin'}{os.pathsep}{os.environ['PATH']}"}


def files_for_sdist(source):
    """Every file of the tree, relative to it, but for builds, version control and measurements. (So nothing that a build reads may lie
    there.) Git's where there is git, as in scripts/check-includes."""
    git = subprocess.run(["git", "-C", source, "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True, check=False)
    names = git.stdout.splitlines() if git.returncode == 0 else [path.relative_to(source) for path in source.rglob("*")]
    left_out = {"build", ".git", ".venv", "__pycache__"}
    return {path for path in map(pathlib.Path, names)
            if (source / path).is_file() and not left_out & set(path.parts) and path.parts[:2] != ("bench", "results")}


def unpacked_sdist(source, work):
    """Makes the sdist, compares its files with the tree's, byte by byte, and unpacks it."""
    hook = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"  # what `python -m build --sdist` calls
    run(sys.executable, "-c", hook, work, cwd=source)
    (archive,) = work.glob("rondo-*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(work)
    copy = work / archive.name.removesuffix(".tar.gz")
    expected = files_for_sdist(source) | {pathlib.Path("PKG-INFO")}
    found = {path.relative_to(copy) for path in copy.rglob("*") if path.is_file()}
    check(found == expected, f"the sdist lacks {expected - found}, and should not have {found - expected}")
    differ = [name for name in found - {pathlib.Path("PKG-INFO")} if (copy / name).read_bytes() != (source / name).read_bytes()]
    check(not differ, f"the sdist has other contents of {differ}")
    return copy


def sdist(source, build, _, work):
    copy = unpacked_sdist(source, work)
    _, environment = pip_install(source, build, work, copy)
    says("1 2\n1 2\n", "rondo-run", "-n", 2, "--no-prefix", "--", sys.executable, "-c", SUM, **environment)


def wheel(source, build, programs, work):
    packages, environment = pip_install(source, build, work)
    says("1 2\n1 2\n", "rondo-run", "-n", 2, "--no-prefix", "--", sys.executable, "-c", SUM, **environment)
    version = run(sys.executable, "-m", "rondo", "--version", **environment).strip()
    check_versions(("rondo-run", "rondo-perf", "rondo-plan", "rondo-status", "rondo-train"), version, **environment)
    run("rondo-perf", "all_reduce", "-b", 8, "-e", 8, "-n", 2, "-w", 1, "--ranks", 2, **environment)
    run("rondo-train", "--ranks", 2, "--steps", 2, "--width", 32, **environment)  # on the text that is installed with it
    rondo_dir = run(sys.executable, "-m", "rondo", "--cmake-dir", **environment).strip()
    check_consumer(source, programs, work / "consumer", packages / "rondo/bin/rondo-run", "C", f"-Drondo_DIR={rondo_dir}")


def main():
    what, *paths = sys.argv[1:]
    source, build, programs = (pathlib.Path(path) for path in paths)
    with tempfile.TemporaryDirectory() as work:
        {"installed": installed, "embedded": embedded, "wheel": wheel, "sdist": sdist}[what](source, build, programs, pathlib.Path(work))


if __name__ == "__main__":
    main()
