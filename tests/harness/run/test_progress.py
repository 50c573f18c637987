"""What lasts has lines of its own where there is no terminal."""

import io
import time

from rich.console import Console

from harness.results.cells import Cell
from harness.run.progress import RunProgress

CELL = Cell(cell_id="c", loader="pytorch", workload="resnet50", regime="local", repeat=1)


def lines_until(out, many):
    deadline = time.monotonic() + 20
    while len(found := out.getvalue().splitlines()) < many and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


def test_a_phase_that_lasts_is_told_now_and_then():
    out = io.StringIO()
    with RunProgress(Console(file=out), quiet_s=0.05) as progress:
        progress.doing("starting the testbed")
        assert lines_until(out, 1)[0].startswith("starting the testbed, for 0 s")
        progress.start([CELL], 0)
        progress.cell_started(CELL, 48)
        progress.phase("probing the link")
        many = len(out.getvalue().splitlines())
        line = next(line for line in lines_until(out, many + 2) if "probing" in line)
        assert line.startswith("pytorch · resnet50 · local · repeat 1: probing the link, for 0 s so far")
        progress.samples(1, 16)
        assert any("epoch 1, 16 samples, for" in line for line in lines_until(out, many + 5))


def test_what_is_over_soon_has_none():
    out = io.StringIO()
    with RunProgress(Console(file=out)) as progress:
        progress.doing("starting the testbed")
    assert not out.getvalue()
