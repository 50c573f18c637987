#!/bin/sh
# Installs what tests with virtual machines need: debootstrap, QEMU and user-mode Linux. Says the line where it may not.
set -eu
missing=""
need() { command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || missing="$missing $2"; }
need debootstrap debootstrap
need qemu-system-x86_64 qemu-system-x86
need qemu-img qemu-utils
need mke2fs e2fsprogs
need linux.uml user-mode-linux
[ -n "$missing" ] || exit 0
if [ "$(id -u)" = 0 ]; then as_root=""; else as_root="sudo"; fi
echo "test-vm: apt-get install -y --no-install-recommends$missing" >&2
$as_root apt-get update -qq
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y --no-install-recommends -qq $missing >/dev/null
