# shellcheck shell=sh disable=SC2154
# Sourced by the scripts that make an environment of their own, $home, for packages that ask for other versions than
# this project's, and by those that build a server. $name is what their messages begin with.
base=  # the Python that a new environment is of; empty for the harness's own
say() { echo "$name: $*" >&2; }
fail() { say "$*"; exit 1; }

# Waits until no other run makes the same; the file is what all runs lock.
lock() {
  exec 9<"$1"
  flock -n 9 || { say "another run is making it; waiting for that run"; flock 9; }
}

# Installs system packages where that is allowed.
packages() {  # packages NAME...
  if [ "$(id -u)" = 0 ]; then as_root=""; else as_root="sudo -n"; fi
  if ! command -v apt-get >/dev/null 2>&1 || { [ -n "$as_root" ] && ! sudo -n true 2>/dev/null; }; then
    fail "needed and not found: $*; as root: apt-get install -y --no-install-recommends $*"
  fi
  say "apt-get install $*"
  $as_root apt-get update -qq >/dev/null || say "the package lists could not be renewed; going on with the old ones"
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null ||
    fail "that failed; install them by hand: $*"
}

# Makes the environment of $base, or else of the harness's own Python, empty, and installs what is named as for pip.
make_environment() {
  say "making the environment in $home"
  rm -rf "$home"
  [ -n "$base" ] || { base=python3; [ ! -x .venv/bin/python ] || base=.venv/bin/python; }
  command -v "$base" >/dev/null || fail "needed and not found: $base; uv python install ${base#python} brings it"
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

# Prints on stdout the Python of the environment that playbooks/$name.lock describes, in the user's cache, and makes it
# where it is not there. Another lock is another environment, so that no run loses the one that it uses.
give_environment() {  # give_environment STATEMENT: Python that the new environment must be able to run
  cache=${XDG_CACHE_HOME:-$HOME/.cache}/joulefeed
  home=$cache/$name-$(sha256sum "playbooks/$name.lock" | cut -c 1-12)
  python=$home/bin/python
  exec 3>&1 1>&2
  # The mark is written last. The Python below the environment may be gone since.
  if ! { [ -e "$home/.ready" ] && "$python" -c ''; }; then
    { mkdir -p "$cache" && touch "$cache/$name.lock"; } || fail "$cache cannot be written; set XDG_CACHE_HOME to another"
    lock "$cache/$name.lock"
    if ! { [ -e "$home/.ready" ] && "$python" -c ''; }; then
      make_environment --require-hashes -r "playbooks/$name.lock"
      "$python" -c "$1" >/dev/null || fail "the environment is made and cannot run: $1"
      touch "$home/.ready"
    fi
  fi
  echo "$python" >&3
}
