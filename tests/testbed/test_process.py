"""The processes of a run die with their parent and are found by the run's id."""

import sys
from pathlib import Path
from uuid import uuid4

import pytest

from harness.errors import TestbedError
from harness.system.process import RUN_VARIABLE, kill_all, processes_of_run
from harness.testbed.base import Node
from tests.integration.runs import wait_until

pytestmark = pytest.mark.process


@pytest.fixture
def node():
    made = Node("compute", f"p{uuid4().hex[:8]}")
    yield made
    kill_all(made.run_id)


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_run_returns_standard_output_and_names_command_and_reason_of_a_failure(node):
    assert node.run(["echo", "a b"]) == "a b\n"
    for missing in (["ls", "/no/such"], ["no-such-command"]):
        with pytest.raises(TestbedError, match=rf"{' '.join(missing)}.*compute"):
            node.run(missing)


def test_run_ends_a_command_that_takes_too_long_with_its_children(node):
    with pytest.raises(TestbedError, match=r"0\.3 s"):
        node.run(["sh", "-c", "sleep 98 & sleep 99"], timeout_s=0.3)
    assert wait_until(lambda: not processes_of_run(node.run_id), 10)


def test_process_leads_a_group_of_its_own_and_carries_the_run(node):
    said = node.run(
        [sys.executable, "-c", f"import os; print(os.getpgrp() == os.getpid(), os.environ['{RUN_VARIABLE}'])"]
    )
    assert said.split() == ["True", node.run_id]


def test_process_finds_the_packages_of_its_parent_from_any_directory(node, tmp_path):
    node.run(["sh", "-c", 'cd "$0" && exec "$1" -c "import harness.testbed"', str(tmp_path), sys.executable])


def test_kill_all_finds_a_grandchild_that_left_its_session_and_parent(node):
    process = node.start(["sh", "-c", "setsid sleep 96 & exit 0"])
    process.process.wait()
    assert wait_until(lambda: len(processes_of_run(node.run_id)) == 1, 10)
    (orphan,) = processes_of_run(node.run_id)
    assert kill_all(node.run_id) == [orphan]
    assert wait_until(lambda: _is_gone(orphan), 10)


def test_kill_all_leaves_other_runs_alone(node):
    other = Node("compute", f"o{uuid4().hex[:8]}")
    process = other.start(["sleep", "95"])
    kill_all(node.run_id)
    assert process.is_alive
    process.stop(term_s=0)
