#!/usr/bin/env bash
# The cluster UI is tested in a real browser. Without one these tests are skipped, and the summary of the run says so.
set -euo pipefail

for name in chromium-headless-shell chromium chromium-browser google-chrome; do
  command -v "$name" >/dev/null 2>&1 && exit 0
done
"$(dirname -- "${BASH_SOURCE[0]}")/apt.sh" chromium-headless-shell ||
  echo "setup: no Chromium could be installed: the tests of the cluster UI in a browser are skipped"
