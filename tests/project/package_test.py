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

LIMIT_S = 500


def run(*command, cwd=None, **environment):
    """Runs it, and gives its output; ends the test, showing all of it, when it fails."""
    command = [str(word) for word in command]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S, check=False, cwd=cwd,
                          env={**os.environ, **environment})
    if done.returncode != 0:
        sys.exit(f"{shlex.join(command)} gave {done.returncode}:\n{done.stdout}")
    return done.stdout


def check_program(rondo_run, program, is_static, **environment):
    """Two ranks of the program agree, and it needs librondo.so.0 or, as a static one, does not."""
    needed = re.findall(r"NEEDED.*\[librondo([^]]*)\]", run("readelf", "-d", program))
    if needed != ([] if is_static else [".so.0"]):
        sys.exit(f"{program}: librondo{needed} is needed at run time, static: {is_static}")
    output = run(rondo_run, "-n", 2, "--timeout", 60, "--", program, **environment)
    for rank in range(2):
        line = f"[{rank}] rank {rank} of 2: ok, the sum is 3\n"
        if line not in output:
            sys.exit(f"{program} printed\n{output}without {line}")
    print(f"{program.name}: ok")


def check_toy(rondo_run, program, checkpoint):
    """Three ranks find the line, count what travelled, and leave a checkpoint that holds it."""
    output = run(rondo_run, "-n", 3, "--timeout", 60, "--", program, checkpoint)
    if output.count("w 3.00 b -1.00") != 3:
        sys.exit(f"toy_ddp printed\n{output}without three times w 3.00 b -1.00")
    # 34 steps in each of 5 epochs, and two gradients that take a cache line each.
    if output.count(f"{5 * 34 * 2 * 64} bytes of gradients") != 3:
        sys.exit(f"toy_ddp's hook counted otherwise:\n{output}")
    if b'"momentum.w"' not in checkpoint.read_bytes():
        sys.exit("toy_ddp's checkpoint lacks the optimizer's state")
    print("toy_ddp: ok")


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
    if (said := run(sys.executable, "-c", asks, LD_LIBRARY_PATH=str(library / "rondo"))) != "0 23203\n":
        sys.exit(f"librondo-nccl.so says {said!r}")
    if found := [path.name for path in library.iterdir() if "nccl" in path.name]:
        sys.exit(f"{library} holds {found}")


def check_documents(folder):
    """The relative links of the installed pages lead to installed files."""
    pages = sorted(folder.rglob("*.md"))
    links = [(page, link) for page in pages for link in re.findall(r"\]\((?!https?:)([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))]
    if dead := [f"{page.name}: {link}" for page, link in links if not (page.parent / link).exists()]:
        sys.exit(f"installed pages link to what is not installed: {dead}")
    if len(pages) < 7 or len(links) < 20:
        sys.exit(f"only {len(links)} links in {pages}")


def installed(source, build, programs, work):
    run("cmake", "--install", build, "--prefix", work / "first")
    prefix = work / "moved here"
    (work / "first").rename(prefix)
    if str(build) in (text := (prefix / "lib/cmake/rondo/rondo-static.cmake").read_text()) or str(source) in text:
        sys.exit("the installed package names the tree that it was built in")
    for languages in ("C;CXX", "C"):
        check_consumer(source, programs, work / f"find_package_{languages[-1]}", prefix / "bin/rondo-run", languages,
                       f"-DCMAKE_PREFIX_PATH={prefix}")
    check_documents(prefix / "share/doc/rondo")
    check_pkg_config(prefix, programs, work)
    check_nccl(prefix / "lib")
    run(prefix / "bin/rondo-perf", "all_reduce", "-b", 8, "-e", 8, "-n", 2, "-w", 1, "--ranks", 2)
    version = run("pkg-config", "--modversion", "rondo", PKG_CONFIG_PATH=str(prefix / "lib/pkgconfig")).strip()
    programs_here = sorted(path for path in (prefix / "bin").iterdir() if path.name.startswith("rondo-"))
    if len(programs_here) != 5 or f'PACKAGE_VERSION "{version}"' not in (prefix / "lib/cmake/rondo/rondoConfigVersion.cmake").read_text():
        sys.exit(f"version {version} is not that of the package, or of these five: {programs_here}")
    has_debug_information = "CMAKE_BUILD_TYPE:STRING=Release" not in (build / "CMakeCache.txt").read_text()
    for path in () if has_debug_information else (*programs_here, prefix / "lib/librondo.so"):
        if found := re.search(re.escape(str(source)).encode() + rb"/[\w/-]+[.][ch]pp", path.read_bytes()):
            sys.exit(f"{path.name} names {found[0]}, a file of the machine that built it")
    for path in programs_here:
        if not (said := run(path, "--version")).startswith(f"{path.name} {version}\n"):
            sys.exit(f"{path.name} --version printed {said!r}")
    links = sorted(path for path in (prefix / "bin").iterdir() if path.name.endswith("_perf"))
    if len(links) != 9 or any(os.readlink(path) != "rondo-perf" for path in links):
        sys.exit(f"of nccl-tests' nine names these are installed as links: {links}")
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
    if found != expected:
        sys.exit(f"the sdist lacks {sorted(map(str, expected - found))}, and should not have {sorted(map(str, found - expected))}")
    if differ := [str(name) for name in found - {pathlib.Path("PKG-INFO")} if (copy / name).read_bytes() != (source / name).read_bytes()]:
        sys.exit(f"the sdist has other contents of {differ}")
    return copy


def sdist(source, build, _, work):
    copy = unpacked_sdist(source, work)
    _, environment = pip_install(source, build, work, copy)
    said = run("rondo-run", "-n", 2, "--no-prefix", "--", sys.executable, "-c",
               "import rondo; c = rondo.Communicator(); print(*c.all_reduce(bytes([c.rank, 1])))", **environment)
    if said != "1 2\n1 2\n":
        sys.exit(f"the installed module's sum is {said!r}")


def wheel(source, build, programs, work):
    packages, environment = pip_install(source, build, work)
    said = run("rondo-run", "-n", 2, "--no-prefix", "--", sys.executable, "-c",
               "import rondo; c = rondo.Communicator(); print(*c.all_reduce(bytes([c.rank, 1])))", **environment)
    if said != "1 2\n1 2\n":
        sys.exit(f"the installed module's sum is {said!r}")
    version = run(sys.executable, "-m", "rondo", "--version", **environment).strip()
    for name in ("rondo-run", "rondo-perf", "rondo-plan", "rondo-status", "rondo-train"):
        if not (said := run(name, "--version", **environment)).startswith(f"{name} {version}\n"):
            sys.exit(f"{name} --version printed {said!r}")
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
