#!/usr/bin/env bash
# Installs Debian or Ubuntu packages, with one apt-get update when the lists are missing or too old for them.
#
#   apt.sh PACKAGE ...
set -euo pipefail

[[ $# -ge 1 ]] || { echo "apt.sh PACKAGE ..." >&2; exit 2; }
if ! command -v apt-get >/dev/null 2>&1; then
  echo "setup: no apt-get here: install manually: $*" >&2
  exit 1
fi
as_root=()
if [[ $(id -u) -ne 0 ]]; then
  if ! command -v sudo >/dev/null 2>&1; then
    echo "setup: neither root nor sudo: install manually: $*" >&2
    exit 1
  fi
  as_root=(sudo)
fi
install() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null; }

echo "setup: apt-get install $*"
install "$@" 2>/dev/null || { "${as_root[@]}" apt-get update -qq >/dev/null && install "$@"; }
