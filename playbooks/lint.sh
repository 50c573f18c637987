#!/bin/sh
# ansible-lint with its strictest profile over the playbooks and roles.
set -eu
cd "$(dirname "$0")"
PATH=$PWD/../.venv-ansible/bin:$PATH
export PATH ANSIBLE_CONFIG="$PWD/ansible.cfg" LC_ALL=C.UTF-8
exec ansible-lint --config-file .ansible-lint --offline ./*.yml roles
