#!/bin/sh
# Builds kube-apiserver from its Go module into .cache/bin, once: the API server that the operator's tests run against.
# Prints the path of the binary. Exit 3: there is no Go on this machine (the tests then skip, and say so).
# The first build takes 5 to 15 minutes of two cores and 4 GB of Go's caches, so nothing but `make apiserver` starts it.
set -eu

version=v1.34.4
staging=v0.34.4 # the same release of k8s.io/api, client-go, ...
root=$(cd "$(dirname "$0")/.." && pwd)
bin="$root/.cache/bin"
stamp="$bin/kube-apiserver.$version"

if [ -x "$bin/kube-apiserver" ] && [ -e "$stamp" ]; then
    echo "$bin/kube-apiserver"
    exit 0
fi
if ! command -v go >/dev/null 2>&1; then
    echo "kube-apiserver: no Go compiler in PATH; install Go 1.24 or later, or put kube-apiserver in PATH" >&2
    exit 3
fi

# A module of our own with the versions of Kubernetes' own go.mod. Its staging repositories are folders of its source
# tree, which the module's archive lacks: their published modules stand in.
write_module() {
    source=$(go mod download -json "k8s.io/kubernetes@$version" | sed -n 's/^\t"Dir": "\(.*\)",\{0,1\}$/\1/p')
    sed -e 's#^module .*#module stratalog.test/apiserver#' \
        -e "s#=> \./staging/src/\(k8s\.io/[^ ]*\)#=> \1 $staging#" \
        -e '/k8s.io\/sample-\(cli-plugin\|controller\)/d' "$source/go.mod" >go.mod
    cat "$source/go.sum" >go.sum
    chmod u+w go.mod go.sum
    go mod edit -require "k8s.io/kubernetes@$version"
    cat >tools.go <<'GO'
//go:build tools

package tools

import _ "k8s.io/kubernetes/cmd/kube-apiserver"
GO
}

mkdir -p "$bin"
# Two test runs at once must not both build.
exec 9>"$bin/kube-apiserver.lock"
if command -v flock >/dev/null 2>&1; then flock 9; fi
if [ ! -e "$stamp" ] || [ ! -x "$bin/kube-apiserver" ]; then
    echo "kube-apiserver: building $version (5 to 15 minutes)" >&2
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    cd "$work"
    # A module's own go.mod must not make go fetch another toolchain.
    export CGO_ENABLED=0 GOTOOLCHAIN=local GOFLAGS="${GOFLAGS:-} -mod=mod -trimpath -buildvcs=false"
    write_module
    name=k8s.io/component-base/version
    go build -ldflags "-s -w -X $name.gitVersion=$version -X $name.gitMajor=1 -X $name.gitMinor=34" \
        -o "$bin/kube-apiserver" k8s.io/kubernetes/cmd/kube-apiserver >&2
    rm -f "$bin"/kube-apiserver.v*
    : >"$stamp"
fi
echo "$bin/kube-apiserver"
