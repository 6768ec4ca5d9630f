#!/usr/bin/env bash
# Lists the locked dependencies, or looks them up among known vulnerabilities. Its tools live in a venv of their own.
#
#   audit.sh sbom DIR      a CycloneDX list of each set of dependencies that users get
#   audit.sh audit         an error for each dependency with a known vulnerability
set -euo pipefail

job=${1:?audit.sh sbom DIR, or audit.sh audit}
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
home=.cache/audit
lock=requirements/audit.txt
if [[ ! -e $home/.ready || $lock -nt $home/.ready ]]; then
  python3 -m venv "$home"
  "$home/bin/python" -m pip install --quiet --require-hashes --no-deps -r "$lock"
  touch "$home/.ready"
fi
sets=(all pipeline sinks build)
case $job in
  sbom)
    dir=${2:?audit.sh sbom DIR}
    mkdir -p "$dir"
    for name in "${sets[@]}"; do
      PYTHONWARNINGS=ignore "$home/bin/cyclonedx-py" requirements --pyproject pyproject.toml --output-reproducible --of JSON \
        -o "$dir/stratalog-$name.cdx.json" "requirements/$name.txt"
      printf 'sbom: %s\n' "$dir/stratalog-$name.cdx.json"
    done
    ;;
  audit)
    for name in "${sets[@]}"; do
      "$home/bin/pip-audit" --strict --require-hashes --disable-pip -r "requirements/$name.txt"
    done
    ;;
  *)
    printf 'audit.sh: sbom or audit, not %s\n' "$job" >&2
    exit 2
    ;;
esac
