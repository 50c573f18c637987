"""Cells are forked from a process that has imported what they need, and end as if this process had started them."""

import os
import signal
import time

import psutil
import pytest

from harness.errors import CellError
from harness.run.cells.ranks import CellRanks
from harness.system.procfs import pss_bytes
from harness.testbed.base import Node
from tests.integration.runs import has_ended, wait_until

pytestmark = pytest.mark.process

NODE = Node("compute", "template1")
LIMIT_S = 120.0
SLEEPS = """
import subprocess
import sys

child = subprocess.Popen(["sleep", "600"])
print("child", child.pid, file=sys.stderr, flush=True)
child.wait()
"""


def cell(folder, templates):
    folder.mkdir()
    return CellRanks([NODE], [folder], LIMIT_S, templates)


def imported(ranks, *modules):
    ranks.send({"import": list(modules)})
    return ranks.receive(time.monotonic() + LIMIT_S, "importing").state


def test_cells_of_a_node_share_a_template_that_has_torch_and_each_is_its_own_group(templates, tmp_path):
    with cell(tmp_path / "a", templates) as one, cell(tmp_path / "b", templates) as other:
        began = time.process_time()
        assert imported(one, "torch") == imported(other, "torch") == "imported"
        assert time.process_time() - began < 1
        assert one.templates == other.templates
        (template,) = one.templates
        for (pid,) in (one.pids, other.pids):
            process = psutil.Process(pid)
            assert process.ppid() == template and os.getpgid(pid) == pid
            assert process.cpu_times().user + process.cpu_times().system < 1, "it has imported torch itself"
            assert not [file for file in process.open_files() if file.path.startswith(str(tmp_path)) and file.fd > 2]
        resident = sum(psutil.Process(pid).memory_info().rss for pid in (template, *one.pids))
        assert pss_bytes(one.pids) < pss_bytes(one.pids, one.templates) < resident
    # A cell whose harness is gone fails: by 3, or by 1 where the pipe that takes its message is closed already.
    assert {process.status for process in (*one._processes, *other._processes)} <= {1, 3}


def test_a_cell_that_fails_says_why_and_the_next_one_starts(templates, tmp_path):
    for folder in ("a", "b"):
        with pytest.raises(CellError, match="No module named 'nonsense'"), cell(tmp_path / folder, templates) as one:
            imported(one, "nonsense")
        assert "No module named" in (tmp_path / folder / "log.txt").read_text()


def test_a_cell_that_is_killed_is_named_with_its_signal(templates, tmp_path):
    with pytest.raises(CellError, match="was killed by SIGKILL"), cell(tmp_path / "a", templates) as one:
        os.kill(one.pids[0], signal.SIGKILL)
        imported(one, "torch")


def test_what_a_cell_started_ends_with_it(templates, tmp_path, monkeypatch):
    (tmp_path / "sleeps.py").write_text(SLEEPS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(CellError, match="enough"), cell(tmp_path / "a", templates) as one:
        one.send({"import": ["sleeps"]})
        log = tmp_path / "a" / "log.txt"
        assert wait_until(lambda: "child" in log.read_text(), LIMIT_S)
        raise CellError("enough")
    assert wait_until(lambda: has_ended(int(log.read_text().split()[1])))


def test_cells_end_with_their_template_and_the_next_cell_gets_another_one(templates, tmp_path):
    with pytest.raises(CellError, match="was killed by SIGKILL"), cell(tmp_path / "a", templates) as one:
        (template,) = one.templates
        os.kill(template, signal.SIGKILL)
        assert wait_until(lambda: has_ended(one.pids[0]))
        imported(one, "torch")
    with cell(tmp_path / "b", templates) as other:
        assert imported(other, "torch") == "imported"
        assert other.templates != {template}


def test_a_template_that_is_stopped_keeps_no_cell_from_its_end(templates, tmp_path):
    with pytest.raises(CellError, match="was killed by SIGKILL"), cell(tmp_path / "a", templates) as one:
        (template,) = one.templates
        os.kill(template, signal.SIGSTOP)
        os.kill(one.pids[0], signal.SIGKILL)
        imported(one, "torch")
    os.kill(template, signal.SIGCONT)


def test_a_template_that_cannot_start_is_a_failed_cell(templates, tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(CellError, match="forked from exited with status 1: ImportError: no torch here"):
        cell(tmp_path / "a", templates)


def test_a_cell_with_a_limit_of_memory_imports_everything_itself(templates, tmp_path):
    group = tmp_path / "group"
    group.mkdir()
    (group / "cgroup.procs").touch()
    (tmp_path / "a").mkdir()
    node = Node("compute", "template1", memory_group=group)
    with CellRanks([node], [tmp_path / "a"], LIMIT_S, templates) as one:
        assert not one.templates
        assert imported(one, "json") == "imported"
