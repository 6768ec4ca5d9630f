#!/usr/bin/env bash
# kcat is one of the foreign clients of the test suite. Without it its tests are skipped, and the summary says so.
set -euo pipefail

command -v kcat >/dev/null 2>&1 && exit 0
"$(dirname -- "${BASH_SOURCE[0]}")/apt.sh" kcat || echo "setup: kcat could not be installed: its tests are skipped"
