#!/usr/bin/env bash
# An environment beside the usual one: the same packages, with stratalog from a wheel whose hot path is compiled
# (docs/decisions/0028). Three minutes, and again whenever a source changes.
#
#   compiled.sh VENV DIR
set -euo pipefail

venv=${1:?compiled.sh VENV DIR}
dir=${2:?compiled.sh VENV DIR}
top=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
cd "$top"
venv=$(realpath -s -- "$venv") dir=$(realpath -sm -- "$dir")
command -v cc >/dev/null || tools/apt.sh gcc libc6-dev
[[ -f $("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h ]] || tools/apt.sh python3-dev
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
tools/wheel.sh "$venv" "$work" --compiled
if [[ ! -x $dir/bin/python ]]; then
  "$venv/bin/python" -m venv --without-pip "$dir"
  # All other packages are those of the usual environment: its own .pth files do not count here, so its checkout does not.
  packages=$("$dir/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  realpath -- "$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" >"$packages/packages.pth"
fi
printf 'compiled: %s\n' "$dir"
"$venv/bin/python" -m pip --python "$dir/bin/python" install --quiet --no-index --no-deps --force-reinstall "$work"/*.whl
cd /
"$dir/bin/python" -c 'import stratalog.kafka.fetch as made; assert made.__file__.endswith(".so"), made.__file__'
