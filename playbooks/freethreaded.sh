#!/bin/sh
# Prints the path of a Python without the global interpreter lock that has SPDL and what a cell of the harness needs: an
# environment of its own, made once in the user's cache, where python3.14t is found. Progress is on stderr; the path is
# all that stdout gets.
set -eu
cd "$(dirname "$0")/.."
name=freethreaded
. playbooks/environment.sh
base=python3.14t
# A package that wants the lock turns it on while it is imported.
give_environment 'import sys, harness.cell.main, harness.workloads.classification, loaders.spdl, spdl.io; assert not sys._is_gil_enabled()'
