#!/bin/sh
# Installs what tests with virtual machines need: debootstrap and user-mode Linux. Says the line where it may not.
set -eu
missing=""
need() { command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || missing="$missing $2"; }
need debootstrap debootstrap
need mke2fs e2fsprogs
need linux.uml user-mode-linux
# With it debootstrap checks what it downloads; Debian has it anyway.
[ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || missing="$missing debian-archive-keyring"
if [ "$(id -u)" = 0 ]; then as_root=""; else as_root="sudo"; fi
install() {
  echo "test-vm: apt-get install -y --no-install-recommends$*" >&2
  $as_root apt-get update -qq
  # shellcheck disable=SC2086
  DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y --no-install-recommends -qq $* >/dev/null
}
[ -z "$missing" ] || install "$missing"
