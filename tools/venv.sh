#!/usr/bin/env bash
# Makes the virtual environment: Python 3.11 or later, the hash-locked dependencies, this checkout as an editable install.
# Safe to run again: what is installed already stays.
#
#   venv.sh DIR
set -euo pipefail

dir=${1:?venv.sh DIR}
top=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
say() { printf 'setup: %s\n' "$*"; }

find_python() {
  local candidate
  for candidate in ${PYTHON:+"$PYTHON"} python3.11 python3.12 python3.13 python3; do
    if "$candidate" -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  say "no Python 3.11 or later found: install it, or name it in PYTHON" >&2
  return 1
}

cd "$top"
if ! "$dir/bin/python" -m pip --version >/dev/null 2>&1; then
  python=$(find_python)
  say "$dir with $("$python" --version)"
  rm -rf -- "$dir"
  if ! "$python" -m venv "$dir" 2>/dev/null; then
    # Debian ships venv's ensurepip in a package of its own.
    rm -rf -- "$dir"
    tools/apt.sh "$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
    "$python" -m venv "$dir"
  fi
fi
say "locked dependencies"
"$dir/bin/python" -m pip install --quiet --require-hashes --no-deps -r requirements/dev.txt
say "stratalog, editable"
"$dir/bin/python" -m pip install --quiet --no-build-isolation --no-deps --editable .
test -x "$dir/bin/stratalog"
