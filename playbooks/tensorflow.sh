#!/bin/sh
# Prints the path of a Python that has TensorFlow: one environment of its own, made once in the user's cache, because
# TensorFlow wants other versions than this project's. Progress is on stderr; the path is all that stdout gets.
# The environment takes 1.5 GB and a minute or two.
set -eu
cd "$(dirname "$0")/.."
version=2.21.0
cache=${XDG_CACHE_HOME:-$HOME/.cache}/joulefeed
home=$cache/tensorflow-$version
python=$home/bin/python

exec 3>&1 1>&2
say() { echo "tensorflow: $*"; }
give() { echo "$python" >&3; exit 0; }
fail() { say "$*"; exit 1; }

# The mark is written last, when the environment has imported TensorFlow; the Python below it may be gone since.
ready() { [ -e "$home/.ready" ] && "$python" -c ''; }
! ready || give
mkdir -p "$cache"
exec 9>"$cache/tensorflow.lock"
flock -n 9 || { say "another run is making the environment; waiting for it"; flock 9; }
! ready || give

say "making an environment with TensorFlow $version in $home"
rm -rf "$home"
base=$(command -v python3 || true)
[ ! -x .venv/bin/python ] || base=.venv/bin/python
[ -n "$base" ] || fail "Python 3 is needed as python3"
uv=$(command -v uv || true)
[ -n "$uv" ] || { [ ! -x .venv-uv/bin/uv ] || uv=.venv-uv/bin/uv; }
if [ -n "$uv" ]; then
  "$uv" venv --quiet --python "$base" "$home" || fail "the environment could not be made"
  "$uv" pip install --quiet --python "$python" "tensorflow-cpu==$version" || fail "TensorFlow could not be installed"
else
  "$base" -m venv "$home" || fail "the environment could not be made; install python3-venv"
  "$python" -m pip install --quiet "tensorflow-cpu==$version" || fail "TensorFlow could not be installed"
fi
TF_CPP_MIN_LOG_LEVEL=3 "$python" -c 'import tensorflow' >/dev/null || fail "TensorFlow is installed and cannot be imported"
touch "$home/.ready"
give
