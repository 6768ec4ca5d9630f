#!/usr/bin/env bash
# A real OpenSearch for the tests of `stratalog pipeline sink`: the jars of the server and of its HTTP transport from
# Maven Central, into .cache/opensearch. Its distribution is in no package registry, so plugins such as security are not
# there. Needs Maven and Java 17; 60 MB.
set -euo pipefail

version=2.19.1
log4j=2.21.0
top=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
into=$top/.cache/opensearch
[[ -e $into/.ready && $(<"$into/.ready") == "$version" ]] && exit 0
command -v mvn >/dev/null 2>&1 || { echo "setup: no Maven here: the tests with OpenSearch are skipped" >&2; exit 1; }
made=$(mktemp -d "$top/.cache/opensearch.XXXXXX")
trap 'rm -rf "$made"' EXIT
dependency() { printf '<dependency><groupId>%s</groupId><artifactId>%s</artifactId><version>%s</version></dependency>' "$@"; }
{
  echo '<project><modelVersion>4.0.0</modelVersion><groupId>t</groupId><artifactId>t</artifactId><version>1</version><dependencies>'
  dependency org.opensearch opensearch "$version"
  dependency org.opensearch.plugin transport-netty4-client "$version"
  dependency org.apache.logging.log4j log4j-core "$log4j"
  echo '</dependencies></project>'
} >"$made/pom.xml"
(cd "$made" && mvn -q -B dependency:copy-dependencies -DoutputDirectory=lib)
echo "$version" >"$made/.ready"
rm -rf "$into"
mv "$made" "$into"
trap - EXIT
