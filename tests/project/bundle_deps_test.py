#!/usr/bin/env python3
"""What scripts/bundle-deps makes: small enough, free of absolute paths, and, moved elsewhere, all that configuring rondo and linking
against its dependencies need, with the system's own copies out of sight.
    bundle_deps_test.py SOURCE
Ends with 77, which CTest calls skipped, where Debian 12's packages are not installed."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from common import check, run

EVERYWHERE = r"(ld-linux|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+)\.so)"
CONSUMER = """\
cmake_minimum_required(VERSION 3.25)
project(consumer CXX)
set(CMAKE_CXX_STANDARD 20)
find_package(PkgConfig REQUIRED)
pkg_check_modules(NEEDS REQUIRED IMPORTED_TARGET fmt hwloc libhwy libsodium spdlog openblas)
foreach(name CLI11 nlohmann_json Catch2 fmt spdlog benchmark HWY)
  find_package(${name} REQUIRED)
endforeach()
add_executable(by_pkg_config main.cpp)
target_link_libraries(by_pkg_config PkgConfig::NEEDS)
add_executable(by_find_package main.cpp)
target_compile_definitions(by_find_package PRIVATE FIND_PACKAGE)
target_link_libraries(by_find_package CLI11::CLI11 nlohmann_json::nlohmann_json fmt::fmt spdlog::spdlog benchmark::benchmark hwy::hwy)
add_executable(no_tests no_tests.cpp)
target_link_libraries(no_tests Catch2::Catch2WithMain)
"""
# Declarations instead of large headers where they do: what is tested is that all is found.
MAIN = """\
#include <hwy/targets.h>
#include <spdlog/version.h>
#include <string>
namespace spdlog { __attribute__((visibility("default"))) void drop_all(); }
#ifdef FIND_PACKAGE
#include <CLI/Version.hpp>
#include <nlohmann/json_fwd.hpp>
namespace benchmark { void Shutdown(); }
int main() { benchmark::Shutdown(); spdlog::drop_all(); return hwy::SupportedTargets() == 0; }
#else
#include <cblas.h>
#include <hwloc.h>
#include <sodium/core.h>
#include <fmt/core.h>
int main() {
  const float x[] = {1, 2}, y[] = {3, 4};
  spdlog::drop_all();
  return sodium_init() < 0 || hwy::SupportedTargets() == 0 || hwloc_get_api_version() == 0 ||
         fmt::format("{}", cblas_sdot(2, x, 1, y, 1)) != "11";
}
#endif
"""


def make_bundle(script, folder):
    done = subprocess.run([script, folder], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        if "scripts/setup" in done.stderr or "no dpkg" in done.stderr or "meant for Debian 12" in done.stderr:
            print(f"skipped: {done.stderr}")
            sys.exit(77)
        sys.exit(done.stderr)


def check_files(bundle, made_at):
    """Nothing says where it was made, and nothing that is loaded comes from elsewhere."""
    size = sum(p.lstat().st_size for p in bundle.rglob("*"))
    check(size <= 50 << 20, f"{size} bytes are more than 50 MiB")
    for path in bundle.rglob("*"):
        name = path.relative_to(bundle)
        if path.is_symlink():
            check("/" not in os.readlink(path) and path.exists(), f"{name} leads to {os.readlink(path)}")
            continue
        if path.is_dir() or name.parts[0] in ("include", "share"):
            continue
        data = path.read_bytes()
        if data.startswith(b"\x7fELF"):
            head = run("readelf", "-d", path)
            check("PATH)" not in head, f"{name} has a run path:\n{head}")
            for needed in re.findall(r"NEEDED.*\[(\S+)\]", head):
                check(re.match(EVERYWHERE, needed) or (bundle / "lib" / needed).exists(), f"{name} needs {needed}, which is not in the bundle")
        elif not data.startswith(b"!<arch>"):
            for line in data.decode().splitlines():
                place = not line.startswith("#!") and re.search(rf"(?<![\w.}}])/(usr|home|root|tmp|{made_at.parts[1]})\b", line)
                check(not place, f"{name} names a place: {line}")


def check_loaded(bundle, program):
    """It runs, and everything but the compiler's libraries is loaded from the bundle."""
    run(program)
    loaded = run(program, LD_TRACE_LOADED_OBJECTS="1")
    for name, path in re.findall(r"(\S+) => (.*?)(?: \(0x|\n)", loaded):
        check(re.match(EVERYWHERE, name) or pathlib.Path(path).resolve().parent == (bundle / "lib").resolve(),
              f"{program.name} loads {name} from {path}")


def configure(source, build, bundle, *settings):
    """With the bundle in sight of CMake, and the system's packages out of it."""
    run("cmake", "-G", "Ninja", "-S", source, "-B", build, f"-DCMAKE_PREFIX_PATH={bundle}", "-DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF",
        "-DCMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH=OFF", f"-DCMAKE_CXX_COMPILER={shutil.which('g++')}",
        f"-DCMAKE_C_COMPILER={shutil.which('gcc')}", f"-DPython3_EXECUTABLE={sys.executable}", *settings,
        PKG_CONFIG_LIBDIR="/nowhere", PKG_CONFIG_PATH="")
    cache = (build / "CMakeCache.txt").read_text()
    found = re.findall(r"^((?:\w+_DIR|pkgcfg_lib_\w+|PKG_CONFIG_EXECUTABLE|CMAKE_MAKE_PROGRAM):\w+=(.*))$", cache, re.MULTILINE)
    outside = [line for line, path in found
               if path and not path.startswith((str(bundle), str(build), str(source))) and not path.endswith("-NOTFOUND")
               and "FIND_PACKAGE_REDIRECTS" not in line]
    check(found and not outside, f"found elsewhere than in the bundle: {outside}")


def main():
    source = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name).resolve()
        made_at, bundle = work / "made" / "deps", work / "elsewhere" / "libraries"
        bundle.parent.mkdir()
        make_bundle(source / "scripts/bundle-deps", made_at)
        make_bundle(source / "scripts/bundle-deps", made_at)  # a bundle is replaced, and nothing else is
        made_at.rename(bundle)
        check_files(bundle, made_at)
        (work / "mine.txt").write_text("kept")
        refused = subprocess.run([source / "scripts/bundle-deps", work], capture_output=True, text=True, check=False)
        check(refused.returncode != 0 and (work / "mine.txt").exists(), f"wrote over a folder that is no bundle: {refused}")

        consumer = work / "consumer"
        consumer.mkdir()
        (consumer / "CMakeLists.txt").write_text(CONSUMER)
        (consumer / "main.cpp").write_text(MAIN)
        (consumer / "no_tests.cpp").write_text("#if !__has_include(<catch2/catch.hpp>)\n#error\n#endif\n")
        configure(consumer, work / "build", bundle)
        run("cmake", "--build", work / "build")
        for program in ("by_pkg_config", "by_find_package", "no_tests"):
            check_loaded(bundle, work / "build" / program)
        # All that rondo asks for, tests and benchmarks included.
        configure(source, work / "rondo", bundle, "-DRONDO_CUDA=OFF", "-DRONDO_MPICXX=", "-DCMAKE_DISABLE_FIND_PACKAGE_Gloo=ON")
    print("bundle_deps_test: ok")


if __name__ == "__main__":
    main()
