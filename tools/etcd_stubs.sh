#!/usr/bin/env bash
# Makes the message classes of etcd's API from rpc.proto; run it when that file changes. protoc comes in PyPI's grpcio-tools
# and lives in a cache folder of its own: no other part of the build needs it.
#
#   etcd_stubs.sh
set -euo pipefail

version=1.85.1
top=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
cd "$top"
home=.cache/grpcio-tools-$version
[[ -x $home/bin/python ]] || { .venv/bin/python -m venv "$home"; "$home/bin/python" -m pip install --quiet "grpcio-tools==$version"; }
"$home/bin/python" -m grpc_tools.protoc -I meta_service --python_out=meta_service --pyi_out=meta_service \
  stratalog_meta/stores/etcd/rpc.proto
