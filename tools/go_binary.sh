#!/bin/sh
# Builds a program from its Go module into .cache/bin, once, and prints its path: `go_binary.sh NAME VERSION PACKAGE ADVICE
# [FLAG ...]`, with flags of `go install`. Exit 3: there is no Go on this machine; ADVICE says what to do then.
set -eu

name=$1 version=$2 package=$3 advice=$4
shift 4
bin="$(cd "$(dirname "$0")/.." && pwd)/.cache/bin"
stamp="$bin/$name.$version"

if [ -x "$bin/$name" ] && [ -e "$stamp" ]; then
    echo "$bin/$name"
    exit 0
fi
if ! command -v go >/dev/null 2>&1; then
    echo "$name: no Go compiler in PATH; install Go 1.24 or later, or $advice" >&2
    exit 3
fi

mkdir -p "$bin"
# Two test runs at once must not both build.
exec 9>"$bin/$name.lock"
if command -v flock >/dev/null 2>&1; then flock 9; fi
if [ ! -e "$stamp" ] || [ ! -x "$bin/$name" ]; then
    echo "$name: building $version (one to three minutes)" >&2
    GOBIN="$bin" GOFLAGS="${GOFLAGS:--mod=mod}" go install "$@" "$package@$version" >&2
    rm -f "$bin/$name".v*
    : >"$stamp"
fi
echo "$bin/$name"
