"""The example of docs/sample_aware.md of swapping the import, as a stranger would copy it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[3]
IMPORT = re.compile(r"^from loaders import SampleAwareDataLoader as DataLoader  # before: (.+)$", re.MULTILINE)


def test_the_pages_training_script_runs_as_it_is_and_learns(shared_memory_left, tmp_path: Path) -> None:
    (script,) = (
        code
        for code in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "sample_aware.md").read_text(), re.DOTALL)
        if "class Clips" in code
    )
    before = IMPORT.search(script)
    assert before is not None and before[1] == "from torch.utils.data import DataLoader"
    # It is the one line that a plain script has not.
    assert "loaders" not in IMPORT.sub("", script) and "SampleAware" not in IMPORT.sub("", script)
    path = tmp_path / "train.py"
    path.write_text(script)
    shared = set(Path("/dev/shm").iterdir())
    done = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"^epoch \d: loss (\d+\.\d{3}), \d+\.\d{2} s$", done.stdout, re.M)]
    assert len(losses) == 3 and losses[-1] < losses[0]
    assert not shared_memory_left(shared)
