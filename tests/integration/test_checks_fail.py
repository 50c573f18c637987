"""Each validity rule refuses a run in which that is broken which the rule guards.

`FAULTS`, `OTHER_LINK`, `SLOWER`, `OF_RUN` and `ELSEWHERE` have every rule. All faults but those of `ELSEWHERE` happen
in one run over a link: its first cell has an epoch for each of them, its second one a link that is not the regime's.
"""

from __future__ import annotations

import json
import os
import re
import signal
import struct
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from functools import partial
from multiprocessing.connection import Connection, Listener
from pathlib import Path

import pytest

from harness.__main__ import main
from harness.config.regime import Regime
from harness.errors import TestbedError
from harness.results import collect
from harness.results.checks import RULES
from harness.results.folder import RunFolder
from harness.run import driver
from harness.run.cells import run_cell
from harness.system import spin
from harness.testbed import memory
from harness.testbed.link import COMPUTE_ADDRESS, INTERFACE, STORAGE_ADDRESS
from harness.testbed.link.delay_calibration import Calibration
from harness.testbed.link.namespace import run_in
from harness.testbed.link.qdisc import cap_rate
from harness.testbed.state import RunState
from joulefeed.signals import Interrupted
from tests.energymon import trees
from tests.energymon.nvml import fake
from tests.integration.runs import CpuGroup, cells_of, places, wait_until
from tests.rules import MATRIX

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.timeout(400),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces and TUN devices"),
    pytest.mark.skipif(fake.compiler() is None, reason="the shim that sets an agent's clock is C: no cc on this host"),
]

FAULTS = {
    "clean": ("alone", "setup_work"),
    "hog": ("others_cpu", "spread"),
    "steal": ("steal",),
    "loses time": ("cpu_parts",),
    "stalled line": ("link_pause",),
    "farther link": ("link_held",),
    "slightly farther link": ("link_in_epoch",),
    "deaf end": ("pings_lost",),
    "throttled": ("throttled",),
    "hot board": ("slowdown",),
    "memory is short": ("pressure_memory",),
    "disks are busy": ("pressure_io",),
    "full queue": ("no_drops",),
    "local half travels": ("local_bytes",),
    "others travel": ("bytes_received",),
    "reads nothing": ("bytes_received",),
    "loses": ("exactly_once",),
    "repeats": ("exactly_once",),
    "invents": ("exactly_once",),
    "miscounts": ("loader_bytes",),
    "decodes nothing": ("labels",),
    "zeros": ("content",),
    "replays": ("shuffled",),
    "keeps the lock": ("step_time",),
    "reads ahead": ("early_work",),
    "lost sensor": ("sensors", "missed_ticks"),
    "clock is set": ("clock_offset",),
    "stalled agent": ("missed_ticks",),
    "killed agent": ("energy_agent",),
    "wrong from here on": ("rtt_after", "rate_after"),
}
"""The faults of the first cell's epochs, in their order, and the rules that each is for. Another run is there from the
first epoch on, and the loader computes before it."""
OTHER_LINK = (
    *("rtt_before", "rate_before", "jitter_before", "jitter_after"),
    *("loss_to_compute_before", "loss_to_compute_after", "loss_to_storage_before", "loss_to_storage_after"),
    "paths",
)
"""Rules that the second cell's link breaks; its loader reads nothing, so that no connection takes a path."""
SLOWER = ("frequency",)
"""After the second cell the same work takes the processor three times as long."""
OF_RUN = ("same_place", "whole_cell")
"""The second cell runs in another environment, and a byte of the first one is changed."""
ELSEWHERE = {
    "missed_ticks_HOST": "integration/test_hosts_run.py",
    "clock_offset_HOST": "integration/test_hosts_run.py",
    "local_reads": "harness/test_lying_loaders.py",
    "meters": "harness/test_checks.py",
    "slowdown": "harness/test_heat.py",
}
"""Rules of which other tests break the one: of other hosts, of files that lie on the node that trains, and of sensors
and boards that this run has not: of a board on which no cell trains it is warned."""
WARNS = {
    "cpu_parts",
    "energy_agent",
    "sensors",
    "alone",
    "spread",
    "same_place",
    "paths",
    "pressure_io",
    "frequency",
} | {"setup_work", "slowdown"}
BUSY = {"others_cpu", "steal", "missed_ticks", "pressure_memory", "step_time"} | {
    *("link_held", "link_pause", "link_in_epoch")
}
"""Rules that other work on this machine may break."""
SECONDS = 0.6
"""How long a fault lasts: some pings, and some ticks of 50 ms."""
HW_THERMAL_SLOWDOWN = 0x40
"""Of nvmlClocksEventReasons."""
SHORT_MB, WRITERS = 8, 3
"""Memory of the processes that write files, and how many of them there are."""
NEAR = Regime(name="near", rtt_ms=2.0, rate_gbit=0.5)
TOO_LATE_MS = 3.0
"""One-way delay of the calibration that is wrong."""
EXPERIMENT = """# @package _global_
defaults:
  - /workload@workloads.resnet50: textbook
  - override /dataset: imagenet_small
  - override /accelerator: emulated
  - override /testbed: netns
name: faults
placement: half
epochs: %d
repeats: 1
retries: 0
warmup_samples: 0
dataset: {samples: 64, mean_kb: 8}
workloads: {resnet50: {batch_size: 16}}
accelerator: {seconds_per_sample: 0.001}
loaders: {faulty: {_target_: tests.integration.faulty_loader.FaultyLoader, socket: %s}}
regimes:
  near: {rtt_ms: 2, rate_gbit: 0.5}
  impaired: {rtt_ms: 2, rate_gbit: 0.5, jitter_ms: 0.5, loss_pct: 5, paths: [{}, {}]}
energy: {interval_ms: 50, settle: {max_s: 2, over_s: 1}}
testbed: {caches: tree}
"""


