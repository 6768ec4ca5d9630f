#!/bin/sh
# Azurite, the server of Azure Blob Storage that the store tests run against, as tools/azurite/package-lock.json names it.
# Installs it into .cache/azurite, once, half a minute, and prints the path of its program. Exit 3: there is no npm.
set -eu

here="$(cd "$(dirname "$0")" && pwd)"
place="$here/../.cache/azurite"
program="$place/node_modules/azurite/dist/src/blob/main.js"

if [ -e "$program" ] && cmp -s "$here/azurite/package-lock.json" "$place/installed.json"; then
    echo "$program"
    exit 0
fi
if ! command -v npm >/dev/null 2>&1; then
    echo "azurite: no npm in PATH; install Node.js 20 or later, or go without the tests of Azure Blob Storage" >&2
    exit 3
fi

mkdir -p "$place"
# Two test runs at once must not both install.
exec 9>"$place.lock"
if command -v flock >/dev/null 2>&1; then flock 9; fi
if ! cmp -s "$here/azurite/package-lock.json" "$place/installed.json"; then
    echo "azurite: installing (half a minute)" >&2
    cp "$here/azurite/package.json" "$here/azurite/package-lock.json" "$here/azurite/.npmrc" "$place/"
    npm ci --prefix "$place" --ignore-scripts --no-audit --no-fund --silent >&2
    cp "$here/azurite/package-lock.json" "$place/installed.json"
fi
echo "$program"
