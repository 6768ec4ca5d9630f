#!/bin/sh
# helm, from its Go module: the tests of the charts render them with it. Prints its path; see go_binary.sh.
CGO_ENABLED=0 GOTOOLCHAIN=local exec "$(dirname "$0")/go_binary.sh" \
    helm v3.19.4 helm.sh/helm/v3/cmd/helm "put helm in PATH" -ldflags "-s -w"
