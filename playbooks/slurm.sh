#!/bin/sh
# SLURM's controller, node daemon and commands, which tests of a sweep run as jobs: found, or installed with apt where that
# is allowed. Nothing is started.
set -eu
cd "$(dirname "$0")/.."
name=slurm
. playbooks/environment.sh
for tool in slurmctld slurmd munged sbatch; do
  PATH=$PATH:/usr/sbin command -v "$tool" >/dev/null || { packages slurmctld slurmd slurm-client munge; break; }
done
