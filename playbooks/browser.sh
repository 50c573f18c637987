#!/bin/sh
# Prints the path of a Chromium, in which tests look at pages; installs it where there is none.
set -eu
cd "$(dirname "$0")/.."
name=browser
. playbooks/environment.sh
command -v chromium >/dev/null || packages chromium >&2
command -v chromium
