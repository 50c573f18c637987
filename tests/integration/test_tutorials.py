"""Every command of the tutorials runs, in the order of the page, in a folder with nothing but a training script."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.serial]

PAGES = Path(__file__).parents[2] / "docs" / "tutorials"
BLOCK = re.compile(r"```(sh|python)\n(.*?)```", re.DOTALL)
TRAIN = "import time\nfor epoch in range(2):\n    time.sleep(1)\n    print('epoch', epoch)\n"
ALSO = {"doctor": {1}, "advise": {3, 4}, "run": {6}}
"""Statuses besides 0: a sensor is missing, nothing is to be changed, another program disturbed a row."""


@pytest.mark.parametrize("page", sorted(path.stem for path in PAGES.glob("*.md")))
def test_every_command_of_a_tutorial_runs_and_it_ends_with_a_picture(page, tmp_path):
    text = (PAGES / f"{page}.md").read_text()
    (tmp_path / "train.py").write_text(TRAIN)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for kind, code in BLOCK.findall(text):
        lines = (
            [[sys.executable, "-c", code]] if kind == "python" else [["bash", "-c", one] for one in code.splitlines()]
        )
        for argv in lines:
            done = subprocess.run(
                argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=280
            )
            also = next((statuses for word, statuses in ALSO.items() if word in argv[-1].split()), set())
            assert done.returncode in {0, *also}, (argv[-1], done.stdout, done.stderr)
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert (tmp_path / "power.png").exists() if page == "joules" else all((PAGES / one).exists() for one in pictures)
