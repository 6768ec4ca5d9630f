#!/usr/bin/env bash
# Builds the wheel of this checkout into a folder. Where a C compiler and Python's headers are there, its hot path is
# compiled (docs/decisions/0028): such a wheel fits this version of Python and this kind of processor. Elsewhere it holds
# Python alone, does the same, slower, and says so.
#
#   wheel.sh VENV DIR [--compiled]      --compiled: an error where nothing can be compiled
set -euo pipefail

venv=${1:?wheel.sh VENV DIR [--compiled]}
dir=${2:?wheel.sh VENV DIR [--compiled]}
must=${3:-}
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
headers=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
log=$(mktemp)
trap 'rm -f -- "$log"' EXIT

build() {
  "$venv/bin/python" -m hatchling build -t wheel -d "$dir" >"$log" 2>&1 && return
  grep -E 'error' "$log" >&2 || tail -n 20 "$log" >&2
  exit 1
}

if command -v cc >/dev/null && [[ -f $headers/Python.h ]]; then
  printf 'wheel: compiled, takes 2 to 3 minutes\n'
  HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 build
elif [[ $must == --compiled ]]; then
  printf 'wheel: no C compiler (cc), or no %s\n' "$headers/Python.h" >&2
  exit 1
else
  printf 'wheel: not compiled, because there is no C compiler (cc) or no %s\n' "$headers/Python.h"
  printf 'wheel: a compiled node serves up to half as many requests again: apt-get install gcc libc6-dev python3-dev\n'
  build
fi
printf 'wheel: %s\n' "$dir"/stratalog-*.whl
