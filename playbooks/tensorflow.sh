#!/bin/sh
# Prints the path of a Python that has TensorFlow: one environment of its own, made once in the user's cache, because
# TensorFlow wants other versions than this project's. Progress is on stderr; the path is all that stdout gets.
# The environment takes 1.5 GB and a minute or two.
set -eu
cd "$(dirname "$0")/.."
version=2.21.0
cache=${XDG_CACHE_HOME:-$HOME/.cache}/joulefeed
name=tensorflow home=$cache/tensorflow-$version
python=$home/bin/python
exec 3>&1 1>&2
. playbooks/environment.sh

give() { echo "$python" >&3; exit 0; }
# The mark is written last, when the environment has imported TensorFlow; the Python below it may be gone since.
ready() { [ -e "$home/.ready" ] && "$python" -c ''; }
! ready || give
mkdir -p "$cache"
touch "$cache/tensorflow.lock"
lock "$cache/tensorflow.lock"
! ready || give

make_environment "tensorflow-cpu==$version"
TF_CPP_MIN_LOG_LEVEL=3 "$python" -c 'import tensorflow' >/dev/null || fail "TensorFlow is installed and cannot be imported"
touch "$home/.ready"
give
