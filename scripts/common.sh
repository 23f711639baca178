# Helpers of the shell scripts; sourced, never run. Leaves the working directory at the root of the tree.
set -euo pipefail
started_in=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Where CMake finds ccache (cmake/ccache.cmake), two clones of the tree share what it keeps.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
export CCACHE_SLOPPINESS=pch_defines,time_macros  # the tests' precompiled header would not be cached

settings=()

say() { printf '\n== %s\n' "$*"; }

die() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 1
}

# check_options "KNOWN..." ARGUMENT...: answers --help with the script's first comment, and refuses every option that is not KNOWN.
# Called before anything else runs.
check_options() {
  local known=" $1 " argument
  shift
  for argument; do
    case $argument in
      -h | --help)
        (cd "$started_in" && sed -n '2,${/^#/!q;s/^# \{0,1\}//p}' "$0")
        exit 0
        ;;
      -*) [[ $known == *" $argument "* ]] || die "unknown option '$argument'; --help describes what there is" ;;
    esac
  done
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
