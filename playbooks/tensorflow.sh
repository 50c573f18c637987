#!/bin/sh
# Prints the path of a Python that has TensorFlow and what a cell of the harness needs: an environment of its own, made
# once in the user's cache, because one loader alone needs TensorFlow, which takes 1.5 GB. Progress is on stderr; the
# path is all that stdout gets.
set -eu
cd "$(dirname "$0")/.."
name=tensorflow
# uv leaves out the bytecode, without which every import of TensorFlow takes 6 s longer.
export UV_COMPILE_BYTECODE=1
. playbooks/environment.sh
give_environment 'import tensorflow'
