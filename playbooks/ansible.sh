#!/bin/sh
# Makes .venv-ansible: ansible-core, its collections and ansible-lint, in an environment of their own, because
# ansible-core asks for other versions than this project. Does nothing where the environment is there already.
# Where this file is part of an installed package, the environment is in the user's cache.
set -eu
cd "$(dirname "$0")/.."
name=ansible home=.venv-ansible
[ -e pyproject.toml ] || home=${XDG_CACHE_HOME:-$HOME/.cache}/joulefeed/ansible-environment
mark=$home/.ready
. playbooks/environment.sh

ready() { [ -e "$mark" ] && cmp -s "$mark" playbooks/ansible.lock && "$home/bin/ansible-playbook" --version >/dev/null 2>&1; }
! ready || exit 0
lock playbooks/ansible.sh  # any file will do
! ready || exit 0

make_environment --require-hashes -r playbooks/ansible.lock
"$home/bin/ansible-playbook" --version >/dev/null || fail "Ansible is installed and does not run"
cp playbooks/ansible.lock "$mark"
