"""A run on several hosts: which error is raised when more than one thing fails, and when it goes on."""

from types import SimpleNamespace

import pytest

from harness.errors import CellError, TestbedError
from harness.results.cells import Cell
from harness.run.cells import loop as cell_loop
from harness.run.hosts import controller
from harness.testbed.hosts import playbook
from harness.testbed.hosts.inventory import Inventory
from harness.testbed.hosts.testbed import HostLostError


class Notes(list):
    """A progress that keeps the lines that stay."""

    note = list.append


@pytest.fixture
def played(monkeypatch):
    """Let every playbook end without hosts, and teardown.yml fail; return the names of those that ran."""
    names = []

    def run(name, inventory, progress):
        names.append(name)
        if name == "teardown.yml":
            raise TestbedError("teardown.yml: storage1: sysctl: Restore: no space left; log: /x")

    monkeypatch.setattr(playbook, "run_playbook", run)
    return names


@pytest.mark.parametrize("error", [CellError("the cell"), KeyboardInterrupt(), ZeroDivisionError("one")])
@pytest.mark.parametrize("is_kept", [False, True])
def test_the_first_error_is_raised_and_what_becomes_of_the_hosts_is_a_line(played, error, is_kept):
    notes = Notes()
    with pytest.raises(type(error)) as raised, controller._set_up(Inventory("hosts.yml", ()), notes, lambda: is_kept):
        raise error
    assert raised.value is error
    assert played == (["site.yml"] if is_kept else ["site.yml", "teardown.yml"])
    (note,) = notes
    assert ("stay as they are" in note) if is_kept else ("storage1" in note)
    assert "down --inventory hosts.yml" in note


def test_a_teardown_that_fails_alone_is_the_error(played):
    hosts = controller._set_up(Inventory("hosts.yml", ()), Notes(), lambda: False)
    with pytest.raises(TestbedError, match=r"^teardown\.yml: storage1"), hosts:
        pass


@pytest.mark.parametrize(("policy", "tried"), [("stop", 1), ("continue", 2)])
def test_a_lost_host_ends_the_plan_or_fails_each_of_its_cells_by_policy(monkeypatch, policy, tried):
    def require():
        raise HostLostError("host storage1 is lost: its connection exited with status 255")

    cells = [Cell(cell_id=name, loader="l", workload="w", regime="r", repeat=0, seed=0) for name in "ab"]
    failed = []
    context = SimpleNamespace(
        run=SimpleNamespace(set_aside=lambda cell_id: None),
        data={"w": SimpleNamespace(opened=SimpleNamespace(handle=SimpleNamespace(samples=[1])))},
        agent=SimpleNamespace(restart_if_failed=lambda: False),
        testbed=SimpleNamespace(require=require),
        experiment=SimpleNamespace(testbed=SimpleNamespace(on_lost_host=policy)),
    )
    monkeypatch.setattr(cell_loop, "_mark_failed", lambda context, cell, ledger, status, reason: failed.append(cell))
    progress = SimpleNamespace(
        start=lambda todo, done: None,
        cell_started=lambda cell, samples: None,
        cell_failed=lambda cell, reason: None,
        stop=lambda: None,
    )
    ledger = SimpleNamespace(append=lambda *words, **more: None)
    if policy == "stop":
        with pytest.raises(TestbedError, match=r"^host storage1 is lost: .*; testbed\.on_lost_host=continue goes on"):
            cell_loop.run_cells(context, cells, ledger, progress)
    else:
        assert set(cell_loop.run_cells(context, cells, ledger, progress)) == {"a", "b"}
    assert failed == cells[:tried]
