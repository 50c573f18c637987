#!/bin/sh
# Prints the path of a MinIO server, which is an S3-compatible object store: the one on PATH, or one built from its Go
# module, once, into the user's cache. Progress is on stderr; the path is all that stdout gets. A build takes two to
# five minutes on two cores and 3 GB of disk, most of which it gives back.
set -eu
cd "$(dirname "$0")/.."
# A version of the module that the Go proxy has; the server's own tags are no versions of Go modules.
version=v0.0.0-20260212201848-7aac2a2c5b7c
cache=${XDG_CACHE_HOME:-$HOME/.cache}/joulefeed
name=minio server=$cache/minio-$version build=$cache/minio-build
exec 3>&1 1>&2
. playbooks/environment.sh
. playbooks/go.sh

give() { echo "$1" >&3; exit 0; }
if command -v minio >/dev/null 2>&1; then
  case $(minio --version 2>/dev/null) in "minio version"*) give "$(command -v minio)" ;; esac
  say "$(command -v minio) is no MinIO server"
fi
[ ! -x "$server" ] || give "$server"

mkdir -p "$cache"
touch "$cache/minio.lock"
lock "$cache/minio.lock"
[ ! -x "$server" ] || give "$server"

need_go 1.24
export CGO_ENABLED=0
say "building MinIO $version with $(go version | cut -d' ' -f3)"
started=$(date +%s)
quietly go install -trimpath -ldflags "-s -w" "github.com/minio/minio@$version"
"$build/bin/minio" --version >/dev/null || fail "the server was built and does not run"
mv "$build/bin/minio" "$server"
rm -rf "$build"
say "built in $(($(date +%s) - started)) s: $server"
give "$server"
