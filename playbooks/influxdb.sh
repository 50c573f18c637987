#!/bin/sh
# Prints the path of an InfluxDB 2 server: the one on PATH, or one built from its Go module, once, into the user's
# cache. Progress is on stderr; the path is all that stdout gets. A build takes about five minutes on two cores and
# 4 GB of disk, most of which it gives back.
set -eu
cd "$(dirname "$0")/.."
version=2.7.12
cache=${XDG_CACHE_HOME:-$HOME/.cache}/joulefeed
name=influxdb server=$cache/influxd-$version build=$cache/influxd-build
exec 3>&1 1>&2
. playbooks/environment.sh
. playbooks/go.sh

give() { echo "$1" >&3; exit 0; }
if command -v influxd >/dev/null 2>&1; then
  found=$(minor influxd version)
  case $found in 2.*) give "$(command -v influxd)" ;; esac
  say "$(command -v influxd) is version ${found:-unknown}, wanted 2.x"
fi
[ ! -x "$server" ] || give "$server"

mkdir -p "$cache"
touch "$cache/influxd.lock"
lock "$cache/influxd.lock"
[ ! -x "$server" ] || give "$server"

missing=""
command -v gcc >/dev/null 2>&1 || missing="$missing gcc libc6-dev"
command -v pkg-config >/dev/null 2>&1 || missing="$missing pkg-config"
at_least "$(minor cargo --version)" 1.72 || missing="$missing cargo-web rustc-web"
# shellcheck disable=SC2086 # names of packages, one word each
[ -z "$missing" ] || packages $missing
at_least "$(minor cargo --version)" 1.72 || fail "Rust 1.72 or later is needed as cargo and rustc; found: $(cargo --version)"

need_go 1.23
# The server's Flux is written in Rust; the wrapper called pkg-config builds it when Go asks for its flags. It wants
# an older compiler by name, and takes new warnings for errors: neither holds here.
printf '#!/bin/sh\nexec "$@" --cap-lints allow\n' >"$build/bin/rustc-quiet"
chmod +x "$build/bin/rustc-quiet"
if command -v rustup >/dev/null 2>&1; then
  RUSTUP_TOOLCHAIN=$(cd / && rustup show active-toolchain | sed 's/ .*//')
  export RUSTUP_TOOLCHAIN
fi
export RUSTC_WRAPPER="$build/bin/rustc-quiet" CGO_ENABLED=1
tags=sqlite_foreign_keys,sqlite_json
[ "$(go env GOARCH)" = amd64 ] || tags=$tags,noasm

say "building InfluxDB $version with $(go version | cut -d' ' -f3) and $(cargo --version | cut -d' ' -f1,2)"
started=$(date +%s)
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
