#!/bin/sh
# Checks the workflow files with actionlint: the one on PATH, or one built from its Go module in half a minute, once, into
# the user's cache.
set -eu
cd "$(dirname "$0")/.."
version=v1.7.7
cache=${XDG_CACHE_HOME:-$HOME/.cache}/joulefeed
name=actionlint program=$cache/actionlint-$version build=$cache/actionlint-build
. playbooks/environment.sh
. playbooks/go.sh

if command -v actionlint >/dev/null 2>&1; then
  program=actionlint
elif [ ! -x "$program" ]; then
  mkdir -p "$cache"
  touch "$cache/actionlint.lock"
  lock "$cache/actionlint.lock"
  if [ ! -x "$program" ]; then
    need_go 1.21
    say "building actionlint $version"
    quietly go install -trimpath "github.com/rhysd/actionlint/cmd/actionlint@$version"
    mv "$build/bin/actionlint" "$program"
    rm -rf "$build"
  fi
fi
exec "$program" .github/workflows/*.yaml
