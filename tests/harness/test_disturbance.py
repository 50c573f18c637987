"""What others take is told from what the run takes, with real processes."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.cell.counters import CellCounters
from harness.results.edges import measure_others
from harness.system import procfs
from harness.system.control_groups import read_pressure_s, read_throttling
from harness.system.procfs import KernelThreads, Strangers, cpu_s
from tests.integration.runs import wait_until

pytestmark = pytest.mark.serial

HOG = """
import sys
print(flush=True)
while True:
    sum(range(10_000))
"""


@pytest.fixture
def hog():
    process = subprocess.Popen([sys.executable, "-c", HOG], stdout=subprocess.PIPE)
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
def idler():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.communicate()


@pytest.mark.process
def test_a_process_that_is_not_of_the_run_is_others_and_one_of_the_run_is_not(hog, idler):
    ours, strange = CellCounters(None, None), CellCounters(None, None, run_pid=idler.pid)
    # The hog is a child of this process, and none of the idler.
    before, used = (ours.read(), strange.read()), cpu_s([hog.pid])
    wait_until(lambda: cpu_s([hog.pid]) - used >= 0.5, 60)
    after, used = (ours.read(), strange.read()), cpu_s([hog.pid]) - used
    own, foreign = (measure_others(*pair) for pair in zip(before, after, strict=True))
    assert used > 0.1
    assert foreign.cpu_s >= 0.9 * used
    # Others of this machine are in both; the reading itself is not.
    assert foreign.cpu_s - own.cpu_s == pytest.approx(used, rel=0.25, abs=0.1)
    assert foreign.cpu_s <= foreign.cpus * foreign.span_s
    assert own.wait_s is None or own.wait_s >= 0
    assert foreign.steal_s >= 0


class AllBut:
    """The ids of all processes but one."""

    def __init__(self, pid):
        self._pid = pid

    def __contains__(self, pid):
        return pid != self._pid


@pytest.mark.process
def test_the_cpu_seconds_of_processes_that_have_just_started_are_not_cut_to_hundredths():
    burn = "import time\nwhile time.process_time() < 0.05: pass\nprint(time.process_time(), flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    processes = [subprocess.Popen([sys.executable, "-c", burn], **pipes) for _ in range(10)]
    said_s = sum(float(process.stdout.readline()) for process in processes)
    assert said_s <= cpu_s(process.pid for process in processes) < said_s + 0.05
    for process in processes:
        process.communicate(b"\n")


@pytest.mark.process
def test_a_process_that_is_not_of_the_run_is_named_with_what_it_used_since_the_last_look(hog):
    strangers = Strangers()
    assert strangers.look(AllBut(hog.pid)) == []
    before = cpu_s([hog.pid])
    assert wait_until(lambda: cpu_s([hog.pid]) - before > 0.2, 60)
    ((name, pid, used_s),) = strangers.look(AllBut(hog.pid))
    assert (name.startswith("python"), pid) == (True, hog.pid)
    assert 0.1 < used_s <= cpu_s([hog.pid]) - before + 0.1
    assert strangers.look(AllBut(-1)) == []


@pytest.mark.process
@pytest.mark.parametrize(("given", "name"), [(["train it.py", "secret"], " train it.py"), (["-c", "input()"], "")])
def test_an_interpreter_is_named_with_its_script_and_no_other_argument(given, name, tmp_path):
    (tmp_path / "train it.py").write_text("input()")
    process = subprocess.Popen([sys.executable, *given], stdin=subprocess.PIPE, cwd=tmp_path)
    try:
        # It has the command line of this process until it executes its own.
        assert wait_until(lambda: procfs._program(process.pid, "python3") == f"python3{name}")
    finally:
        process.communicate(b"\n")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("nr_periods 9\nnr_throttled 5\nthrottled_time 171015115\n", (5, pytest.approx(0.171015115))),
        ("usage_usec 7\nnr_periods 9\nnr_throttled 5\nthrottled_usec 171015\n", (5, pytest.approx(0.171015))),
        ("usage_usec 7\nuser_usec 5\nsystem_usec 2\n", None),
    ],
)
def test_a_quota_s_count_is_read_in_either_version_and_a_group_that_can_have_none_has_no_count(text, found, tmp_path):
    (tmp_path / "cpu.stat").write_text(text)
    assert read_throttling(tmp_path) == found
    assert read_throttling(tmp_path / "absent") is None


def test_the_time_in_which_some_task_waited_is_read():
    text = "some avg10=0.00 avg60=0.39 avg300=0.90 total=300641157\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
    assert read_pressure_s(text) == pytest.approx(300.641157)


def test_a_machine_that_does_not_tell_what_its_processors_do_is_unknown():
    counters = CellCounters(None, None).read()
    assert measure_others(counters, {**counters, "cpu_idle_s": 0.0}) is None
    assert measure_others({}, {}) is None


def _of_processor(number):
    """Return the seconds that a processor has been idle, and those in interrupts, since the machine started."""
    (line,) = (line for line in Path("/proc/stat").read_text().splitlines() if line.startswith(f"cpu{number} "))
    ticks = [int(field) / os.sysconf("SC_CLK_TCK") for field in line.split()[1:]]
    return ticks[3] + ticks[4], ticks[5] + ticks[6]


@pytest.mark.parametrize("processor", sorted(os.sched_getaffinity(0))[:2])
def test_a_processor_that_the_run_may_not_use_is_not_counted(processor):
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {processor})
    try:
        before, counters, after = _of_processor(processor), CellCounters(None, None).read(), _of_processor(processor)
    finally:
        os.sched_setaffinity(0, allowed)
    assert counters["cpus"] == 1
    assert before[0] <= counters["cpu_idle_s"] <= after[0]
    assert before[1] <= counters["cpu_irq_s"] <= after[1]


def test_a_kernel_thread_that_ends_leaves_its_cpu_time_where_it_was(monkeypatch):
    used_s = {2: 1.0, 7: 5.0, 9: 0.5}
    monkeypatch.setattr(procfs, "kernel_threads", lambda: tuple(used_s))
    monkeypatch.setattr(procfs, "cpu_s", lambda pids: sum(used_s[pid] for pid in pids))
    threads = KernelThreads()
    assert threads.cpu_s() == pytest.approx(6.5)
    del used_s[7]
    used_s |= {9: 0.75, 11: 0.1}
    assert threads.cpu_s() == pytest.approx(6.85)
    used_s[11] = 0.01  # another thread with the number of one that has ended
    assert threads.cpu_s() == pytest.approx(6.86)
    assert threads.cpu_s() == pytest.approx(6.86)


def test_the_time_of_a_process_that_ends_while_its_family_is_read_is_not_lost(monkeypatch):
    """Its parent is read before it takes over the time of the child, and the child after it has ended."""
    parent = [(1.0, 0.5, 0.0, 0.0), (1.0, 0.5, 3.0, 0.25)]
    names = ("user", "system", "children_user", "children_system")
    answers = {7: iter([SimpleNamespace(**dict(zip(names, times, strict=True))) for times in parent]), 8: iter([None])}
    monkeypatch.setattr(procfs, "_cpu_times", lambda pid: next(answers[pid]))
    assert procfs.cpu_split([7, 8]) == (4.0, 0.75)
