#!/bin/sh
# Makes .venv-ansible: ansible-core, its collections and ansible-lint, in an environment of their own, because
# ansible-core asks for other versions than this project. Does nothing where the environment is there already.
# Where this file is part of an installed package, the environment is in the user's cache.
set -eu
cd "$(dirname "$0")/.."
home=.venv-ansible
[ -e pyproject.toml ] || home=${XDG_CACHE_HOME:-$HOME/.cache}/joulefeed/ansible-environment
mark=$home/.ready

say() { echo "ansible: $*" >&2; }
fail() { say "$*"; exit 1; }

ready() { [ -e "$mark" ] && cmp -s "$mark" playbooks/ansible.lock && "$home/bin/ansible-playbook" --version >/dev/null 2>&1; }
! ready || exit 0
exec 9<playbooks/ansible.sh  # any file will do as a lock
flock -n 9 || { say "another run is making the environment; waiting for it"; flock 9; }
! ready || exit 0

say "making the environment in $home"
rm -rf "$home"
base=$(command -v python3 || true)
[ ! -x .venv/bin/python ] || base=.venv/bin/python
[ -n "$base" ] || fail "Python 3 is needed as python3"
uv=$(command -v uv || true)
[ -n "$uv" ] || { [ ! -x .venv-uv/bin/uv ] || uv=.venv-uv/bin/uv; }
if [ -n "$uv" ]; then
  "$uv" venv --quiet --python "$base" "$home" || fail "the environment could not be made"
  "$uv" pip sync --quiet --python "$home/bin/python" --require-hashes playbooks/ansible.lock || fail "Ansible could not be installed"
else
  "$base" -m venv "$home" || fail "the environment could not be made; install python3-venv"
  "$home/bin/python" -m pip install --quiet --require-hashes -r playbooks/ansible.lock || fail "Ansible could not be installed"
fi
"$home/bin/ansible-playbook" --version >/dev/null || fail "Ansible is installed and does not run"
cp playbooks/ansible.lock "$mark"
