#!/usr/bin/env bash
# What the tests of `stratalog pipeline sink` need: the locked packages of `stratalog[sinks]`, and PostgreSQL's server of
# Debian. Without them these tests are skipped, and the summary of the run says so.
#
#   postgres.sh DIR
set -euo pipefail

dir=${1:?postgres.sh DIR}
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
locked=$here/../requirements/sinks.txt
if [[ ! -e $dir/.sinks || $locked -nt $dir/.sinks ]]; then
  echo "setup: locked dependencies of the sinks"
  "$dir/bin/python" -m pip install --quiet --require-hashes --no-deps -r "$locked" ||
    { echo "setup: stratalog[sinks] could not be installed: its tests are skipped"; exit 0; }
  touch "$dir/.sinks"
fi
compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || command -v initdb >/dev/null 2>&1 || "$here/apt.sh" postgresql ||
  echo "setup: PostgreSQL could not be installed: the tests with it are skipped"
