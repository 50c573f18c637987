"""The harness's side of a cell: one that makes no progress is told with what it waits for."""

import os
import signal
import time

import pytest

from harness.errors import CellError
from harness.run.cells.ranks import CellRanks
from harness.testbed.base import Node
from tests.integration.runs import wait_until

pytestmark = pytest.mark.process

HANGS = """
import time
from pathlib import Path

def wait_for_ever():
    Path(__file__).with_name("waits").touch()
    time.sleep(600)

wait_for_ever()
"""


@pytest.fixture
def cell(tmp_path, monkeypatch, templates):
    (tmp_path / "hangs.py").write_text(HANGS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(CellError), CellRanks([Node("compute", "talk1")], [tmp_path], 0.5, templates) as cell:
        yield cell
        raise CellError("so that it is ended and not waited for")


def test_a_cell_without_progress_is_told_with_the_place_where_it_is(cell, tmp_path):
    cell.send({"import": ["hangs"]})
    assert wait_until((tmp_path / "waits").exists, 60)
    with pytest.raises(CellError) as told:
        cell.receive(time.monotonic() + 60, "importing its modules")
    said = str(told.value)
    assert said.startswith("no progress for 0.00833 min (cell_stall_min) ")
    assert f"wait_for_ever of {tmp_path}/hangs.py, line 7" in said
    assert "hangs.py" in (tmp_path / "log.txt").read_text()


def test_a_cell_that_is_stopped_is_told_so(cell):
    os.kill(cell.pids[0], signal.SIGSTOP)
    with pytest.raises(CellError, match=str(cell.pids[0])):
        cell.receive(time.monotonic() + 60, "importing its modules")
    os.kill(cell.pids[0], signal.SIGCONT)


def test_the_whole_cell_has_a_limit_too(cell):
    with pytest.raises(CellError, match="cell_timeout_s"):
        cell.receive(time.monotonic() + 0.1, "importing its modules")