class Saboteur:
    """Causes the faults that a loader cannot cause in itself, in the run of this process."""

    def __init__(self, folder: Path) -> None:
        self.socket = str(folder / "faults")
        self.shift = folder / "shift"
        self.shift.write_bytes(struct.pack("q", 0))
        self.cell, self.is_resumed = "", False
        self.testbed, self.agent, self.tree = None, None, None
        self._folder = folder
        self._rounds = spin._ROUNDS
        self._cpu_group = CpuGroup()
        self.boards = fake.Boards(folder / "boards")
        self.boards(1, temp_c={0: 45})
        self._listener = Listener(self.socket)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except OSError:
                return
            self._answer(connection)

    def _answer(self, connection: Connection) -> None:
        with connection:
            while True:
                try:
                    asked = connection.recv()
                except EOFError:
                    return
                try:
                    connection.send(self._do(asked))
                except BaseException as error:  # noqa: BLE001 - the cell fails with it
                    connection.send(repr(error))

    def close(self) -> None:
        self._listener.close()
        self._cpu_group.remove()

    def measure_spin(self) -> spin.Spin:
        """Do the work before and after a cell; after the second one it is three times as much."""
        spin._ROUNDS = self._rounds * (3 if self.cell == "impaired" else 1)
        return spin.measure_spin()

    def _do(self, asked: str) -> list[str]:
        self._cpu_group.lift()
        self.boards(1, temp_c={0: 45})
        if asked == "faults":
            return list(FAULTS) if self.cell == "near" else ["nothing to read"] * len(FAULTS)
        if cause := getattr(self, f"_{asked.replace(' ', '_')}", None):
            cause()
        return []

    def _clean(self) -> None:
        time.sleep(SECONDS)

    def _hog(self) -> None:
        # A process of this run would not be another's.
        hog = ["setsid", "--fork", "timeout", str(SECONDS), "sh", "-c", "while :; do :; done"]
        subprocess.run(hog, stdout=subprocess.PIPE, check=True)

    def _throttled(self) -> None:
        self._cpu_group.limit([one.pid for one in cells_of(os.getpid())])

    def _hot_board(self) -> None:
        self.boards(1, temp_c={0: 91}, reasons={0: HW_THERMAL_SLOWDOWN})

    def _memory_is_short(self) -> None:
        parent = memory.memory_parent()
        group = memory.MemoryGroup(parent.path / f"jft-{os.getpid()}-short", parent.version, SHORT_MB * 10**6)
        memory._make(group)
        try:
            self._write([str(group.path / "cgroup.procs")] * WRITERS)
        finally:
            memory._remove(group.path)

    def _disks_are_busy(self) -> None:
        self._write([""] * WRITERS)

    def _write(self, groups: list[str]) -> None:
        """Have processes of no run write for `SECONDS`, each in the group whose file is named, or as it is."""
        argv = ["setsid", "--fork", sys.executable, "-S", "-c", WRITER, str(SECONDS)]
        each = [[*argv, str(self._folder / f"written-{n}"), group] for n, group in enumerate(groups)]
        for process in [subprocess.Popen(one, stdout=subprocess.PIPE) for one in each]:
            process.communicate()  # until the last process that has the pipe ends

    def _stalled_line(self) -> None:
        self._pause(self.testbed.link.pid)

    def _stalled_agent(self) -> None:
        self._pause(self.agent.pid)

    def _pause(self, pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(SECONDS)
        os.kill(pid, signal.SIGCONT)

    def _killed_agent(self) -> None:
        pid = self.agent.pid
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: self.agent.pid not in (pid, None))

    def _lost_sensor(self) -> None:
        counter = self.tree.packages[1]
        counter.truncate()
        time.sleep(SECONDS)
        counter.broken = False

    def _clock_is_set(self) -> None:
        before = self._count_steps()
        # In place: the agent, which has the file mapped, dies where it reads while the file is empty.
        with self.shift.open("r+b") as file:
            file.write(struct.pack("q", 2_000_000_000))
        assert wait_until(lambda: self._count_steps() > before), "the agent sees no clock that was set"

    def _count_steps(self) -> int:
        """Return how often the clock was set by 2 s; a busy machine may show small steps of its own at any time."""
        self.agent.flush()
        events = self.agent.events(0, 2**62)
        return sum(bool(re.search(r"set by \+(1\.99|2\.0)", event.message)) for event in events)

    def _farther_link(self) -> None:
        self._move(40.0)

    def _slightly_farther_link(self) -> None:
        self._move(4.0)

    def _move(self, rtt_ms: float) -> None:
        self.testbed.link.set(Regime(name="far", rtt_ms=rtt_ms, rate_gbit=0.5))
        time.sleep(SECONDS)
        self.testbed.link.set(NEAR)

    def _deaf_end(self) -> None:
        self._listen(False)
        time.sleep(SECONDS)
        self._listen(True)

    def _listen(self, answers: bool) -> None:
        silent = f"net.ipv4.icmp_echo_ignore_all={int(not answers)}"
        run_in(self.testbed.storage.namespace, ["sysctl", "-qw", silent])

    def _full_queue(self) -> None:
        namespace = self.testbed.compute.namespace
        short = ["rate", "1mbit", "burst", "1600", "limit", "3000"]
        run_in(namespace, ["tc", "qdisc", "change", "dev", INTERFACE, "root", "handle", "1:", "tbf", *short])
        self._send(namespace, STORAGE_ADDRESS, 50)
        cap_rate(namespace, NEAR.rate_gbit)

    def _local_half_travels(self) -> None:
        self._send(self.testbed.storage.namespace, COMPUTE_ADDRESS, 500)

    def _others_travel(self) -> None:
        self._send(self.testbed.storage.namespace, COMPUTE_ADDRESS, 3000)

    def _send(self, namespace: str, address: str, packets: int) -> None:
        send = "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        send += f"for _ in range({packets}): s.sendto(bytes(1400), ({address!r}, 9))"
        run_in(namespace, [sys.executable, "-S", "-c", send])

    def _wrong_from_here_on(self, paths=()) -> None:
        self.testbed.link.set(Regime(name="wrong", rtt_ms=5, rate_gbit=0.2, paths=paths))

    def set_regime(self, set_it, regime: Regime, *, recalibrate: bool = False) -> None:
        """Set a regime as the run asks; the first one at first with a calibration that is wrong by now, the second one,
        after an interruption, as another regime."""
        self.cell = regime.name
        if regime.name == NEAR.name and not recalibrate:
            self.testbed.link._calibrations.append(Calibration(NEAR.rtt_ms, TOO_LATE_MS, NEAR.rtt_ms))
        set_it(regime, recalibrate=recalibrate)
        if regime.name == "impaired":
            if not self.is_resumed:
                raise Interrupted(signal.SIGTERM)
            self._wrong_from_here_on(regime.paths)


