"""python -m rondo --cmake-dir | --include-dir | --version: where the package keeps what C and C++ projects need."""
import argparse
import pathlib

import rondo


def main():
    parser = argparse.ArgumentParser(prog="python -m rondo", description="Where rondo's files for C and C++ are.")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--cmake-dir", action="store_true", help="the folder for CMAKE_PREFIX_PATH and rondo_DIR")
    which.add_argument("--include-dir", action="store_true", help="the folder of rondo/rondo.h")
    which.add_argument("--version", action="store_true", help="rondo's version")
    asked = parser.parse_args()
    package = pathlib.Path(rondo.__file__).parent
    if asked.version:
        print(rondo.__version__)
    else:
        print(package / ("lib/cmake/rondo" if asked.cmake_dir else "include"))


main()
