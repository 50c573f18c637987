#!/bin/sh
# Prints the path of this checkout's wheel, built once for its contents into the user's cache:
# .../joulefeed/wheels/SHA256_OF_THE_WHEEL/joulefeed-VERSION-py3-none-any.whl
set -eu
cd "$(dirname "$0")/.."
cache=${XDG_CACHE_HOME:-$HOME/.cache}/joulefeed/wheels
exec 3>&1 1>&2
fail() { echo "wheel: $*"; exit 1; }

contents=$(find harness energymon loaders conf pyproject.toml README.md LICENSE -type f ! -path '*/__pycache__/*' -print0 |
  LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -d ' ' -f 1)
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
if [ -e "$cache/$contents" ] && [ -e "$(cat "$cache/$contents")" ]; then
  cat "$cache/$contents" >&3
  exit 0
fi
new=$cache/new
rm -rf "$new"
uv=$(command -v uv || true)
[ -n "$uv" ] || { [ ! -x .venv-uv/bin/uv ] || uv=.venv-uv/bin/uv; }
if [ -n "$uv" ]; then
  "$uv" build --quiet --wheel --out-dir "$new" . || fail "the wheel could not be built"
else
  python3 -m pip wheel --quiet --no-deps --wheel-dir "$new" . || fail "the wheel could not be built"
fi
hash=$(sha256sum "$new"/*.whl | cut -d ' ' -f 1)
rm -rf "${cache:?}/$hash"
rm -f "$new"/.gitignore
mv "$new" "$cache/$hash"
path=$(ls "$cache/$hash"/*.whl)
echo "$path" >"$cache/$contents"
echo "$path" >&3
