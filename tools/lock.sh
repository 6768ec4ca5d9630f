#!/usr/bin/env bash
# Resolves pyproject.toml into requirements/*.txt: versions and hashes, no addresses.
# uv resolves because pip's own resolver backtracks for minutes on this set; it lives in a cache folder of its own.
#
#   lock.sh UV_VERSION
set -euo pipefail

version=${1:?lock.sh UV_VERSION}
top=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
cd "$top"
home=.cache/uv-$version
[[ -x $home/bin/uv ]] || { .venv/bin/python -m venv "$home"; "$home/bin/python" -m pip install --quiet "uv==$version"; }

compile() {                                       # compile EXTRA OUTPUT [CONSTRAINTS]
  UV_CUSTOM_COMPILE_COMMAND="make lock" "$home/bin/uv" pip compile --quiet --generate-hashes --no-emit-index-url \
    --no-annotate --no-emit-find-links --python-version 3.11 --universal --extra "$1" ${3:+--constraints "$3"} --output-file "$2" pyproject.toml
}
compile dev requirements/dev.txt
# What users and the image get is what was tested, and the pipeline goes on top of it: all name the same versions.
compile all requirements/all.txt requirements/dev.txt
compile build requirements/build.txt requirements/dev.txt
compile pipeline requirements/pipeline.txt requirements/dev.txt
compile sinks requirements/sinks.txt requirements/dev.txt
compile clickhouse requirements/clickhouse.txt requirements/dev.txt
compile audit requirements/audit.txt requirements/dev.txt
if grep -nE '://' requirements/*.txt; then
  echo "lock: an address has found its way into requirements/" >&2
  exit 1
fi
