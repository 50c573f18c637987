# shellcheck shell=sh disable=SC2154
# Sourced by the scripts that make an environment of their own, $home, for packages that ask for other versions than
# this project's, and by those that build a server. $name is what their messages begin with.
say() { echo "$name: $*" >&2; }
fail() { say "$*"; exit 1; }

# Waits until no other run makes the same; the file is what all runs lock.
lock() {
  exec 9<"$1"
  flock -n 9 || { say "another run is making it; waiting for that run"; flock 9; }
}

# Makes the environment, empty, and installs what is named as for pip.
make_environment() {
  say "making the environment in $home"
  rm -rf "$home"
  base=$(command -v python3 || true)
  [ ! -x .venv/bin/python ] || base=.venv/bin/python
  [ -n "$base" ] || fail "Python 3 is needed as python3"
  uv=$(command -v uv || true)
  [ -n "$uv" ] || { [ ! -x .venv-uv/bin/uv ] || uv=.venv-uv/bin/uv; }
  if [ -n "$uv" ]; then
    "$uv" venv --quiet --python "$base" "$home" || fail "the environment could not be made"
    "$uv" pip install --quiet --python "$home/bin/python" "$@" || fail "the packages could not be installed"
  else
    "$base" -m venv "$home" || fail "the environment could not be made; install python3-venv"
    "$home/bin/python" -m pip install --quiet "$@" || fail "the packages could not be installed"
  fi
}
