#!/usr/bin/env bash
# Completion is tested in the shells that people use. Without zsh or fish these tests are skipped, and the summary of the run says so.
set -euo pipefail

missing=()
for name in zsh fish; do
  command -v "$name" >/dev/null 2>&1 || missing+=("$name")
done
[[ ${#missing[@]} -eq 0 ]] && exit 0
"$(dirname -- "${BASH_SOURCE[0]}")/apt.sh" "${missing[@]}" ||
  echo "setup: ${missing[*]} could not be installed: the tests of completion in them are skipped"
