#!/usr/bin/env bash
# What the pipeline needs beside the environment for development: the locked packages of `stratalog[pipeline]`, and Java
# for Spark (Debian's headless runtime where there is none). Without Java the tests with Spark are skipped, and the
# summary of the run says so.
#
#   spark.sh DIR
set -euo pipefail

dir=${1:?spark.sh DIR}
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
locked=$here/../requirements/pipeline.txt
if [[ ! -e $dir/.pipeline || $locked -nt $dir/.pipeline ]]; then
  echo "setup: locked dependencies of the pipeline"
  "$dir/bin/python" -m pip install --quiet --require-hashes --no-deps -r "$locked" ||
    { echo "setup: stratalog[pipeline] could not be installed: its tests are skipped"; exit 0; }
  touch "$dir/.pipeline"
fi
command -v java >/dev/null 2>&1 || "$here/apt.sh" default-jre-headless ||
  echo "setup: no Java could be installed: the tests with Spark are skipped"
