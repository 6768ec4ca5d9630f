#!/usr/bin/env bash
# Prometheus and promtool, which the tests of alerts and dashboard run: from Debian's package, into .cache, with no service
# started. Without them these tests are skipped, and the summary of the run says so.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
bin="$root/.cache/bin"
for place in "$bin" ${PATH//:/ }; do
  [[ -x "$place/promtool" && -x "$place/prometheus" ]] && exit 0
done
if ! command -v apt-get >/dev/null 2>&1; then
  echo "setup: no apt-get here, so no Prometheus: the tests of alerts and dashboard are skipped"
  exit 0
fi
folder=$(mktemp -d)
trap 'rm -rf -- "$folder"' EXIT
chmod 755 "$folder"
cd -- "$folder"
echo "setup: apt-get download prometheus"
if apt-get download -qq prometheus 2>/dev/null || { apt-get update -qq >/dev/null && apt-get download -qq prometheus; }; then
  dpkg-deb -x prometheus_*.deb unpacked
  mkdir -p "$bin"
  install unpacked/usr/bin/prometheus unpacked/usr/bin/promtool "$bin/"
else
  echo "setup: Prometheus could not be had: the tests of alerts and dashboard are skipped"
fi
