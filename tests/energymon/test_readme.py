"""The README's examples of measuring one's own code, as a stranger would copy them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
TRAIN = "def train_one_epoch():\n    sum(range(1_000_000))\n"


def examples(page):
    return [
        TRAIN + "import energymon\n" + code
        for code in re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
        if "energymon.Window" in code
    ]


@pytest.mark.parametrize("page", ["README.md", "docs/energy.md"])
def test_a_machine_has_a_figure_by_a_sensor_or_by_the_estimate_and_is_told_which(page):
    sensor, estimate = (
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        for code in examples(page)
    )
    assert estimate.returncode == 0, estimate.stderr
    assert float(estimate.stdout.split()[0]) > 0
    if sensor.returncode:
        assert "SensorError: " in sensor.stderr
        assert 'energymon.Agent(estimate="missing")' in sensor.stderr
        assert "J, estimated" in estimate.stdout
