#!/bin/sh
# A short check of everything that needs an NVIDIA GPU: its energy sensor and what that samples of a known load (the
# readings stay in results/gpu_calibration), the tests with the marker `gpu`, and two epochs of every loader that end on
# the device, DALI's decoding on it too. It fails where a row is not valid.
set -eu
cd "$(dirname "$0")/.."
python=.venv/bin/python
"$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || {
  echo "gpu-smoke: torch finds no CUDA device here; run this on a machine with an NVIDIA GPU whose nvidia-smi works" >&2
  exit 1
}
# 1: the GPU has a figure and something else, such as the CPU, has none.
"$python" -m energymon doctor --sensors nvml || [ "$?" -eq 1 ]
"$python" -m energymon calibrate --sensors nvml --raw results/gpu_calibration ||
  echo "gpu-smoke: a sensor could not be calibrated; going on" >&2
# A window over a known load is among them: its joules by the counter, by the power, and by the calibration agree.
# Files without such a test are left out: importing all of them takes longer than the tests.
"$python" -m pytest -m gpu $(grep -rl --include='test_*.py' 'mark\.gpu' tests)
# 6: a rule refused a row, as it does when other work disturbs an epoch. Such cells are measured once more.
status=0
"$python" -m harness +experiment=gpu_smoke || status=$?
[ "$status" -ne 6 ] || exec "$python" -m harness resume=latest resume_invalid=true
exit "$status"
