#!/bin/sh
# Runs a command with the rights that namespaces and mounts need: as it is for root, through sudo for a user who has
# it and whose machine keeps /dev/net/tun or /dev/fuse to root, as it is otherwise (what cannot work then says so).
set -u
if [ "$(id -u)" = 0 ] || ! command -v sudo >/dev/null 2>&1; then exec "$@"; fi
if [ -w /dev/net/tun ] && [ -w /dev/fuse ] && unshare -Urnm true 2>/dev/null; then exec "$@"; fi
if ! sudo -n true 2>/dev/null && ! [ -t 0 ]; then exec "$@"; fi
# A Ctrl-C ends the command, and what it made is still to be given to its user.
trap : INT TERM HUP
echo "namespaces and mounts need root here: sudo $*" >&2
sudo env "HOME=$HOME" "XDG_CACHE_HOME=${XDG_CACHE_HOME:-$HOME/.cache}" "PATH=$PATH" PYTHONDONTWRITEBYTECODE=1 "$@"
status=$?
for made in results benchmarks/results "${XDG_CACHE_HOME:-$HOME/.cache}/joulefeed" .pytest_cache; do
  [ ! -e "$made" ] || sudo chown -R "$(id -u):$(id -g)" "$made"
done
exit "$status"
