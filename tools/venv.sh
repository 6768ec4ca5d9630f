#!/usr/bin/env bash
# Makes the virtual environment: Python 3.11 or later, the hash-locked dependencies, this checkout as an editable install.
# Safe to run again: what is installed already stays.
#
#   venv.sh DIR
set -euo pipefail

dir=${1:?venv.sh DIR}
top=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
say() { printf 'setup: %s\n' "$*"; }

# The distribution's comes first: it is compiled with profiles, as that of the image is. What pyenv compiles by default is
# not, and a node takes up to a fifth more CPU for each request with it (docs/benchmarks.md).
pythons() {
  local candidate
  for candidate in ${PYTHON:+"$PYTHON"} /usr/bin/python3.11 python3.11 python3.12 python3.13 python3; do
    if "$candidate" -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"
      [[ $candidate != "${PYTHON:-}" ]] || return 0
    fi
  done
}

make_environment() {
  local python found
  mapfile -t found < <(pythons)
  if [[ ${#found[@]} -eq 0 ]]; then
    say "no Python 3.11 or later found: install it, or name it in PYTHON" >&2
    return 1
  fi
  for python in "${found[@]}"; do
    rm -rf -- "$dir"
    if "$python" -m venv "$dir" 2>/dev/null; then
      say "$dir with $("$python" --version)"
      return
    fi
  done
  # Debian ships venv's ensurepip in a package of its own.
  python=${found[0]}
  say "$dir with $("$python" --version)"
  rm -rf -- "$dir"
  tools/apt.sh "$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
  "$python" -m venv "$dir"
}

cd "$top"
if ! "$dir/bin/python" -m pip --version >/dev/null 2>&1; then
  make_environment
fi
say "locked dependencies"
"$dir/bin/python" -m pip install -qq --require-hashes --no-deps -r requirements/dev.txt
say "stratalog, editable"
"$dir/bin/python" -m pip install --quiet --no-build-isolation --no-deps --editable .
test -x "$dir/bin/stratalog"
