#!/bin/sh
# Builds versitygw, the S3 server that the store tests run against, into .cache/bin, once.
# Prints the path of the binary. Exit 3: there is no Go on this machine (the tests then skip, and say so).
set -eu

version=v1.8.0
root=$(cd "$(dirname "$0")/.." && pwd)
bin="$root/.cache/bin"
stamp="$bin/versitygw.$version"

if [ -x "$bin/versitygw" ] && [ -e "$stamp" ]; then
    echo "$bin/versitygw"
    exit 0
fi
if ! command -v go >/dev/null 2>&1; then
    echo "versitygw: no Go compiler in PATH; install Go 1.24 or later, or go without the real S3 server" >&2
    exit 3
fi

mkdir -p "$bin"
# Two test runs at once must not both build.
exec 9>"$bin/versitygw.lock"
if command -v flock >/dev/null 2>&1; then flock 9; fi
if [ ! -e "$stamp" ] || [ ! -x "$bin/versitygw" ]; then
    echo "versitygw: building $version (one to three minutes)" >&2
    GOBIN="$bin" GOFLAGS="${GOFLAGS:--mod=mod}" go install "github.com/versity/versitygw/cmd/versitygw@$version" >&2
    rm -f "$bin"/versitygw.v*
    : >"$stamp"
fi
echo "$bin/versitygw"