WRITER = """
import os, sys, time
seconds, path, group = sys.argv[1:]
if group:
    open(group, "w").write(str(os.getpid()))
end, file, written = time.monotonic() + float(seconds), open(path, "w+b", buffering=0), 0
while time.monotonic() < end:
    if written % 64 == 0:
        file.seek(0)
    file.write(bytes(1 << 20))
    if not group:
        os.fsync(file.fileno())
    written += 1
os.unlink(path)
"""


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """Run both cells with all faults; return the run's folder."""
    folder = tmp_path_factory.mktemp("faults")
    (folder / "conf" / "experiment").mkdir(parents=True)
    shim = folder / "shift_clock.so"
    source = ROOT / "tests" / "energymon" / "clock" / "shift_clock.c"
    subprocess.run([fake.compiler(), "-O2", "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True)
    tree = trees.TREES["intel-two-sockets"](folder / "sys")
    saboteur, start_testbed, start_agent = Saboteur(folder), driver._start_testbed, driver._start_agent
    saboteur.tree = tree
    text = EXPERIMENT % (len(FAULTS), saboteur.socket)
    (folder / "conf" / "experiment" / "faults.yaml").write_text(text)

    def sabotaged_testbed(*given):
        testbed = saboteur.testbed = start_testbed(*given)
        set_it = testbed.set_regime
        testbed.set_regime = partial(saboteur.set_regime, set_it)
        return testbed

    def sabotaged_agent(*given):
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("LD_PRELOAD", str(shim))
            patched.setenv("SHIFT_CLOCK", str(saboteur.shift))
            agent = saboteur.agent = start_agent(*given)
        agent.options += ["--sysfs", str(tree.root), "--nvml", str(folder / "none.so")]
        return agent

    command = ["harness", f"--config-dir={folder / 'conf'}", "+experiment=faults", *places(folder)]
    with pytest.MonkeyPatch.context() as patched, tree.running():
        patched.setattr(driver, "_start_testbed", sabotaged_testbed)
        patched.setattr(driver, "_start_agent", sabotaged_agent)
        patched.setattr(run_cell, "measure_spin", saboteur.measure_spin)
        patched.setattr(spin, "_ROUNDS", spin._ROUNDS)
        patched.setenv("PYTHONPATH", str(ROOT))
        # Of the cells, which look for boards; agents are told of none.
        patched.setenv("LD_LIBRARY_PATH", str(fake.build(folder).parent))
        patched.setenv("FAKE_NVML", str(saboteur.boards.control))
        patched.setenv("HYDRA_FULL_ERROR", "")
        beside = RunState.create(f"beside{os.getpid()}")
        try:
            patched.setattr(sys, "argv", command)
            assert main() == 128 + signal.SIGTERM
            saboteur.is_resumed, saboteur.cell = True, ""
            patched.setenv("OMP_NUM_THREADS", "3")
            patched.setattr(sys, "argv", [*command, "resume=latest", "resume_mixed=true"])
            assert main() == 6
        finally:
            beside.names.folder.rmdir()
            beside.forget()
            saboteur.close()
    tree.close()
    return folder / "results" / "latest"


def test_a_run_of_emulated_steps_waits_for_no_temperature_and_warns_of_the_boards_that_it_does_not_use(
    run_folder, checks
):
    assert json.loads((run_folder / "provenance.json").read_text())["heat"]["settled"]["value"] is None
    told = [one["actual"] for one in checks if one["rule"] == "slowdown" and one["verdict"] == "warn"]
    assert told and all(
        re.match(r"gpu-0 hw_thermal_slowdown at its (start|end) \(not the cell's board\); at most", one) for one in told
    )


def test_a_regime_that_is_nearer_than_the_link_can_be_is_refused(run_folder, monkeypatch, capfd):
    folder = run_folder.parents[1]
    where = [f"--config-dir={folder / 'conf'}", f"results_dir={folder / 'near'}", f"cache_dir={folder / 'cache'}"]
    near = ["~regimes.impaired", "regimes.near.rtt_ms=0.001", "checks.rtt_ms=0.001"]
    fixed = ["loaders.faulty._target_=loaders.shared.fixed.FixedBatchLoader", "~loaders.faulty.socket"]
    monkeypatch.setattr(sys, "argv", ["harness", *where, "+experiment=faults", *near, *fixed])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "")
    assert main() == TestbedError.exit_status
    said = capfd.readouterr().err.splitlines()[-1]
    assert said.startswith("error: regimes.near.rtt_ms=0.001: the link without delay takes 0.")
    assert said.endswith("or more, or allow more with checks.rtt_ms")


@pytest.fixture(scope="module")
def checks(run_folder):
    """Return the checks of the run, and then those that the run has when a byte of the first cell is another one."""
    found = json.loads((run_folder / "checks.json").read_text())
    run = RunFolder.find(str(run_folder), run_folder.parent)
    batches = next(run.cells.glob("faulty-resnet50-near-*")) / "batches.parquet"
    content = bytearray(batches.read_bytes())
    content[100] ^= 1
    batches.write_bytes(content)
    again = [one for one in collect.collect(run).checks if one.rule == "whole_cell"]
    return found + [asdict(one) for one in again]


def verdicts_of(checks, rule, fault=None):
    """Return the verdicts of a rule: on the epoch of a fault, or on the cell or the run that it is about."""
    epoch = None if fault is None else list(FAULTS).index(fault) + 1
    return {
        check["verdict"]
        for check in checks
        if check["rule"] == rule
        and (rule == "whole_cell" or ("-near-" in check["cell_id"]) == (fault is not None))
        and (fault is None or check["epoch"] == epoch)
    }


@pytest.mark.parametrize(("fault", "rule"), [(fault, rule) for fault, rules in FAULTS.items() for rule in rules])
def test_a_rule_refuses_the_epoch_of_its_fault(fault, rule, checks):
    assert verdicts_of(checks, rule, fault) == {"warn" if rule in WARNS else "fail"}


@pytest.mark.parametrize("rule", [*OTHER_LINK, *SLOWER, *OF_RUN])
def test_a_rule_refuses_the_cell_of_its_fault(rule, checks):
    assert verdicts_of(checks, rule) == {"warn" if rule in WARNS else "fail"}


def test_no_rule_refuses_an_epoch_without_a_fault(checks):
    ours = {rule for rules in FAULTS.values() for rule in rules} - WARNS - BUSY - set(FAULTS["wrong from here on"])
    refused = {rule for rule in ours if not verdicts_of(checks, rule, "clean") <= {"pass", "not applicable"}}
    assert refused == set()
    assert verdicts_of(checks, "sensors", "clean") == verdicts_of(checks, "cpu_parts", "clean") == {"pass"}


def link_of(run_folder, regime):
    """Return the link.json of a regime's cell."""
    return json.loads(next(run_folder.glob(f"cells/faulty-resnet50-{regime}-*/link.json")).read_text())


def test_a_link_whose_calibration_is_wrong_by_now_is_calibrated_again_before_its_cell(run_folder):
    link = link_of(run_folder, "near")
    first, *later = link["calibrations"]
    assert first["delay_ms"] == TOO_LATE_MS
    assert later
    assert all(one["delay_ms"] < NEAR.rtt_ms / 2 for one in later)
    assert link["before"]["earlier"][0]["rtt_ms_median"] >= 2 * TOO_LATE_MS
    assert link["before"]["rtt_ms_median"] < 2 * TOO_LATE_MS


def test_a_link_that_stays_wrong_is_probed_three_times_and_its_cell_is_refused(run_folder, checks):
    link = link_of(run_folder, "impaired")
    for when in ("before", "after"):
        assert all(probe["rtt_ms_median"] > 4 for probe in [*link[when]["earlier"], link[when]])
        assert len(link[when]["earlier"]) == 2
    said = {check["actual"] for check in checks if check["rule"] == "rtt_before" and "-impaired-" in check["cell_id"]}
    assert all(one.endswith("ms, in probe 3") for one in said)
    assert said


def test_every_rule_is_shown_to_refuse_a_fault():
    shown = {rule for rules in FAULTS.values() for rule in rules}
    assert shown | {*OTHER_LINK, *SLOWER, *OF_RUN, *ELSEWHERE} == RULES | set(OF_RUN)
    for rule, name in ELSEWHERE.items():
        assert rule.replace("HOST", "storage1") in (ROOT / "tests" / name).read_text()


@pytest.mark.parametrize("rule", sorted(RULES.union(OF_RUN).difference(ELSEWHERE)))
def test_the_user_sees_what_the_page_of_results_says(rule, checks):
    fault, pattern = MATRIX[rule].fault, MATRIX[rule].pattern
    epoch = list(FAULTS).index(fault) + 1 if fault in FAULTS else None
    seen = [
        one["actual"]
        for one in checks
        if one["rule"] == rule and (epoch is None or (one["epoch"] == epoch and "-near-" in one["cell_id"]))
    ]
    assert any(pattern.fullmatch(one) for one in seen), seen
