#!/usr/bin/env bash
# ClickHouse's engine for the tests of `stratalog pipeline sink`, in .cache/chdb: the locked packages of
# `stratalog[clickhouse]`. 550 MB, so not in the environment for development.
set -euo pipefail

top=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
home=$top/.cache/chdb
locked=$top/requirements/clickhouse.txt
[[ -e $home/.ready && ! $locked -nt $home/.ready ]] && exit 0
python3 -m venv "$home"
"$home/bin/python" -m pip install --quiet --require-hashes --no-deps -r "$locked"
touch "$home/.ready"
