#!/bin/sh
# Builds helm from its Go module into .cache/bin, once: the tests of the charts render them with it.
# Prints the path of the binary. Exit 3: there is no Go on this machine (the tests then skip, and say so).
set -eu

version=v3.19.4
root=$(cd "$(dirname "$0")/.." && pwd)
bin="$root/.cache/bin"
stamp="$bin/helm.$version"

if [ -x "$bin/helm" ] && [ -e "$stamp" ]; then
    echo "$bin/helm"
    exit 0
fi
if ! command -v go >/dev/null 2>&1; then
    echo "helm: no Go compiler in PATH; install Go 1.24 or later, or put helm in PATH" >&2
    exit 3
fi

mkdir -p "$bin"
# Two test runs at once must not both build.
exec 9>"$bin/helm.lock"
if command -v flock >/dev/null 2>&1; then flock 9; fi
if [ ! -e "$stamp" ] || [ ! -x "$bin/helm" ]; then
    echo "helm: building $version (one to two minutes)" >&2
    CGO_ENABLED=0 GOTOOLCHAIN=local GOBIN="$bin" GOFLAGS="${GOFLAGS:--mod=mod}" \
        go install -ldflags "-s -w" "helm.sh/helm/v3/cmd/helm@$version" >&2
    rm -f "$bin"/helm.v*
    : >"$stamp"
fi
echo "$bin/helm"
