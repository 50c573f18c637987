"""The controller of a run on several hosts: which error is told when more than one thing fails."""

import pytest

from harness.errors import CellError, TestbedError
from harness.run import controller
from harness.testbed import playbook
from harness.testbed.inventory import Inventory


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
def test_the_first_error_is_the_one_that_is_raised_and_that_of_teardown_a_line(played, error):
    notes = Notes()
    with pytest.raises(type(error)) as raised, controller._set_up(Inventory("hosts.yml", ()), notes, lambda: False):
        raise error
    assert raised.value is error
    assert played == ["site.yml", "teardown.yml"]
    assert notes == [
        "the hosts are not as they were: teardown.yml: storage1: sysctl: Restore: no space left; log: /x; "
        "python -m harness.testbed down --inventory hosts.yml takes them back"
    ]


def test_a_teardown_that_fails_alone_is_the_error(played):
    hosts = controller._set_up(Inventory("hosts.yml", ()), Notes(), lambda: False)
    with pytest.raises(TestbedError, match=r"^teardown\.yml: storage1"), hosts:
        pass


def test_hosts_with_results_that_are_not_at_home_stay_as_they_are(played):
    notes = Notes()
    with pytest.raises(CellError), controller._set_up(Inventory("hosts.yml", ()), notes, lambda: True):
        raise CellError("the cell")
    assert played == ["site.yml"]
    assert notes == ["the hosts stay as they are; python -m harness.testbed down --inventory hosts.yml takes them back"]
