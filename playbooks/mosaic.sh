#!/bin/sh
# Prints the path of a Python that has MosaicML Streaming and what a cell of the harness needs: an environment of its
# own, made once in the user's cache, because MosaicML Streaming wants other versions than this project's. Progress is
# on stderr; the path is all that stdout gets.
set -eu
cd "$(dirname "$0")/.."
name=mosaic
. playbooks/environment.sh
give_environment 'import streaming'
