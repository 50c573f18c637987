#!/bin/sh
# Prints the path of this checkout's wheel, or of the wheel that this package was installed from, made once for its
# contents in the user's cache: .../joulefeed/wheels/SHA256_OF_THE_WHEEL/joulefeed-VERSION-py3-none-any.whl
set -eu
cd "$(dirname "$0")/.."
cache=${XDG_CACHE_HOME:-$HOME/.cache}/joulefeed/wheels
exec 3>&1 1>&2
fail() { echo "wheel: $*"; exit 1; }

if [ -e pyproject.toml ]; then
  set -- harness energymon loaders joulefeed conf playbooks docs pyproject.toml requirements.lock README.md LICENSE
else
  cd ..  # from harness/ to the folder of all packages
  set -- harness energymon loaders joulefeed conf joulefeed-*.dist-info
fi
contents=$(find "$@" -type f ! -path '*/__pycache__/*' -print0 |
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
if [ ! -e pyproject.toml ]; then
  # RECORD lists what was installed; what the installer made itself is left out.
  python3 - "$new" <<'END' || fail "the installed package could not be made a wheel"
import csv, pathlib, sys, zipfile
(record,) = pathlib.Path().glob("joulefeed-*.dist-info/RECORD")
made = {"INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json"}
rows = [row for row in csv.reader(record.open()) if "__pycache__" not in row[0] and pathlib.Path(row[0]).name not in made]
folder = pathlib.Path(sys.argv[1])
folder.mkdir()
name = record.parent.name.removesuffix(".dist-info")
with zipfile.ZipFile(folder / f"{name}-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
    for path, *_ in rows:
        if path != str(record):
            wheel.write(path)
    wheel.writestr(str(record), "".join(",".join(row) + "\n" for row in rows))
END
elif [ -n "$uv" ]; then
  "$uv" build --quiet --wheel --out-dir "$new" . || fail "the wheel could not be built"
else
  # Ansible's environment, which comes first on its PATH, may be without pip.
  for python in .venv/bin/python python3 /usr/bin/python3 none; do
    ! "$python" -m pip --version >/dev/null 2>&1 || break
  done
  [ "$python" != none ] || fail "uv or pip is needed to build the wheel: python3 -m pip install uv"
  "$python" -m pip wheel --quiet --no-deps --wheel-dir "$new" . || fail "the wheel could not be built"
fi
hash=$(sha256sum "$new"/*.whl | cut -d ' ' -f 1)
rm -rf "${cache:?}/$hash"
rm -f "$new"/.gitignore
mv "$new" "$cache/$hash"
path=$(ls "$cache/$hash"/*.whl)
echo "$path" >"$cache/$contents"
echo "$path" >&3
