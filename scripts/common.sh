# Helpers of the shell scripts; sourced, never run. Leaves the working directory at the root of the tree.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# An optional compiler cache, which two clones of the tree share. CMake reads the first of
# these variables when it configures a build folder for the first time.
if command -v ccache >/dev/null; then
  export CMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER-ccache}
  export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
  export CCACHE_SLOPPINESS=pch_defines,time_macros  # the tests' precompiled header would not be cached
fi

settings=()

say() { printf '\n== %s\n' "$*"; }

die() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 1
}

# configure PRESET: quiet unless it fails. With the array `settings`, of flags for CMake.
configure() {
  local log
  log=$(log_of "configure-$1")
  cmake --preset "$1" "${settings[@]}" >"$log" 2>&1 || {
    cat "$log" >&2
    die "configuring preset '$1' failed"
  }
}

# build PRESET [TARGET...]: configures and builds; the whole preset when no target is named.
build() {
  local preset=$1
  shift
  local targets=()
  if (($#)); then targets=(--target "$@"); fi
  configure "$preset"
  cmake --build --preset "$preset" --parallel "$(nproc)" "${targets[@]}"
}

# log_of NAME: where the output of NAME is kept.
log_of() {
  mkdir -p build/logs
  echo "build/logs/$1.log"
}

# files_of GLOB...: the project's matching files, committed or not; without ignored ones.
files_of() {
  git ls-files --cached --others --exclude-standard -- "$@" | sort -u |
    while IFS= read -r file; do if [[ -f $file ]]; then echo "$file"; fi; done
}
