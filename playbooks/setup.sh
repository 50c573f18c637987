#!/bin/sh
# Sets a Debian or Ubuntu machine up: system packages where that is allowed, uv, and the locked environment in .venv.
# Where packages may not be installed it prints the one line that would, and goes on with what works.
set -eu
cd "$(dirname "$0")/.."

need() { command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || [ -x "/sbin/$1" ]; }

missing=""
add() { case " $missing " in *" $1 "*) ;; *) missing="$missing $1" ;; esac; }
need ip      || add iproute2
need nsenter || add util-linux
need cc      || { add gcc; add libc6-dev; }
need openssl || add openssl
need sshd    || add openssh-server
need ssh     || add openssh-client
need ffmpeg  || add ffmpeg
need sshfs   || add sshfs
need fusermount3 || add fuse3
need ps      || add procps
need sudo    || add sudo
need modprobe || add kmod
if ! command -v uv >/dev/null 2>&1 && ! python3 -c 'import ensurepip' 2>/dev/null; then
  python3 -m pip --version >/dev/null 2>&1 || { add python3-venv; add python3-pip; }
fi

if [ -n "$missing" ]; then
  line="apt-get install -y --no-install-recommends$missing"
  if [ "$(id -u)" = 0 ]; then as_root=""; else as_root="sudo"; fi
  if ! command -v apt-get >/dev/null 2>&1; then
    echo "setup: needed and not found:$missing (no apt-get here); going on with what works" >&2
  elif [ -n "$as_root" ] && ! { command -v sudo >/dev/null 2>&1 && { sudo -n true 2>/dev/null || [ -t 0 ]; }; }; then
    echo "setup: these system packages are missing; to have them, run as root:" >&2
    echo "  $line" >&2
  else
    echo "setup: $line" >&2
    { $as_root apt-get update -qq && DEBIAN_FRONTEND=noninteractive $as_root $line -qq >/dev/null; } ||
      echo "setup: that failed; going on with what works" >&2
  fi
fi

if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "setup: $(python3 --version 2>&1) is too old; Python 3.11 or later is needed as python3" >&2
  exit 1
fi

uv=$(command -v uv || true)
if [ -z "$uv" ]; then
  # uv in an environment of its own, beside the project's.
  tools=.venv-uv
  [ -x "$tools/bin/uv" ] || {
    echo "setup: installing uv" >&2
    if python3 -c 'import ensurepip' 2>/dev/null; then
      python3 -m venv "$tools" && "$tools/bin/python" -m pip install --quiet uv
    else
      python3 -m pip install --quiet --target "$tools" uv
    fi
  }
  uv="$tools/bin/uv"
fi

[ -x .venv/bin/python ] || "$uv" venv --quiet --python "$(command -v python3)" .venv
echo "setup: the locked environment in .venv (6 GB the first time, a minute or two)" >&2
VIRTUAL_ENV="$PWD/.venv" "$uv" pip sync --quiet --compile-bytecode --require-hashes requirements.lock
VIRTUAL_ENV="$PWD/.venv" "$uv" pip install --quiet --no-deps --editable .
# Where Python writes no bytecode, as in many containers, each process would compile every module that it imports.
.venv/bin/python -m compileall -q conf energymon harness joulefeed loaders
echo "setup: the C parts, where there is a compiler" >&2
find energymon loaders joulefeed -name '*.c' -exec .venv/bin/python -m joulefeed.native {} + >/dev/null
touch .venv/.ready
