#!/bin/sh
# etcd and etcdctl, from their Go modules at the versions and hashes of tools/etcd, as the Dockerfile builds them: into
# .cache/bin, once. Prints the path of etcd. Exit 3: there is no Go on this machine.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
bin="$root/.cache/bin"
version=$(sed -n 's#^\tgo.etcd.io/etcd/server/v3 \(v[0-9.]*\).*#\1#p' "$root/tools/etcd/go.mod")
stamp="$bin/etcd.$version"

if [ -x "$bin/etcd" ] && [ -e "$stamp" ]; then
    echo "$bin/etcd"
    exit 0
fi
if ! command -v go >/dev/null 2>&1; then
    echo "etcd: no Go compiler in PATH; install Go 1.26 or later, or put etcd and etcdctl 3.5.21 or later in PATH" >&2
    exit 3
fi

mkdir -p "$bin"
# Two test runs at once must not both build.
exec 9>"$bin/etcd.lock"
if command -v flock >/dev/null 2>&1; then flock 9; fi
if [ ! -e "$stamp" ] || [ ! -x "$bin/etcd" ]; then
    echo "etcd: building $version (one to three minutes)" >&2
    cd "$root/tools/etcd"
    export CGO_ENABLED=0 GOFLAGS="-mod=readonly -trimpath -buildvcs=false"
    go build -ldflags "-s -w" -o "$bin/etcdctl" go.etcd.io/etcd/etcdctl/v3 >&2
    go build -ldflags "-s -w" -o "$bin/etcd" go.etcd.io/etcd/server/v3 >&2
    rm -f "$bin"/etcd.v*
    : >"$stamp"
fi
echo "$bin/etcd"
